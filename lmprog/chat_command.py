"""`lmprog chat`: a conversation in the terminal, with a model on this machine or behind a server."""

from __future__ import annotations

import argparse
import sys

from lmprog.backends.base import Backend
from lmprog.command_options import backend_of
from lmprog.language import assistant, gen, system, user
from lmprog.program import function
from lmprog.state import State

HELP = "An empty line or Ctrl-D ends the chat, /new begins another one."


def main(arguments: list[str] | None = None) -> int:
    """Read lines, stream answers, until the end of input."""
    parser = argparse.ArgumentParser(
        prog="lmprog chat", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="alias, path or id; ignored with --url")
    parser.add_argument("--url", help="a running server, such as http://127.0.0.1:30000 (key: LMPROG_API_KEY)")
    parser.add_argument("--system", default="You are a helpful assistant.")
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument(
        "--repetition-penalty", type=float, default=1.1, help="1: none; small models repeat themselves without it"
    )
    options = parser.parse_args(arguments)
    backend = backend_of(options)
    try:
        print(HELP, file=sys.stderr)
        while _talk(backend, options):
            pass
    finally:
        backend.close()
    return 0


def _talk(backend: Backend, options: argparse.Namespace) -> bool:
    """One conversation; True when another one shall follow."""
    turns: list[tuple[str, str]] = []
    while line := _read():
        if line == "/new":
            return True
        turns.append((line, _answer(backend, options, turns, line)))
    return False


def _read() -> str:
    try:
        return input("> ").strip()
    except EOFError:
        print()  # the shell's prompt comes on a line of its own
        return ""


@function
def conversation(s: State, opening: str, turns: list[tuple[str, str]], line: str, limits: argparse.Namespace) -> None:
    s += system(opening)
    for question, answer in turns:
        s += user(question) + assistant(answer)
    s += user(line)
    penalty = limits.repetition_penalty
    s += assistant(gen("answer", limits.max_tokens, temperature=limits.temperature, repetition_penalty=penalty))


def _answer(backend: Backend, options: argparse.Namespace, turns: list[tuple[str, str]], line: str) -> str:
    """Prints the answer as it comes."""
    state = conversation.run(options.system, turns, line, options, backend=backend, stream=True)
    for piece in state.text_iter("answer"):
        print(piece, end="", flush=True)
    print()
    return str(state["answer"])
