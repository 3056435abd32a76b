"""Chat turns as token ids, after the model's own Jinja template.

Two ways lead to the same ids. `render` takes complete messages. `opening` and `closing` give the control text around a
turn whose content is not known yet: the template is rendered with placeholders for contents, and the text between them
is what belongs to the turns. In both, only text that the template itself writes can become control tokens: where a
message spells one out, it stays text.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from lmprog_runtime.errors import RequestRefused
from lmprog_runtime.model.files import ModelFiles
from lmprog_runtime.model.template_sandbox import Template
from lmprog_runtime.model.tokenizer import Segment, Tokenizer

Message = Mapping[str, Any]
Roles = tuple[str, ...]

_PRIVATE = range(0xF0000, 0xFF000)
"""Characters that no text means anything by, so that they can stand for something during a rendering."""

_RENDER_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_CONTINUED = "\U000ffff0 "  # with a space, to see whether the template trims contents
_PLACEHOLDER = re.compile("\U000fff00([0-9]+)\U000fff01")


class ChatTemplate:
    """The turns of one model. Thread-safe. Its answers for equal roles are equal and cached.

    `source` None is a model that knows no turns: every method then raises RequestRefused.
    """

    def __init__(self, source: str | None, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._source = source
        self._template = Template(source) if source is not None else None
        self._breaks = _Breaks(tokenizer.special_names)
        self._opening = lru_cache(maxsize=1024)(self._find_opening)
        self._closing = lru_cache(maxsize=1024)(self._find_closing)

    # -- turns as they are written --------------------------------------------------------------------------------

    def opening(self, roles: Roles) -> list[int]:
        """Ids that open the last of `roles` after the turns before it: its marker, and what the template puts first
        (a default system turn). RequestRefused when the template has no place for such a turn."""
        return self._tokenizer.encode_segments(self.opening_segments(roles), is_start=len(roles) == 1)

    def closing(self, roles: Roles) -> list[int]:
        """Ids that close the last of `roles`."""
        return self._tokenizer.encode_segments(self.closing_segments(roles), is_start=False)

    def opening_segments(self, roles: Roles) -> list[Segment]:
        """`opening` before encoding, to be encoded together with the content next to it. Where the template writes text
        beside a content (a space after "[INST]"), only this gives the very ids of `render`."""
        return list(self._opening(roles))

    def closing_segments(self, roles: Roles) -> list[Segment]:
        """`closing` before encoding."""
        return list(self._closing(roles))

    def _find_opening(self, roles: Roles) -> list[Segment]:
        before, now = self._closed(roles[:-1]), self._opened(roles)
        if not now.startswith(before):
            raise RequestRefused(
                f"The model's chat template changes earlier turns when {_list(roles)} follow each other, so turns "
                f"cannot be added one by one; leave out the {roles[-1]!r} turn or the system turn."
            )
        return self._tokenizer.split_specials(now[len(before) :])

    def _find_closing(self, roles: Roles) -> list[Segment]:
        opened = self._opened(roles) + _placeholder(len(roles) - 1)
        return self._tokenizer.split_specials(self._closed(roles)[len(opened) :])

    def _closed(self, roles: Roles) -> str:
        """The text of complete turns, contents as placeholders."""
        if not roles:
            return ""
        try:
            end = self._around_contents(roles)[-1]
        except RequestRefused:  # the template writes such a turn only together with the next one
            end = ""
        return self._opened(roles) + _placeholder(len(roles) - 1) + end

    def _opened(self, roles: Roles) -> str:
        """The text up to the content of the last turn. An answer is taken as it looks once it is history: some
        templates write their last answer in another way, with empty thoughts before it. Where the template cannot
        write these turns at all, an answer opens with the prompt to generate it."""
        count, is_answer = len(roles), roles[-1] == "assistant"
        ways: list[Callable[[], list[str]]] = [
            lambda: self._around_contents(roles)[:count],
            lambda: self._around_contents((*roles, "user"))[:count],
        ]
        if is_answer:
            ways.reverse()
        if is_answer and count > 1:
            ways.append(lambda: self._around_contents(roles[:-1], add_generation_prompt=True))
        refusals = []
        for way in ways:
            try:
                return _with_placeholders(way())
            except RequestRefused as refusal:
                refusals.append(refusal)
        raise refusals[1 if is_answer else 0]  # that of these very roles

    def _around_contents(self, roles: Roles, *, add_generation_prompt: bool = False) -> list[str]:
        """The template's text before, between and after the contents of turns with these roles."""
        messages = [{"role": role, "content": _placeholder(index)} for index, role in enumerate(roles)]
        text = self._render({"messages": messages, "add_generation_prompt": add_generation_prompt}, 0)
        pieces = _PLACEHOLDER.split(text)
        if pieces[1::2] == [str(index) for index in range(len(roles))]:
            return pieces[::2]
        raise RequestRefused(
            f"The model's chat template leaves out, repeats or reorders a turn of {_list(roles)}; use other roles, "
            "such as a user turn in place of a system turn."
        )

    # -- complete messages ----------------------------------------------------------------------------------------

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Ids of a conversation; those of transformers' apply_chat_template where no message spells a control token.

        `continue_final_message` leaves the last message open, `tools` are JSON schemas, `variables` are switches of
        this template ("enable_thinking"). Raises RequestRefused for what the template refuses or has no place for.
        """
        return self._tokenizer.encode_segments(
            self.render_segments(
                messages, add_generation_prompt, continue_final_message, tools=tools, variables=variables
            )
        )

    def render_segments(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[Segment]:
        """`render` before encoding: ids of control tokens, and the literal text between them."""
        _check_messages(messages)
        if continue_final_message and add_generation_prompt:
            raise RequestRefused(
                "add_generation_prompt and continue_final_message exclude each other; set one of them."
            )
        given: dict[str, Any] = dict(self._checked_variables(variables or {}), messages=_without_none(messages))
        if tools:
            given["tools"] = list(tools)
            self._check_takes_tools()
        if continue_final_message:
            given["messages"] = _with_continued_mark(given["messages"])
        broken = self._breaks.apply(given)
        text = self._render({**broken.value, "add_generation_prompt": add_generation_prompt}, broken.length)
        if continue_final_message:
            text = _cut_at_continued_mark(text)
        segments = self._tokenizer.split_specials(text)
        return [broken.restore(segment) if isinstance(segment, str) else segment for segment in segments]

    def _render(self, given: Mapping[str, Any], input_length: int) -> str:
        if self._template is None:
            raise RequestRefused(
                "This model has no chat template, so it knows no turns; write plain text, or use an instruct model."
            )
        defaults = {"tools": None, "documents": None, "add_generation_prompt": False, **self._tokenizer.named}
        return self._template.render({**defaults, **given}, input_length)

    def _checked_variables(self, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        known = (
            sorted(self._template.variables - _RENDER_VARIABLES - set(self._tokenizer.named)) if self._template else []
        )
        for name in variables:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known) or 'none'}."
                raise RequestRefused(f"The model's chat template has no variable {name!r}; {hint}")
        return variables

    @property
    def takes_tools(self) -> bool:
        """Whether the template itself shows tools to the model."""
        return self._template is not None and "tools" in self._template.variables

    def _check_takes_tools(self) -> None:
        if self._template and not self.takes_tools:
            raise RequestRefused(
                "The model's chat template has no place for tools; describe them in a message instead."
            )


def load_chat_template(files: ModelFiles, tokenizer: Tokenizer) -> ChatTemplate:
    """The chat template of a resolved model. ModelUnsupported when it cannot be compiled."""
    return ChatTemplate(files.chat_template, tokenizer)


class _Broken:
    """Template variables in which no text spells a control token, and the way back."""

    def __init__(self, value: dict[str, Any], length: int, originals: Mapping[int, str]) -> None:
        self.value, self.length, self._originals = value, length, originals

    def restore(self, text: str) -> str:
        return text.translate(self._originals)


class _Breaks:
    """Breaks control tokens that are spelled out in messages, by a private character in place of their first one.

    So the template's own text operations work on contents as always, and what it writes itself is told apart after. A
    text that ends in the beginning of a control token is broken too, lest the text after it completes the token.
    """

    def __init__(self, names: Mapping[str, int]) -> None:
        longest_first = sorted(names, key=len, reverse=True)
        beginnings = sorted({name[:end] for name in names for end in range(1, len(name))}, key=len, reverse=True)
        whole, begun = ("|".join(map(re.escape, texts)) or "(?!)" for texts in (longest_first, beginnings))
        self._pattern = re.compile(rf"(?:{whole})|(?:{begun})(?=\s*\Z)")
        self._first_characters = sorted({name[0] for name in names})

    def apply(self, value: dict[str, Any]) -> _Broken:
        texts = list(_strings(value))
        free = (chr(code) for code in _PRIVATE if not any(chr(code) in text for text in texts))
        private = dict(zip(self._first_characters, free, strict=False))
        if len(private) < len(self._first_characters):
            raise RequestRefused("The messages use every character of a private plane of Unicode; remove some.")
        broken: dict[str, Any] = self._replace(value, private)
        originals = {ord(stand_in): character for character, stand_in in private.items()}
        return _Broken(broken, sum(map(len, texts)), originals)

    def _replace(self, value: Any, private: Mapping[str, str]) -> Any:
        if isinstance(value, str):
            return self._break(value, private)
        if isinstance(value, Mapping):
            return {self._replace(key, private): self._replace(item, private) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._replace(item, private) for item in value]
        return value

    def _break(self, text: str, private: Mapping[str, str]) -> str:
        """Again until nothing is left: breaking one token can leave another that overlapped it."""
        while True:
            broken = self._pattern.sub(lambda found: private[found[0][0]] + found[0][1:], text)
            if broken == text:
                return text
            text = broken


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)


def _placeholder(index: int) -> str:
    return f"\U000fff00{index}\U000fff01"


def _with_placeholders(pieces: Sequence[str]) -> str:
    return pieces[0] + "".join(_placeholder(index) + piece for index, piece in enumerate(pieces[1:]))


def _list(roles: Roles) -> str:
    return ", ".join(map(repr, roles))


def _check_messages(messages: Sequence[Message]) -> None:
    if not messages:
        raise RequestRefused("The list of messages is empty; give at least one.")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestRefused(f"messages[{index}] has no role; a message is an object with 'role' and 'content'.")


def _without_none(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """APIs send `"content": null`, which templates would write out; a missing field is what they test for."""
    return [{name: value for name, value in message.items() if value is not None} for message in messages]


def _with_continued_mark(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A mark after the last text of the last message."""
    *before, last = messages
    content = last.get("content")
    if isinstance(content, str):
        return [*before, {**last, "content": content + _CONTINUED}]
    blocks = list(content) if isinstance(content, list) else []
    for index in reversed(range(len(blocks))):
        if isinstance(blocks[index], Mapping) and isinstance(blocks[index].get("text"), str):
            blocks[index] = {**blocks[index], "text": blocks[index]["text"] + _CONTINUED}
            return [*before, {**last, "content": blocks}]
    raise RequestRefused("The final message has no text to continue.")


def _cut_at_continued_mark(text: str) -> str:
    """Up to the mark; a template that trims contents would have trimmed the end of this one, too."""
    at = text.rfind(_CONTINUED[0])
    if at < 0:
        raise RequestRefused("The model's chat template leaves out the final message, so it cannot be continued.")
    return text[:at] if text.startswith(_CONTINUED, at) else text[:at].rstrip()
