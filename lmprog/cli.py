"""The `lmprog` command. Each subcommand imports what it needs when it runs, so that `lmprog --help` is instant."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from lmprog.errors import LmprogError, MissingDependency

Command = Callable[[argparse.Namespace], int]


def main(arguments: list[str] | None = None) -> int:
    """Run a subcommand; a mistake is one sentence on stderr and status 1, never a traceback."""
    options = _parser().parse_args(arguments)
    command: Command = options.command
    try:
        return command(options)
    except KeyboardInterrupt:
        return 130
    except (LmprogError, OSError) as error:
        print(f"lmprog: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lmprog", description="Structured programs for language models.")
    parser.set_defaults(command=lambda _: _help(parser))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    demo = _add(commands, "demo", _demo, "run a small program and show what the prefix cache saved")
    demo.add_argument("--model", default="smollm2-135m")
    pull = _add(commands, "pull", _pull, "fetch a model, so that it works offline")
    pull.add_argument("model")
    _add(commands, "models", _models, "list the models on this machine")
    harness = _add(commands, "lm-eval", _lm_eval, "run lm-evaluation-harness with lmprog as one of its models")
    harness.add_argument("arguments", nargs=argparse.REMAINDER, help="what lm_eval takes, such as --model lmprog")
    return parser


def _help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 0


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, command: Command, text: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(command=command)
    return parser


def _demo(options: argparse.Namespace) -> int:
    from lmprog.demo import run_demo

    return run_demo(options.model)


def _pull(options: argparse.Namespace) -> int:
    from lmprog_runtime.model.hub import pull

    files = pull(options.model)
    print(f"{options.model}: {files.directory}")
    return 0


def _lm_eval(options: argparse.Namespace) -> int:
    try:
        from lmprog_runtime.harness.lm_eval_model import run_harness
    except ImportError as error:
        raise MissingDependency(f"{error.name} is not installed.", hint="Run: pip install lm-eval") from error
    run_harness(options.arguments)
    return 0


def _models(_: argparse.Namespace) -> int:
    from lmprog_runtime.model.hub import list_models

    for entry in list_models():
        print(entry)
    return 0
