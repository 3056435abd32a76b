"""The `lmprog` command. Each subcommand imports what it needs when it runs, so that `lmprog --help` is instant."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable

from lmprog.errors import LmprogError
from lmprog_runtime.errors import RuntimeFault

_OWN_PARSERS = {
    "run": ("lmprog.run_command", "run a program, once or for each line of a file"),
    "serve": ("lmprog_runtime.launch_server", "serve a model over HTTP: OpenAI's API, the native one, a web page"),
    "chat": ("lmprog.chat_command", "talk to a model in the terminal"),
    "eval": ("lmprog.eval_command", "run a few-shot benchmark: a format that lmprog knows, or a task of your own"),
    "lm-eval": ("lmprog_runtime.harness.command", "run lm-evaluation-harness with lmprog as one of its models"),
    "doctor": ("lmprog_runtime.doctor", "what this machine has, and how fast it is"),
    "bench": ("lmprog.bench_command", "benchmarks: serving, programs, peers; a report with pictures"),
}
"""Commands that parse their own arguments: module with a `main`, and help."""

Command = Callable[[argparse.Namespace], int]


def main(arguments: list[str] | None = None) -> int:
    """Run a subcommand; a mistake is one sentence on stderr and status 1, never a traceback."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if given and given[0] in _OWN_PARSERS:
            own: Callable[[list[str]], int] = importlib.import_module(_OWN_PARSERS[given[0]][0]).main
            return own(given[1:])
        options = _parser().parse_args(given)
        command: Command = options.command
        return command(options)
    except KeyboardInterrupt:
        return 130
    except (LmprogError, RuntimeFault, OSError) as error:
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
    for name, (_, text) in _OWN_PARSERS.items():
        _add(commands, name, _help_of, text)
    return parser


def _help_of(_: argparse.Namespace) -> int:
    raise AssertionError("these commands never reach this parser")


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


def _models(_: argparse.Namespace) -> int:
    from lmprog_runtime.model.hub import list_models

    for entry in list_models():
        print(entry)
    return 0
