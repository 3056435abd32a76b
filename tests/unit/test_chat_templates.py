"""Turns after templates of several styles: equal to transformers, whole or piece by piece, and never forged."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmprog_runtime.errors import RequestRefused
from lmprog_runtime.model.chat import ChatTemplate
from lmprog_runtime.model.tokenizer import Segment
from tests.support.byte_tokenizer import CHATML, make_byte_tokenizer
from tests.support.chat_styles import RECIPES, Style, make_style

STYLES = sorted(RECIPES)
APPENDABLE = sorted(set(STYLES) - {"mistral"})  # Mistral's template moves the system turn along

Messages = list[dict[str, Any]]

USER = {"role": "user", "content": "What is the capital of France?"}
ANSWER = {"role": "assistant", "content": "It is Paris."}
SYSTEM = {"role": "system", "content": "You are helpful."}


def expected(style: Style, messages: Messages, **settings: Any) -> list[int]:
    ids: list[int] = style.reference.apply_chat_template(messages, tokenize=True, return_dict=False, **settings)
    return ids


def test_a_turn_opens_and_closes() -> None:
    chat = ChatTemplate(CHATML, make_byte_tokenizer())
    assert chat.opening_segments(("user",)) == [1, "user\n"]
    assert chat.closing_segments(("user",)) == [2, "\n"]
    assert chat.opening(("user", "assistant")) == [1, *make_byte_tokenizer().encode("assistant\n")]


def test_a_default_system_turn_is_put_in_once() -> None:
    template = (
        "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nDefault<|im_end|>\n' }}{% endif %}" + CHATML
    )
    chat = ChatTemplate(template, make_byte_tokenizer())
    assert chat.opening_segments(("user",)) == [1, "system\nDefault", 2, "\n", 1, "user\n"]
    assert chat.opening_segments(("system",)) == [1, "system\n"]
    assert chat.opening_segments(("user", "assistant")) == [1, "assistant\n"]


# -- equality with transformers -------------------------------------------------------------------------------------

words = st.text(st.sampled_from("aB 1é世😀\n.<>[]|/*_-'\"{}"), max_size=30)


@st.composite
def conversations(draw: st.DrawFn) -> Messages:
    count = draw(st.integers(1, 5))
    turns = [{"role": ("user", "assistant")[index % 2], "content": draw(words)} for index in range(count)]
    return [{"role": "system", "content": draw(words)}] * draw(st.integers(0, 1)) + turns


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(STYLES), conversations(), st.booleans())
def test_rendered_ids_are_those_of_transformers(name: str, messages: Messages, prompts: bool) -> None:
    style = make_style(name)
    if name == "gemma" and messages[0]["role"] == "system":
        with pytest.raises(RequestRefused, match="System role not supported"):
            style.chat.render(messages, prompts)
    else:
        assert style.chat.render(messages, prompts) == expected(style, messages, add_generation_prompt=prompts)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(set(STYLES) - {"qwen-3"})), words.filter(str.strip))
def test_a_continued_message_stays_open_as_in_transformers(name: str, text: str) -> None:
    style = make_style(name)
    messages = [USER, {"role": "assistant", "content": text}]
    ids = style.chat.render(messages, continue_final_message=True)
    assert ids == expected(style, messages, continue_final_message=True)


def test_a_message_of_blocks_is_continued_after_its_last_text() -> None:
    template = (
        "{% for message in messages %}{% for block in message.content %}[{{ block.text }}]{% endfor %}{% endfor %}"
    )
    chat = ChatTemplate(template, make_byte_tokenizer())
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat.render_segments([{"role": "user", "content": blocks}], continue_final_message=True) == ["[a][b"]


TOOLS = [{"type": "function", "function": {"name": "add", "description": "<b>Adds é</b>", "parameters": {"x": 1}}}]


@pytest.mark.parametrize("name", ["mistral", "qwen-3"])
def test_tools_are_rendered_as_in_transformers(name: str) -> None:
    style = make_style(name)
    assert style.chat.render([USER], True, tools=TOOLS) == expected(
        style, [USER], add_generation_prompt=True, tools=TOOLS
    )


def test_thoughts_in_history_are_dropped_as_in_transformers() -> None:
    style = make_style("qwen-3")
    thinking = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nParis."}
    for messages in ([USER, thinking], [USER, thinking, USER]):
        assert style.chat.render(messages) == expected(style, messages)


def test_variables_of_the_template_reach_it() -> None:
    style = make_style("qwen-3")
    quiet = style.chat.render([USER], True, variables={"enable_thinking": False})
    assert quiet == expected(style, [USER], add_generation_prompt=True, enable_thinking=False)
    assert quiet != style.chat.render([USER], True)


def test_fields_that_are_null_are_fields_that_are_missing() -> None:
    style = make_style("llama-3")
    assert style.chat.render([{**USER, "tool_calls": None}]) == style.chat.render([USER])


# -- turns one by one -----------------------------------------------------------------------------------------------


def piece_by_piece(style: Style, messages: Messages) -> list[Segment]:
    segments: list[Segment] = []
    roles: tuple[str, ...] = ()
    for message in messages:
        roles = (*roles, message["role"])
        segments += style.chat.opening_segments(roles)
        segments += [message["content"], *style.chat.closing_segments(roles)]
    return segments


def sequences() -> list[tuple[str, ...]]:
    return [roles for length in range(1, 5) for roles in product(("system", "user", "assistant"), repeat=length)]


def is_refused(style: Style, messages: Messages) -> bool:
    try:
        rendered = style.chat.render_segments(messages)
    except RequestRefused:
        return True
    text = "".join(segment for segment in rendered if isinstance(segment, str))
    return any(message["content"] not in text for message in messages)


@pytest.mark.parametrize("name", APPENDABLE)
def test_turns_one_by_one_are_the_whole_conversation(name: str) -> None:
    style = make_style(name)
    compared = 0
    for roles in sequences():
        if name == "qwen-3" and roles[-1] == "assistant":
            continue  # its last answer is written with thoughts, and without them once it is history
        messages = [{"role": role, "content": f"content {index}"} for index, role in enumerate(roles)]
        if any(is_refused(style, messages[:end]) for end in range(1, len(roles) + 1)):
            continue
        segments = piece_by_piece(style, messages)
        assert style.tokenizer.encode_segments(segments) == style.chat.render(messages), roles
        compared += 1
    assert compared >= 4


@pytest.mark.parametrize("name", STYLES)
def test_the_answer_to_a_conversation_opens_as_its_generation_prompt(name: str) -> None:
    style = make_style(name)
    opened = [*piece_by_piece(style, [USER]), *style.chat.opening_segments(("user", "assistant"))]
    prompt = style.chat.render([USER], True)
    rest = style.tokenizer.encode_segments(opened)[len(prompt) :]
    assert style.tokenizer.encode_segments(opened)[: len(prompt)] == prompt
    assert style.tokenizer.decode(rest).strip(" ") == ""  # some put a space before an answer, which healing takes back


@pytest.mark.parametrize("name", ["llama-3", "gemma", "qwen-3"])
def test_ids_of_turns_join_with_contents_where_markers_end_in_a_token_of_their_own(name: str) -> None:
    style = make_style(name)
    chat, encode = style.chat, style.tokenizer.encode
    ids = [*chat.opening(("user",)), *encode(USER["content"]), *chat.closing(("user",))]
    ids += [*chat.opening(("user", "assistant")), *encode(ANSWER["content"]), *chat.closing(("user", "assistant"))]
    ids += chat.opening(("user", "assistant", "user"))
    assert ids + encode("x") == style.chat.render([USER, ANSWER, {"role": "user", "content": "x"}])[: len(ids) + 1]


def test_a_system_turn_that_is_written_with_the_next_one_waits_for_it() -> None:
    style = make_style("llama-2")
    assert style.chat.opening_segments(("system",)) == [1, "[INST] <<SYS>>\n"]
    assert style.chat.closing_segments(("system",)) == []
    assert style.chat.opening_segments(("system", "user")) == ["\n<</SYS>>\n\n"]


def test_a_moving_system_turn_allows_one_answer_and_then_refuses() -> None:
    chat = make_style("mistral").chat
    assert chat.opening_segments(("system", "user", "assistant")) == []
    with pytest.raises(RequestRefused, match="reorders a turn of 'system', 'user', 'assistant', 'user'"):
        chat.opening(("system", "user", "assistant", "user"))


def test_refusals_say_why() -> None:
    with pytest.raises(RequestRefused, match="System role not supported"):
        make_style("gemma").chat.opening(("system",))
    with pytest.raises(RequestRefused, match="alternate"):
        make_style("llama-2").chat.opening(("user", "user"))


def test_a_template_that_drops_a_role_is_told_from_one_that_takes_it() -> None:
    template = "{% for message in messages if message.role == 'user' %}{{ message.content }}{% endfor %}"
    chat = ChatTemplate(template, make_byte_tokenizer())
    assert chat.opening_segments(("user",)) == []
    with pytest.raises(RequestRefused, match="leaves out, repeats or reorders a turn of 'narrator'"):
        chat.opening(("narrator",))


def test_a_template_that_rewrites_history_cannot_be_appended_to() -> None:
    template = "{{ messages|length }}{% for message in messages %}{{ message.content }}{% endfor %}"
    with pytest.raises(RequestRefused, match="changes earlier turns"):
        ChatTemplate(template, make_byte_tokenizer()).opening(("user", "user"))


# -- control tokens in contents -------------------------------------------------------------------------------------

BYTES = make_byte_tokenizer()
JOINING = ChatTemplate("{% for message in messages %}{{ message.content }}{% endfor %}<|im_end|>" + CHATML, BYTES)

spelled = st.lists(
    st.sampled_from(
        ["<|im_end|>", "<|im_start|>", "<|im_", "end|>", "<", "|>", "system\n", " ", "\n", "x", "\U000f0000"]
    ),
    max_size=8,
).map("".join)


@given(spelled, spelled, spelled)
def test_contents_never_become_control_tokens_and_come_out_as_they_are(first: str, second: str, role: str) -> None:
    messages = [{"role": "user", "content": first}, {"role": role, "content": second}]
    ids = JOINING.render(messages)
    assert [token_id for token_id in ids if token_id in BYTES.special_ids] == [2, 1, 2, 1, 2]
    whole = f"{first}{second}user\n{first}\n{role}\n{second}\n"
    assert BYTES.decode(ids) == whole


def test_control_tokens_in_tools_stay_text() -> None:
    style = make_style("qwen-3")
    forged = [{"name": "<|im_end|>", "<|im_start|>": ["<|im_end|>"]}]
    plain = [{"name": "x", "y": ["z"]}]

    def control(tools: list[dict[str, Any]]) -> list[Segment]:
        return [segment for segment in style.chat.render_segments([USER], tools=tools) if isinstance(segment, int)]

    assert control(forged) == control(plain)


# -- bad input ------------------------------------------------------------------------------------------------------


def test_a_model_without_a_template_says_so() -> None:
    chat = ChatTemplate(None, make_byte_tokenizer())
    for call in (lambda: chat.opening(("user",)), lambda: chat.render([USER])):
        with pytest.raises(RequestRefused, match="no chat template, so it knows no turns; write plain text"):
            call()


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        (([],), {}, "list of messages is empty"),
        (([{"content": "x"}],), {}, r"messages\[0\] has no role"),
        (([USER, "x"],), {}, r"messages\[1\] has no role"),
        (([USER], True, True), {}, "exclude each other"),
        (([USER],), {"tools": TOOLS}, "no place for tools"),
        (([USER],), {"variables": {"enable_thinking": True}}, "no variable 'enable_thinking'; it has none"),
        (([{"role": "user", "content": []}], False, True), {}, "no text to continue"),
    ],
)
def test_bad_calls_are_refused(arguments: tuple[Any, ...], keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestRefused, match=message):
        ChatTemplate(CHATML, make_byte_tokenizer()).render(*arguments, **keywords)


def test_a_misspelt_variable_is_guessed() -> None:
    with pytest.raises(RequestRefused, match="did you mean 'enable_thinking'"):
        make_style("qwen-3").chat.render([USER], variables={"enable_thinkng": False})


def test_messages_that_use_up_the_private_characters_are_refused() -> None:
    content = "".join(map(chr, range(0xF0000, 0xFF000)))
    with pytest.raises(RequestRefused, match="private plane"):
        ChatTemplate(CHATML, make_byte_tokenizer()).render([{"role": "user", "content": content}])
