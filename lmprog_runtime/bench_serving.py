"""`python -m lmprog_runtime.bench_serving`: the name that users of SGLang know for `lmprog bench serving`."""

from __future__ import annotations

import sys

from lmprog_runtime.bench.serving import script

if __name__ == "__main__":
    sys.exit(script())
