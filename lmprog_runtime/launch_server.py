"""`python -m lmprog_runtime.launch_server --model-path MODEL`: the server with the flags that users of SGLang know.

Flags are made from RuntimeConfig and ServerSettings; `lmprog serve MODEL` takes the same ones.
"""

from __future__ import annotations

import argparse
import sys

from lmprog_runtime.errors import RuntimeFault
from lmprog_runtime.server.flags import add_flags, runtime_config, server_settings


def main(arguments: list[str] | None = None) -> int:
    """Serve until told to stop; a mistake is one sentence on stderr and status 1."""
    parser = argparse.ArgumentParser(prog="lmprog serve", description="Serve a model over HTTP.")
    parser.add_argument("served", nargs="?", metavar="MODEL", help="as --model")
    add_flags(parser)
    options = parser.parse_args(arguments)
    options.model = options.served or options.model
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    try:
        from lmprog_runtime.server.launch import serve

        serve(runtime_config(options), server_settings(options))
    except ImportError as error:
        print(f"lmprog: the server needs {error.name}. Run: pip install 'lmprog[server]'", file=sys.stderr)
        return 1
    except (RuntimeFault, ValueError, OSError) as error:
        print(f"lmprog: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
