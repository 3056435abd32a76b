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
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

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


class ToolFormat(NamedTuple):
    name: Literal["hermes", "xml", "mistral", "llama3"]
    opening: str
    closing: str | None  # None: calls go on to the end of the answer
    is_bare: bool = False  # an answer that begins like a call is one, without any opening

    def reader(self, schemas: Schemas) -> Reader:
        return XmlReader(schemas) if self.name == "xml" else JsonReader()

    def new_id(self) -> str:
        """Id of a call; Mistral's templates take nine letters and digits only."""
        alphabet = string.ascii_letters + string.digits
        text = "".join(secrets.choice(alphabet) for _ in range(9 if self.name == "mistral" else 24))
        return text if self.name == "mistral" else f"call_{text}"


HERMES = ToolFormat("hermes", CALL_OPEN, CALL_CLOSE)
XML = ToolFormat("xml", CALL_OPEN, CALL_CLOSE)
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", None)
LLAMA3 = ToolFormat("llama3", "<|python_tag|>", None, is_bare=True)


def format_of(template: str | None) -> ToolFormat:
    """The format that a chat template asks its model for. Hermes where it says nothing: then we ask for that."""
    signs = (("<function=", XML), (CALL_OPEN, HERMES), ("[TOOL_CALLS]", MISTRAL), ("<|python_tag|>", LLAMA3))
    bare = re.search(r'\{\\?"name\\?": .{0,80}\\?"parameters\\?":', template or "")
    return next((known for sign, known in signs if sign in (template or "")), LLAMA3 if bare else HERMES)


class Reader(Protocol):
    """Reads what is between an opening and its closing."""

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

_BETWEEN = r"(?:\[TOOL_CALLS\]|<\|python_tag\|>|[\s,;\[\]}])*"  # two calls, and what closes the first
_ENVELOPE = re.compile(
    _BETWEEN + r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\S)', re.DOTALL
)
_NAMED = re.compile(_BETWEEN + r"([\w.-]+)(?:\[CALL_ID\]\w+)?\[ARGS\]\s*(?=\S)")


class JsonReader:
    """Calls as JSON objects, one after the other or in a list. Arguments are given on as they come."""

    def __init__(self) -> None:
        self._text = ""  # not yet understood
        self._value: _JsonValue | None = None  # the arguments that we are in
        self._has_called = False

    def push(self, text: str) -> list[Part]:
        self._text += text
        parts: list[Part] = []
        while self._text and (self._take_arguments(parts) if self._value else self._take_head(parts)):
            pass
        return parts

    def _take_head(self, parts: list[Part]) -> bool:
        match = _ENVELOPE.match(self._text) or _NAMED.match(self._text)
        if match is None:
            return False
        name = match[1]
        try:
            parts.append(Begin(read_json(name) if name.startswith('"') else name))
        except ValueError:  # a wrong escape: no name, so no call
            return False
        self._text = self._text[match.end() :]
        self._value, self._has_called = _JsonValue(), True
        return True

    def _take_arguments(self, parts: list[Part]) -> bool:
        assert self._value is not None
        is_text = self._text.startswith('"') and self._value.is_new
        if is_text and _JsonValue().push(self._text) is None:
            return False  # arguments inside a text: given on whole, once they are
        end = self._value.push(self._text)
        taken = self._text if end is None else self._text[:end]
        parts.append(_unquoted(taken) if is_text else taken)
        self._text = self._text[len(taken) :]
        if end is None:
            return False
        self._value = None
        return True

    def end(self) -> list[Part] | None:
        if self._value is not None:  # cut
            return [self._text] if self._text else []
        left = self._text.strip()
        try:
            return _whole_calls(left)
        except (ValueError, KeyError, TypeError):
            return [] if self._has_called else None


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


class _JsonValue:
    """Finds the end of one JSON value in pieces of text."""

    def __init__(self) -> None:
        self._depth = 0
        self._kind = ""  # "container", "text" or "scalar", once its first character is known
        self._in_text = self._is_escaped = False

    @property
    def is_new(self) -> bool:
        return not self._kind

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
        if self._in_text:
            self._in_text = self._is_escaped or character != '"'
            self._is_escaped = character == "\\" and not self._is_escaped
        elif character == '"':
            self._in_text = True
            return False
        else:
            self._depth += (character in "{[") - (character in "}]")
        return self._kind != "scalar" and not self._in_text and self._depth == 0


# -- XML ---------------------------------------------------------------------------------------------------------------

# Names without "<", so that a search goes through the text once.
_FUNCTION = re.compile(r"<function=([^<>\s]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^<>\s]+)>\n?(.*?)\n?(?:</parameter>|\Z)", re.DOTALL)


class XmlReader:
    """Calls with a tag for each parameter. Values are texts; the tool's schema says which of them are JSON."""

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
        properties = self._schemas.get(name, {}).get("properties", {})
        given = {key: _value(text, properties.get(key)) for key, text in _PARAMETER.findall(body)}
        return [Begin(name), json.dumps(given, ensure_ascii=False)]


def _value(text: str, schema: Any) -> Any:
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        return read_json(text)
    except ValueError:
        return text
