"""How models write the calls of tools into their text, and reading that as it streams.

Which format a model speaks is seen in its chat template:

    hermes     <tool_call>{"name": ..., "arguments": {...}}</tool_call>, for each call (Hermes, Qwen, SmolLM 3)
    xml        <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call> (Qwen 3 Coder)
    mistral    [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...] or [TOOL_CALLS]NAME[ARGS]{...}
    llama3     {"name": ..., "parameters": {...}} as the whole answer, also after <|python_tag|> and several with `;`
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
MARKERS = (CALL_OPEN, CALL_CLOSE, "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>")
"""Where a model's vocabulary has control tokens of these names, they are read as this text."""

MOST_DEPTH = 128
"""Levels of nesting in JSON that is read here: templates spend several of Python's 1,000 calls on each level."""

Schemas = Mapping[str, Mapping[str, Any]]
"""Parameters of each tool, by its name."""


class Begin(NamedTuple):
    """A call begins; parts of its arguments, as JSON text, follow as plain texts."""

    name: str


Part = Begin | str


class Reader(Protocol):
    """Reads what is between an opening and its closing."""

    @property
    def is_in_text(self) -> bool:
        """Whether what comes next is inside a string of JSON, where a closing is nothing but text."""

    def push(self, text: str) -> list[Part]: ...

    def end(self) -> list[Part] | None:
        """What is left to say of calls; None when the text is no call at all."""


def read_json(text: str) -> Any:
    """A JSON value, also with bare line breaks in its texts. ValueError for what is none or deeper than MOST_DEPTH."""
    try:
        value = json.loads(text, strict=False)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if _is_deep(value):
        raise ValueError("nested too deeply")
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [item for container in level if isinstance(container, dict | list) for item in _items(container)]
    return any(isinstance(item, dict | list) for item in level)


def _items(container: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


# -- JSON --------------------------------------------------------------------------------------------------------------


class JsonReader:
    """Calls as JSON objects, one after the other or in a list. Arguments are given on as they come."""

    def __init__(self) -> None:
        self._head = _Head()
        self._value: _JsonValue | None = None  # the arguments that we are in
        self._is_text = False  # they are JSON inside a text: given on whole, once they are
        self._held: list[str] = []  # since the last call; or of arguments inside a text
        self._has_called = False

    @property
    def is_in_text(self) -> bool:
        return self._head.is_in_text if self._value is None else self._value.is_in_text

    def push(self, text: str) -> list[Part]:
        parts: list[Part] = []
        while text:
            text = self._take_head(text, parts) if self._value is None else self._take_arguments(text, parts)
        return parts

    def _take_head(self, text: str, parts: list[Part]) -> str:
        """What of `text` is left."""
        start = self._head.push(text)
        if start is None:
            self._held.append(text)
            return ""
        parts.append(Begin(self._head.name))
        self._value, self._is_text = _JsonValue(), text[start] == '"'
        self._held, self._has_called = [], True
        return text[start:]

    def _take_arguments(self, text: str, parts: list[Part]) -> str:
        assert self._value is not None
        end = self._value.push(text)
        self._held.append(text[:end])
        if end is not None or not self._is_text:
            taken = "".join(self._held)
            parts.append(_unquoted(taken) if self._is_text else taken)
            self._held = []
        if end is None:
            return ""
        self._head, self._value = _Head(), None
        return text[end:]

    def end(self) -> list[Part] | None:
        left = "".join(self._held)
        if self._value is not None:  # cut
            return [left] if left else []
        try:
            return _whole_calls(left.strip())
        except (ValueError, KeyError, TypeError):
            return [] if self._has_called else None


class _Head:
    """Finds where the arguments of a call begin, in pieces of text. Each character is looked at once."""

    def __init__(self) -> None:
        self.name = ""  # once they have begun
        self._is_lost = False  # keys in another order, or no call: nothing that comes can begin the arguments
        self._is_json = False  # a brace or bracket has come; before it, quotation marks are prose
        self._quotes = _Quotes()
        self._reading = _read_head()
        next(self._reading)

    @property
    def is_in_text(self) -> bool:
        return self._quotes.is_open

    def push(self, text: str) -> int | None:
        """Where in `text` the arguments begin; None while they do not."""
        for at, character in enumerate(text):
            if not self._is_lost and self._ends_at(character):
                return at
            self._is_json = self._is_json or character in "{["
            if self._is_json:
                self._quotes.push(character)
        return None

    def _ends_at(self, character: str) -> bool:
        try:
            self._reading.send(character)
        except StopIteration as found:
            self.name = found.value
            return True
        except ValueError:
            self._is_lost = True
        return False


_Reading = Generator[None, str, str]
"""Is sent one character after the other. ValueError when another one should have come."""


def _read_head() -> _Reading:
    """The name of a call, at the first character of its arguments: `{"name": NAME, "arguments": ` or `NAME[ARGS]`,
    after what closes the call before it."""
    before = ""
    while True:
        character = yield
        if character == "{":
            return (yield from _read_envelope())
        if character == "<":
            yield from _one_of(["<|python_tag|>"], character)
        elif character.isalnum() or character in "_.-":
            name, after = yield from _read_word(character, "_.-")
            if not (before == "[" and name == "TOOL_CALLS" and after == "]"):
                yield from _read_marks(after)
                return name
        elif not character.isspace() and character not in ",;[]}":
            raise ValueError
        before = character


def _read_envelope() -> _Reading:
    yield from _one_of(['"name"'], (yield from _after_space()))
    yield from _one_of([":"], (yield from _after_space()))
    name = yield from _read_text((yield from _after_space()))
    yield from _one_of([","], (yield from _after_space()))
    yield from _one_of(['"arguments"', '"parameters"'], (yield from _after_space()))
    yield from _one_of([":"], (yield from _after_space()))
    yield from _after_space()
    return name


def _read_marks(first: str) -> _Reading:
    """`[ARGS]`, perhaps after a call's id."""
    if (yield from _one_of(["[CALL_ID]", "[ARGS]"], first)) == "[CALL_ID]":
        _, first = yield from _read_word("", "_")
        yield from _one_of(["[ARGS]"], first)
    return (yield from _after_space())


def _one_of(known: Sequence[str], read: str) -> _Reading:
    while read not in known:
        if not any(text.startswith(read) for text in known):
            raise ValueError
        read += yield
    return read


def _after_space() -> _Reading:
    while (character := (yield)).isspace():
        pass
    return character


def _read_word(first: str, marks: str) -> Generator[None, str, tuple[str, str]]:
    """A word of letters, digits and `marks`, and the character after it."""
    letters = [first]
    while (character := (yield)).isalnum() or character in marks:
        letters.append(character)
    if not any(letters):
        raise ValueError
    return "".join(letters), character


def _read_text(first: str) -> _Reading:
    """What a JSON string says."""
    yield from _one_of(['"'], first)
    value, letters = _JsonValue(), [first]
    while value.push(letters[-1]) is None:
        letters.append((yield))
    return str(read_json("".join(letters)))


def _unquoted(text: str) -> str:
    """What a JSON string says; itself where its escapes are wrong, for the client to judge."""
    try:
        return str(read_json(text))
    except ValueError:
        return text


def _whole_calls(text: str) -> list[Part]:
    """Calls whose keys are in another order. ValueError, KeyError or TypeError when the text is none."""
    found = read_json(text)
    parts: list[Part] = []
    for call in found if isinstance(found, list) else [found]:
        given = call.get("arguments", call.get("parameters", {})) if isinstance(call, dict) else None
        parts.append(Begin(_text(call["name"])))
        parts.append(given if isinstance(given, str) else json.dumps(given, ensure_ascii=False))
    return parts


def _text(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError
    return name


class _Quotes:
    """Follows JSON into its strings and out of them."""

    def __init__(self) -> None:
        self.is_open = False
        self._is_escaped = False

    def push(self, character: str) -> None:
        if self.is_open:
            self.is_open = self._is_escaped or character != '"'
            self._is_escaped = character == "\\" and not self._is_escaped
        else:
            self.is_open = character == '"'


class _JsonValue:
    """Finds the end of one JSON value in pieces of text."""

    def __init__(self) -> None:
        self._depth = 0
        self._kind = ""  # "container", "text" or "scalar", once its first character is known
        self._quotes = _Quotes()

    @property
    def is_in_text(self) -> bool:
        return self._quotes.is_open and self._kind != "scalar"

    def push(self, text: str) -> int | None:
        """Length of the part of `text` that belongs to the value, or None while it goes on after it."""
        for at, character in enumerate(text):
            if not self._kind:
                self._kind = "container" if character in "{[" else "text" if character == '"' else "scalar"
            if self._kind == "scalar" and character in ",}] \n;":
                return at
            if self._ends_with(character):
                return at + 1
        return None

    def _ends_with(self, character: str) -> bool:
        if not self._quotes.is_open:
            self._depth += (character in "{[") - (character in "}]")
        self._quotes.push(character)
        return self._kind != "scalar" and not self._quotes.is_open and self._depth == 0


# -- XML ---------------------------------------------------------------------------------------------------------------

# Names without "<", so that a search goes through the text once.
_FUNCTION = re.compile(r"<function=([^<>\s]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^<>\s]+)>\n?(.*?)\n?(?:</parameter>|\Z)", re.DOTALL)


class XmlReader:
    """Calls with a tag for each parameter. Values are texts; the tool's schema says which of them are JSON."""

    is_in_text = False  # values are not quoted: nothing tells a closing in them from the one of the call

    def __init__(self, schemas: Schemas) -> None:
        self._schemas, self._text = schemas, ""

    def push(self, text: str) -> list[Part]:
        self._text += text
        return []

    def end(self) -> list[Part] | None:
        text = self._text.lstrip()
        if _FUNCTION.match(text) is None:
            return None
        return [part for name, body in _FUNCTION.findall(text) for part in self._call(name, body)]

    def _call(self, name: str, body: str) -> list[Part]:
        properties = self._schemas.get(name, {}).get("properties")
        known = properties if isinstance(properties, dict) else {}  # a client's schema is compiled only where it binds
        given = {key: _value(text, known.get(key)) for key, text in _PARAMETER.findall(body)}
        return [Begin(name), json.dumps(given, ensure_ascii=False)]


def _value(text: str, schema: Any) -> Any:
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        return read_json(text)
    except ValueError:
        return text


# -- formats -----------------------------------------------------------------------------------------------------------


class ToolFormat(NamedTuple):
    opening: str
    closing: str | None  # None: calls go on to the end of the answer
    make_reader: Callable[[Schemas], Reader]
    is_bare: bool = False  # an answer that begins like a call is one, without any opening
    id_prefix: str = "call_"
    id_length: int = 24  # of letters and digits after the prefix

    def new_id(self) -> str:
        """Id of a call."""
        alphabet = string.ascii_letters + string.digits
        return self.id_prefix + "".join(secrets.choice(alphabet) for _ in range(self.id_length))


def _json_reader(_: Schemas) -> Reader:
    """JSON says itself which of its values are texts."""
    return JsonReader()


HERMES = ToolFormat(CALL_OPEN, CALL_CLOSE, _json_reader)
XML = ToolFormat(CALL_OPEN, CALL_CLOSE, XmlReader)
# Mistral's templates refuse ids of other lengths.
MISTRAL = ToolFormat("[TOOL_CALLS]", None, _json_reader, id_prefix="", id_length=9)
LLAMA3 = ToolFormat("<|python_tag|>", None, _json_reader, is_bare=True)


def format_of(template: str | None) -> ToolFormat:
    """The format that a chat template asks its model for. Hermes where it says nothing: then we ask for that."""
    signs = (("<function=", XML), (CALL_OPEN, HERMES), ("[TOOL_CALLS]", MISTRAL), ("<|python_tag|>", LLAMA3))
    bare = re.search(r'\{\\?"name\\?": .{0,80}\\?"parameters\\?":', template or "")
    return next((known for sign, known in signs if sign in (template or "")), LLAMA3 if bare else HERMES)
