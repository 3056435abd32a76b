"""`python -m lmprog.compat.sglang program.py ...`: run a script that imports sglang."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from lmprog.compat.sglang import install


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("usage: python -m lmprog.compat.sglang program.py [arguments]")
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    install()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
