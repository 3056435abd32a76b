"""What must be so before the first test module is imported."""

import os

# Triton decides when it is imported whether its kernels run in its interpreter, and transformers imports it. A machine
# with a card sets TRITON_INTERPRET=0 to run the same tests compiled.
os.environ.setdefault("TRITON_INTERPRET", "1")
