"""Stand-ins for values that a trace does not know, and the texts that are made with them.

A placeholder is a `str` whose characters are a mark. Whatever Python does with it as text (`+`, f-strings, `join`)
keeps the mark inside the result, where `Marks.split` finds it again. What would need the value raises NotTraceable.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from lmprog.errors import NotTraceable
from lmprog.location import program_line

_TEXT_METHODS = (
    "capitalize", "casefold", "center", "expandtabs", "ljust", "lower", "lstrip", "removeprefix", "removesuffix",
    "replace", "rjust", "rstrip", "strip", "swapcase", "title", "upper", "zfill",
)  # fmt: skip
_NEED_THE_VALUE = (
    "__bool__", "__len__", "__iter__", "__contains__", "__getitem__", "__eq__", "__ne__", "__lt__", "__le__",
    "__gt__", "__ge__", "__hash__", "__int__", "__float__", "__index__", "__complex__", "__mod__", "__mul__",
    "__rmul__", "__sub__", "count", "encode", "endswith", "find", "format", "format_map", "index", "isalnum",
    "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace",
    "istitle", "isupper", "join", "partition", "rfind", "rindex", "rpartition", "rsplit", "split", "splitlines",
    "startswith", "translate",
)  # fmt: skip


class Use(NamedTuple):
    """A value as a text uses it: which, and what is done to it on the way."""

    reference: int
    transforms: tuple[tuple[str, tuple[Any, ...]], ...] = ()  # (method, arguments); "format" has the format spec

    def apply(self, value: Any) -> str:
        for method, arguments in self.transforms:
            value = format(value, *arguments) if method == "format" else getattr(value, method)(*arguments)
        return str(value)


Template = tuple["str | Use", ...]  # a text in pieces


class Marks:
    """The marks of one trace. A random part keeps them apart from any text that the program has."""

    def __init__(self) -> None:
        self._nonce = secrets.token_hex(4)
        self._uses: list[Use] = []
        self._pattern = re.compile(f"\ue000{self._nonce}:([0-9]+)\ue001")

    def placeholder(self, use: Use, what: str) -> Placeholder:
        """what: how messages call the value, such as "the argument 'essay'"."""
        self._uses.append(use)
        placeholder = Placeholder(f"\ue000{self._nonce}:{len(self._uses) - 1}\ue001")
        placeholder.marks, placeholder.use, placeholder.what = self, use, what
        return placeholder

    def split(self, text: str) -> Template:
        """The constant pieces of a text and the uses between them."""
        text = str.__str__(text)
        pieces: list[str | Use] = []
        start = 0
        for match in self._pattern.finditer(text):
            pieces += [text[start : match.start()], self._uses[int(match[1])]]
            start = match.end()
        return tuple(piece for piece in (*pieces, text[start:]) if piece != "")

    def is_constant(self, text: str) -> bool:
        return self._pattern.search(str.__str__(text)) is None


class Placeholder(str):
    """A text that is not known yet."""

    __slots__ = ("marks", "use", "what")
    marks: Marks
    use: Use
    what: str

    def __format__(self, spec: str) -> str:
        return str.__str__(self._with("format", (spec,)) if spec else self)

    def __str__(self) -> str:
        return str.__str__(self)

    def __repr__(self) -> str:
        return f"<{self.what}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse(f".{name}")

    def _with(self, method: str, arguments: tuple[Any, ...]) -> Placeholder:
        changed = Use(self.use.reference, (*self.use.transforms, (method, arguments)))
        return self.marks.placeholder(changed, self.what)

    def _refuse(self, operation: str) -> NoReturn:
        raise NotTraceable(
            f"{program_line()}: {operation} needs the value of {self.what}, which a trace does not know;",
            hint="give the argument a value in trace(...), or run the program instead.",
        )


def _deferred(method: str) -> Callable[..., Placeholder]:
    def call(self: Placeholder, *arguments: Any) -> Placeholder:
        return self._with(method, arguments)

    return call


def _refusing(operation: str) -> Callable[..., NoReturn]:
    def call(self: Placeholder, *_: Any) -> NoReturn:
        self._refuse(operation.strip("_"))

    return call


for _name in _TEXT_METHODS:
    setattr(Placeholder, _name, _deferred(_name))
for _name in _NEED_THE_VALUE:
    setattr(Placeholder, _name, _refusing(_name))
