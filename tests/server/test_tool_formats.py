"""Calls as models of several families write them, read from whole texts and from streams cut anywhere."""

from __future__ import annotations

import json
import re
import sys
from itertools import pairwise
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmprog_runtime.server import tool_formats
from lmprog_runtime.server.protocol import ChatRequest
from lmprog_runtime.server.splitting import Markers, Splitter
from lmprog_runtime.server.tool_formats import HERMES, LLAMA3, MISTRAL, MOST_DEPTH, XML, ToolFormat, format_of
from lmprog_runtime.server.tools import ToolPlan, tool_plan
from tests.server.test_text import saying
from tests.support.byte_tokenizer import CHATML, FIRST_BYTE
from tests.support.tiny_engine import TOKENIZER
from tests.support.tiny_server import Served, serving, tiny_runtime

SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
Calls = list[tuple[str, Any]]


def read(text: str, known: ToolFormat, cuts: list[int], **plan: Any) -> tuple[str, Calls]:
    """Content and calls of a text that comes in pieces."""
    content, calls = read_raw(text, known, cuts, **plan)
    return content, [(name, json.loads(arguments)) for name, arguments in calls]


def read_raw(text: str, known: ToolFormat, cuts: list[int], **plan: Any) -> tuple[str, list[tuple[str, str]]]:
    """The same, with the arguments as they are sent."""
    wanted = ToolPlan(is_shown=True, may_call=True, format=known, schemas={"weather": SCHEMA})._replace(**plan)
    splitter = Splitter(wanted, reasoning=False)
    edges = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    pieces = [piece for a, b in pairwise(edges) for piece in splitter.push(text[a:b])]
    pieces += splitter.end()
    calls: dict[int, list[str]] = {}
    for piece in pieces:
        if piece.kind == "call":
            assert piece.is_first == (piece.call_index not in calls)
            calls.setdefault(piece.call_index, [piece.name, ""])[1] += piece.text
    return "".join(p.text for p in pieces if p.kind == "content"), [(name, text) for name, text in calls.values()]


OSLO: Any = ("weather", {"city": "Oslo", "days": 2})
ROME: Any = ("weather", {"city": 'Ro"me}', "days": 1})
HARD = json.dumps(ROME[1])
EASY = json.dumps(OSLO[1])
SHUT: Any = ("weather", {"city": 'a\\"</tool_call>\\', "</tool_call>": 1})
CLOSING = json.dumps(SHUT[1])

WRITTEN = [
    (HERMES, f'Well.<tool_call>\n{{"name": "weather", "arguments": {EASY}}}\n</tool_call>', "Well.", [OSLO]),
    (HERMES, f'<tool_call>{{"name":"weather","arguments":{HARD}}}</tool_call>\n' * 2, "\n\n", [ROME, ROME]),
    (HERMES, f'<tool_call>{{"arguments": {HARD}, "name": "weather"}}</tool_call>', "", [ROME]),
    (HERMES, f'<tool_call>{{"name": "weather", "arguments": {json.dumps(HARD)}}}</tool_call>', "", [ROME]),
    (HERMES, '<tool_call>{"name": "now"}</tool_call>', "", [("now", {})]),
    (HERMES, f'[{{"name": "weather", "arguments": {EASY}}}]', f'[{{"name": "weather", "arguments": {EASY}}}]', []),
    (HERMES, "a <tool_call> that is none</tool_call>!", "a <tool_call> that is none</tool_call>!", []),
    (HERMES, "a <tool_call> that does not end", "a <tool_call> that does not end", []),
    (HERMES, f'<tool_call>{{"name": "weather", "arguments": {CLOSING}}}</tool_call>.' * 2, "..", [SHUT, SHUT]),
    (HERMES, f'<tool_call>{{"name": "weather", "arguments": {json.dumps(CLOSING)}}}</tool_call>.', ".", [SHUT]),
    (HERMES, f'<tool_call>{{"arguments": {CLOSING}, "name": "weather"}}</tool_call>.', ".", [SHUT]),
    (HERMES, f'<tool_call>[{{"arguments": {CLOSING}, "name": "weather"}}]</tool_call>.', ".", [SHUT]),
    (HERMES, f'<tool_call>weather[ARGS]{CLOSING}</tool_call>.', ".", [SHUT]),
    (HERMES, f'<tool_call>[{{"name": "now", "arguments": {{}}}}, {{"name": "weather", "arguments": {CLOSING}}}]'
             "</tool_call>.", ".", [("now", {}), SHUT]),
    (HERMES, '<tool_call>{"name": "</tool_call>", "arguments": {}}</tool_call>.', ".", [("</tool_call>", {})]),
    (HERMES, '<tool_call>{"name": "now", "arguments": {}}"</tool_call>.', ".", [("now", {})]),
    (HERMES, '<tool_call> it"s none</tool_call>.', '<tool_call> it"s none</tool_call>.', []),
    (XML, "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
          "</function>\n</tool_call>", "", [OSLO]),
    (XML, "<tool_call><function=weather><parameter=city>12</parameter></function></tool_call>", "",
     [("weather", {"city": "12"})]),
    (XML, "<tool_call>\n<function=now>\n</function>\n\n<function=weather><parameter=city>Oslo</parameter></function> "
          "<function=weather>\n<parameter=city>Ro", "", [("now", {}), ("weather", {"city": "Oslo"}),
                                                         ("weather", {"city": "Ro"})]),
    (XML, "<tool_call>x<function=now></function></tool_call>", "<tool_call>x<function=now></function></tool_call>", []),
    (XML, "<tool_call>nothing</tool_call>", "<tool_call>nothing</tool_call>", []),
    (MISTRAL, f'Hm. [TOOL_CALLS][{{"name": "weather", "arguments": {EASY}}}, '
              f'{{"name": "weather", "arguments": {HARD}}}]', "Hm. ", [OSLO, ROME]),
    (MISTRAL, f"[TOOL_CALLS]weather[ARGS]{EASY}[TOOL_CALLS]weather[CALL_ID]123456789[ARGS]{HARD}", "", [OSLO, ROME]),
    (LLAMA3, f'{{"name": "weather", "parameters": {HARD}}}', "", [ROME]),
    (LLAMA3, f'<|python_tag|>{{"name": "weather", "parameters": {EASY}}}; {{"name": "weather", "parameters": {HARD}}}',
     "", [OSLO, ROME]),
    (LLAMA3, f'<|python_tag|>{{"type": "function", "name": "weather", "parameters": {EASY}}}', "", [OSLO]),
    (LLAMA3, '{"answer": 3}', '{"answer": 3}', []),
    (LLAMA3, '{"nam', '{"nam', []),
    (LLAMA3, "Sunny.", "Sunny.", []),
]  # fmt: skip


@pytest.mark.parametrize(("known", "text", "content", "calls"), WRITTEN)
@given(cuts=st.lists(st.integers(0, 10_000), max_size=12))
def test_calls_are_found_wherever_the_stream_is_cut(
    known: ToolFormat, text: str, content: str, calls: Calls, cuts: list[int]
) -> None:
    assert read(text, known, cuts) == (content, calls)
    assert read(text, known, list(range(len(text)))) == (content, calls)


TEXTS = st.text() | st.lists(st.sampled_from(["</tool_call>", '"', "\\", "{", "]"])).map("".join)


@given(
    given_arguments=st.dictionaries(TEXTS, st.recursive(st.none() | st.booleans() | st.integers() | TEXTS,
                                    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=6)),
    cuts=st.lists(st.integers(0, 10_000), max_size=12),
    is_ascii=st.booleans(),
)  # fmt: skip
def test_any_arguments_survive(given_arguments: Any, cuts: list[int], is_ascii: bool) -> None:
    written = json.dumps(given_arguments, ensure_ascii=is_ascii)
    text = f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>'
    assert read(text, HERMES, cuts) == ("", [("f", given_arguments)])
    both = f'[TOOL_CALLS][{{"name": "f", "arguments": {written}}}, {{"name": "g", "arguments": {{}}}}]'
    assert read(both, MISTRAL, cuts) == ("", [("f", given_arguments), ("g", {})])


def test_a_name_with_a_wrong_escape_is_no_call() -> None:
    text = r'<tool_call>{"name": "a\d", "arguments": {}}</tool_call>'
    for cuts in ([], list(range(len(text)))):
        assert read(text, HERMES, cuts) == (text, [])


def test_text_arguments_with_a_wrong_escape_are_given_on_as_written() -> None:
    text = r'<tool_call>{"name": "f", "arguments": "{\q}"}</tool_call>!'
    for cuts in ([], list(range(len(text)))):
        assert read_raw(text, HERMES, cuts) == ("!", [("f", r'"{\q}"')])


@pytest.mark.parametrize("schema", [{}, {"properties": None}, {"properties": []}, {"properties": {"city": True}}])
def test_values_of_a_tool_whose_schema_says_nothing_of_them_are_json_or_text(schema: Any) -> None:
    text = "<tool_call><function=weather><parameter=city>Oslo</parameter><parameter=days>2</parameter></function>"
    assert read(text, XML, [], schemas={"weather": schema}) == ("", [OSLO])


FRAGMENTS = [
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<function=f>", "</function>",
    "<parameter=city>", "</parameter>", '{"name": ', '"f"', r'"a\d"', r'"\u12"', ', "arguments": ', ', "parameters": ',
    '{"name": "f", "arguments": ', r'{"name": "a\d", "parameters": ', '"', "\\", "{", "}", "[", "]",
    ", ", ": ", ";", "7", "NaN", "\n", "f",
]  # fmt: skip


@given(
    text=st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join),
    known=st.sampled_from([HERMES, XML, MISTRAL, LLAMA3]),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
def test_whatever_a_model_writes_is_read(text: str, known: ToolFormat, cuts: list[int]) -> None:
    """No text fails, where it is cut changes nothing, and text without a call comes out as it went in."""
    text = known.opening + text
    content, calls = read_raw(text, known, cuts)
    assert (content, calls) == read_raw(text, known, [])
    assert calls or content == text


class Work:
    """Lines of `tool_formats` that run, and characters that its patterns are given."""

    def __init__(self) -> None:
        self.count = 0

    def of(self, text: str) -> int:
        """For reading a text that comes one character at a time."""
        reader, before = HERMES.make_reader({}), self.count
        previous = sys.gettrace()
        sys.settrace(self._trace)
        try:
            for character in text:
                reader.push(character)
        finally:
            sys.settrace(previous)
        return self.count - before

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        self.count += event == "line"
        return self._trace if frame.f_code.co_filename == tool_formats.__file__ else None

    def counting(self, pattern: re.Pattern[str]) -> Any:
        def match(text: str) -> re.Match[str] | None:
            self.count += len(text)
            return pattern.match(text)

        return SimpleNamespace(match=match)


@pytest.mark.parametrize(
    ("start", "repeated"),
    [
        ('{"name": "f", "arguments": "', "a"),
        ('{"name": "f", "arguments": "', r"\n"),
        ('{"name": "f", "arguments": {"x": "', "a"),
        ('{"name": "f", "arguments": ', "["),
        ('{"name": "f", "arguments": 1', "0"),
        ('{"name": "f", "arguments": {}}', " ]"),
        ("", '{"name": "f", "arguments": "{}"}, '),
        ("", "[TOOL_CALLS]"),
        ("", "<|python_tag|>"),
        ("", " "),
        ("{", " "),
        ('{"name"', " "),
        ('{"name": "', "a"),
        ('{"name": "f", "arguments":', " "),
        ('{"arguments": {"x": "', "a"),
        ("", "a"),
        ("f[CALL_ID]", "1"),
        ("f[ARGS]", " "),
        ("", "prose, "),
    ],
)
def test_twice_the_text_is_twice_the_work(monkeypatch: pytest.MonkeyPatch, start: str, repeated: str) -> None:
    """Nothing is looked at again when more comes: a long answer would hold up every other one."""
    work = Work()
    for name, pattern in [(n, p) for n, p in vars(tool_formats).items() if isinstance(p, re.Pattern)]:
        monkeypatch.setattr(tool_formats, name, work.counting(pattern))
    assert 0 < work.of(start + repeated * 400) < 2.4 * work.of(start + repeated * 200)


DEEP = [open_ * (depth // len(shut)) + close * (depth // len(shut))
        for depth in (MOST_DEPTH + 2, 500, 100_000)
        for open_, shut, close in (("[", "]", "]"), ("[", "]", ""), ('{"a":[', "]}", "]}"))]  # fmt: skip


@pytest.mark.parametrize("deep", DEEP, ids=range(len(DEEP)))
def test_deep_nesting_is_text(deep: str) -> None:
    other_order = f'<tool_call>{{"arguments": {deep}, "name": "f"}}</tool_call>'
    assert read_raw(other_order, HERMES, []) == (other_order, [])
    tagged = f"<tool_call><function=f><parameter=x>{deep}</parameter></function></tool_call>"
    assert read(tagged, XML, []) == ("", [("f", {"x": deep})])
    as_they_come = f'<tool_call>{{"name": "f", "arguments": {{"a": {deep}}}}}</tool_call>'
    content, calls = read_raw(as_they_come, HERMES, [])
    assert content == ""
    assert calls[0][1].startswith(f'{{"a": {deep}')


def test_nesting_up_to_the_bound_is_read() -> None:
    nested = "[" * (MOST_DEPTH - 1) + "]" * (MOST_DEPTH - 1)
    tagged = f"<tool_call><function=f><parameter=x>{nested}</parameter></function></tool_call>"
    assert read(tagged, XML, []) == ("", [("f", {"x": json.loads(nested)})])


def test_arguments_are_given_on_as_they_come() -> None:
    splitter = Splitter(ToolPlan(is_shown=True, may_call=True), reasoning=False)
    assert splitter.push('<tool_call>{"name": "weather", "arg') == []
    first, second = splitter.push('uments": {"city"')
    assert (first.name, first.is_first, second.text) == ("weather", True, '{"city"')
    (third,) = splitter.push(': "Os')
    assert third.text == ': "Os'
    assert [piece.text for piece in splitter.end()] == []


def test_only_one_call_when_parallel_calls_are_not_wanted() -> None:
    text = f'<tool_call>{{"name": "weather", "arguments": {EASY}}}</tool_call>' * 3
    assert read(text, HERMES, [], only_one=True) == ("", [OSLO])
    request = ChatRequest(model="m", messages=[{"role": "user", "content": "x"}], tools=[TOOL])
    assert not tool_plan(request).only_one
    assert tool_plan(request.model_copy(update={"parallel_tool_calls": False})).only_one


@pytest.mark.parametrize(
    ("template", "known"),
    [
        (None, HERMES),
        (CHATML, HERMES),
        ("{% if tools %}<tools></tools> within <tool_call></tool_call>", HERMES),
        ("<tool_call>\n<function=example>", XML),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", MISTRAL),
        ("<|python_tag|>", LLAMA3),
        ("""'Respond in the format {"name": function name, "parameters": dictionary of argument name}.'""", LLAMA3),
    ],
)
def test_the_format_is_seen_in_the_template(template: str | None, known: ToolFormat) -> None:
    assert format_of(template) == known


OWN = ToolFormat("<call>", "</call>", HERMES.make_reader, id_prefix="own-", id_length=5)
IN_OWN: Any = (OWN, f'So <call>{{"name": "weather", "arguments": {EASY}}}</call>.', "So .", [OSLO])


@pytest.mark.parametrize(
    ("known", "ids"),
    [(HERMES, "call_[A-Za-z0-9]{24}"), (XML, "call_[A-Za-z0-9]{24}"), (LLAMA3, "call_[A-Za-z0-9]{24}"),
     (MISTRAL, "[A-Za-z0-9]{9}"), (OWN, "own-[A-Za-z0-9]{5}")],
)  # fmt: skip
def test_calls_have_ids_of_their_format(known: ToolFormat, ids: str) -> None:
    """Also where the call is forced, and so written as JSON in whatever format."""
    asked = ChatRequest.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [TOOL], "tool_choice": "required"}
    )
    forced = Splitter(tool_plan(asked, known), reasoning=False).push(f'{{"name": "weather", "arguments": {EASY}}}')
    free = Splitter(tool_plan(asked.model_copy(update={"tool_choice": "auto"}), known), reasoning=False)
    written = next(text for it, text, _, calls in [*WRITTEN, IN_OWN] if it is known and calls)
    for pieces in (forced, [*free.push(written), *free.end()]):
        assert all(re.fullmatch(ids, piece.call_id) for piece in pieces if piece.kind == "call")
        assert any(piece.kind == "call" for piece in pieces)


def test_a_format_is_what_its_fields_say() -> None:
    _, text, content, calls = IN_OWN
    assert read(text, OWN, list(range(len(text)))) == (content, calls)


def test_control_tokens_that_mark_calls_are_read() -> None:
    """Decoding leaves control tokens out; those that mark calls are put back where they stood."""

    class Named:
        special_names: Any = {"[TOOL_CALLS]": 0, "[ARGS]": 1}  # noqa: RUF012

        def decode_bytes(self, ids: list[int]) -> bytes:
            return TOKENIZER.decode_bytes([i for i in ids if i > 1])

    def encoded(text: str) -> list[int]:
        return TOKENIZER.encode(text)

    ids = [*encoded("Hé "), 0, *encoded("f"), 1, *encoded('{"a": "é"}')]
    text = 'Hé f{"a": "é"}'
    assert Markers(Named()).push(text, ids) == 'Hé [TOOL_CALLS]f[ARGS]{"a": "é"}'  # type: ignore[arg-type]
    for step in (1, 2, 5):
        markers, found, shown = Markers(Named()), "", 0  # type: ignore[arg-type]
        for at in range(0, len(ids), step):
            so_far = Named().decode_bytes(ids[: at + step]).decode(errors="ignore")
            found += markers.push(so_far[shown:], ids[at : at + step])
            shown = len(so_far)
        assert found == 'Hé [TOOL_CALLS]f[ARGS]{"a": "é"}'


# -- over HTTP -------------------------------------------------------------------------------------------------------

SHOWS_TOOLS = CHATML.replace(
    "message['content'] +", "message['content'] + ((message.tool_calls or tools or []) | tojson) +"
)


def test_parallel_calls_over_http_whole_and_streamed(server: Served) -> None:
    text = f'Two.<tool_call>{{"name": "weather", "arguments": {EASY}}}</tool_call>'
    text += f'<tool_call>{{"name": "weather", "arguments": {HARD}}}</tool_call>'
    asked: Any = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "tools": [TOOL], "max_tokens": 400}
    prompt = server.ok("/v1/chat/completions", **{**asked, "max_tokens": 1})["usage"]["prompt_tokens"]
    with saying(server, *TOKENIZER.encode(text), prompt_length=prompt):
        whole = server.openai.chat.completions.create(**asked, temperature=0).choices[0]
        chunks = list(server.openai.chat.completions.create(**asked, temperature=0, stream=True))
        flat = {"type": "function", **TOOL["function"]}
        answer = server.ok("/v1/responses", model="tiny", input="x", tools=[flat], temperature=0, max_output_tokens=400)
    assert (whole.message.content, whole.finish_reason) == ("Two.", "tool_calls")
    found = [(c.function.name, json.loads(c.function.arguments)) for c in whole.message.tool_calls or []]
    assert found == [OSLO, ROME]
    assert len({call.id for call in whole.message.tool_calls or []}) == 2
    calls: dict[int, str] = {}
    for chunk in chunks:
        for part in chunk.choices[0].delta.tool_calls or []:
            calls[part.index] = calls.get(part.index, "") + (part.function.arguments or "")
    assert [json.loads(text) for text in calls.values()] == [OSLO[1], ROME[1]]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert [item["type"] for item in answer["output"]] == ["message", "function_call", "function_call"]


def test_a_required_list_of_calls(server: Served) -> None:
    """parallel_tool_calls with a required call: at least one, and each follows its schema."""
    other = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
    sizes = set()
    goes_on = {str(FIRST_BYTE + ord("]")): -100, str(FIRST_BYTE + ord('"')): 5}
    for seed in range(6):
        body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "tools": [TOOL, other]}
        more = {"tool_choice": "required", "parallel_tool_calls": True, "max_tokens": 3000, "seed": seed}
        more["logit_bias"] = goes_on
        (choice,) = server.ok("/v1/chat/completions", **body, **more)["choices"]
        calls = choice["message"]["tool_calls"]
        sizes.add(len(calls))
        if choice["finish_reason"] == "tool_calls":
            assert all(json.loads(c["function"]["arguments"]).keys() <= {"city", "days"} for c in calls)
            assert {c["function"]["name"] for c in calls} <= {"weather", "now"}
    assert max(sizes) == 16


def test_templates_get_arguments_as_values() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": EASY}}
    cut = {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Os'}}
    with serving(tiny_runtime(template=SHOWS_TOOLS)) as server:
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call, cut]}]
        ids = server.ok("/tokenize", messages=messages)["tokens"]
        text = TOKENIZER.decode_bytes(ids).decode()
    assert f'"arguments": {EASY}' in text
    assert '"arguments": "{\\"city\\": \\"Os"' in text


def test_templates_get_arguments_that_are_nested_too_deeply_as_text() -> None:
    def written(server: Served, arguments: str) -> str:
        call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        return TOKENIZER.decode_bytes(server.ok("/tokenize", messages=messages)["tokens"]).decode()

    with serving(tiny_runtime(template=SHOWS_TOOLS)) as server:
        for deep in DEEP:
            assert f'"arguments": {json.dumps(deep)}' in written(server, deep)
        nested = "[" * MOST_DEPTH + "]" * MOST_DEPTH
        assert f'"arguments": {nested}' in written(server, nested)


def test_strict_tools_follow_their_schemas_in_the_middle_of_text(server: Served) -> None:
    """tool_choice is "auto": the model says what it likes, but a call that it begins satisfies the tool's schema."""
    strict = {"type": "function", "function": {**TOOL["function"], "strict": True}}
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "tools": [strict], "temperature": 0}
    prompt = server.ok("/v1/chat/completions", **body, max_tokens=1)["usage"]["prompt_tokens"]
    with saying(server, *TOKENIZER.encode("Well.<tool_call> nonsense "), prompt_length=prompt):
        (choice,) = server.ok("/v1/chat/completions", **body, max_tokens=600, ignore_eos=True)["choices"]
    assert choice["message"]["content"] == "Well."
    call = choice["message"]["tool_calls"][0]["function"]
    assert call["name"] == "weather"
    plain = {**body, "tools": [TOOL], "max_tokens": 600}
    with saying(server, *TOKENIZER.encode("Well.<tool_call> nonsense "), prompt_length=prompt):
        assert "tool_calls" not in server.ok("/v1/chat/completions", **plain)["choices"][0]["message"]


def test_structural_tags_as_a_response_format(server: Served) -> None:
    structure = {"begin": "<n>", "schema": {"type": "boolean"}, "end": "</n>"}
    tag = {"type": "structural_tag", "structures": [structure], "triggers": ["<n"]}
    body: Any = {"model": "tiny", "temperature": 0, "response_format": tag}
    with saying(server, *TOKENIZER.encode("So <n"), prompt_length=3):
        text = server.ok("/v1/completions", prompt="abc", **body, max_tokens=20)["choices"][0]["text"]
    assert text.startswith(("So <n>true</n>", "So <n>false</n>"))
    for wrong in ({"triggers": None}, {"type": "text"}, {"json_schema": {"name": "x", "schema": {}}}):
        assert "response_format" in server.refused("/v1/completions", prompt="a", model="tiny",
                                                   response_format={**tag, **wrong})  # fmt: skip
    empty = {**tag, "triggers": ["<other>"]}
    assert "trigger" in server.refused("/v1/completions", prompt="a", model="tiny", response_format=empty)
