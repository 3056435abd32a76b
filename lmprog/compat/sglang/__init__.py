"""Programs that were written for SGLang, unmodified, on lmprog.

    import lmprog.compat.sglang
    lmprog.compat.sglang.install()

    import sglang as sgl                     # from here on, this is lmprog
    sgl.set_default_backend(sgl.Runtime(model_path="smollm2-135m"))

or `python -m lmprog.compat.sglang program.py ...`. The names, signatures, defaults (128 new tokens) and formats of
results are those of SGLang's frontend; what lmprog does not have is refused by name. Taken and not used are only the
address and the logs of the server that `Runtime` starts there, for here is none, and `--device` of the benchmark
programs, whose server has its own. Values of variables are texts, as there, also with `dtype`. With `return_meta_data`,
a stream has one piece, when its numbers are known.
"""

from __future__ import annotations

import sys

from lmprog.compat.sglang.modules import Finder, is_stand_in
from lmprog.errors import InvalidArgument

__all__ = ["install", "uninstall"]


def install() -> None:
    """Make `import sglang` give the stand-in. Raises InvalidArgument when another sglang has been imported before."""
    before = sys.modules.get("sglang")
    if before is not None and not is_stand_in(before):
        raise InvalidArgument("sglang has been imported already;", hint="call install() before that.")
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())


def uninstall() -> None:
    """Undo `install`: the next `import sglang` finds what is installed by that name."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Finder)]
    for name in [name for name, module in sys.modules.items() if is_stand_in(module)]:
        del sys.modules[name]
