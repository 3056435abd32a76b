"""Few-shot prompts, tools, reasoning kept apart, and objects that grow while they stream."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmprog import (
    InvalidArgument,
    Reasoning,
    ScriptedBackend,
    Toolbox,
    few_shot,
    few_shot_turns,
    function,
    gen,
    separate_reasoning,
    use_tools,
    user,
)
from lmprog.reasoning import Splitter
from tests.support.language import HeldBackend, counting, error_of, no_threads_left

pytestmark = pytest.mark.timeout(20)


def run(body: Any, backend: ScriptedBackend, **options: Any) -> Any:
    return function(body).run(backend=backend, **options)


# -- few shot -----------------------------------------------------------------------------------------------------

EXAMPLES = [{"q": "1+1", "a": 2}, {"q": "{x}", "a": "%s"}]


def test_few_shot_text() -> None:
    assert few_shot(EXAMPLES, "Q: {q}\nA: {a}\n") == "Q: 1+1\nA: 2\nQ: {x}\nA: %s\n"
    assert few_shot(EXAMPLES, lambda e: f"{e['a']}", separator=", ") == "2, %s"
    assert few_shot([], "{q}") == ""


def test_few_shot_turns() -> None:
    state = run(lambda s: s.__iadd__(few_shot_turns(EXAMPLES, "{q}?", "{a}") + user("3")), ScriptedBackend())
    assert [(m["role"], m["content"]) for m in state.messages()] == [
        ("user", "1+1?"),
        ("assistant", "2"),
        ("user", "{x}?"),
        ("assistant", "%s"),
        ("user", "3"),
    ]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{question}", "has a field 'question'; example 0 has 'q', 'a'"),
        ("{q", "not a format text"),
        ("{}", "not a format text"),
    ],
)
def test_bad_templates(template: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        few_shot(EXAMPLES, template)


# -- tools --------------------------------------------------------------------------------------------------------


@dataclass
class Place:
    city: str


def weather(place: Place, days: Annotated[int, "how many"] = 1) -> str:
    """Says the weather."""
    return f"rain in {place.city} for {days}"


def fail(x: int) -> int:
    return 1 // x


def test_a_call_fits_the_signature_and_runs() -> None:
    answers = [
        '{"name":"weather","arguments":{"place":{"city":"Rome"},"days":3}}',
        '{"name":"fail","arguments":{"x":4}}',
    ]
    backend = ScriptedBackend(answers)
    state = run(lambda s: s.__iadd__(gen("a", tools=[weather, fail]) + gen("b", tools=[weather, fail])), backend)
    assert (state["a"].name, state["a"].arguments, state["a"].function) == (
        "weather",
        {"place": Place("Rome"), "days": 3},
        weather,
    )
    assert (state["a"].run(), state["b"].run()) == ("rain in Rome for 3", 0)
    assert backend.calls[0].constraint is not None
    assert json.loads(backend.calls[0].constraint.source)["anyOf"]
    assert Toolbox([weather, fail]).describe() == (
        "weather: Says the weather.\n"
        "- place (Place)\n"
        "  - city (text)\n"
        "- days (whole number, optional): how many\n"
        "\n"
        "fail\n"
        "- x (whole number)"
    )


def test_loop_runs_tools_until_the_final_answer() -> None:
    answers = [
        '{"name":"weather","arguments":{"place":{"city":"Rome"},"days":1}}',
        '{"name":"fail","arguments":{"x":0}}',
        '{"name":"final_answer","arguments":{"answer":"umbrella"}}',
    ]

    def body(s: Any) -> str:
        s += user("What to take?")
        return use_tools(s, [weather, fail], max_tokens=60)

    backend = ScriptedBackend(answers)
    state = run(body, backend)
    assert state.ret_value == "umbrella"
    said = [m["content"] for m in state.messages()]
    assert said[2] == 'Result of weather: "rain in Rome for 1"'
    assert said[4].startswith("Result of fail: ZeroDivisionError: ")
    assert {call.sampling.max_tokens for call in backend.calls} == {60}


def test_loop_is_bounded() -> None:
    def answer(call: Any) -> str:
        if "weather" in call.constraint.source:
            return '{"name":"weather","arguments":{"place":{"city":"Rome"},"days":1}}'
        return '{"name":"final_answer","arguments":{"answer":"enough"}}'

    backend = ScriptedBackend(answer)
    assert run(lambda s: use_tools(s, [weather], max_calls=3), backend).ret_value == "enough"
    assert len(backend.calls) == 4


@pytest.mark.parametrize("tools", [[], [weather, weather], [3], [lambda x: x], [print], [lambda *a: a], [json.loads]])
def test_bad_tools(tools: Any) -> None:
    with pytest.raises(InvalidArgument):
        gen("x", tools=tools)


# -- reasoning ----------------------------------------------------------------------------------------------------

THOUGHT = "<think>Let me see: 2 < 3.</think>The answer is 5."


@pytest.mark.parametrize(
    ("model_type", "answer"),
    [
        ("qwen3", THOUGHT),
        ("deepseek-r1", THOUGHT.removeprefix("<think>")),
        ("deepseek-r1", THOUGHT),
        (Reasoning("[[", "]]"), "[[Let me see: 2 < 3.]]The answer is 5."),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_are_kept_apart(model_type: Any, answer: str, stream: bool) -> None:
    def body(s: Any) -> None:
        s += "Q: " + separate_reasoning(gen("x"), model_type) + " Next:" + gen("y")

    backend = ScriptedBackend([answer, " ok"], token_delay=0.001)
    state = run(body, backend, stream=stream)
    assert "".join(state.text_iter("x")) == "The answer is 5."
    assert "".join(state.text_iter("x_reasoning_content")) == "Let me see: 2 < 3."
    assert (state["x"], state["x_reasoning_content"]) == ("The answer is 5.", "Let me see: 2 < 3.")
    assert state.text() == "Q: The answer is 5. Next: ok"
    assert backend.calls[1].prompt == "Q: The answer is 5. Next:"
    assert backend.open_streams == 0


def test_thoughts_stream_as_they_come() -> None:
    backend = HeldBackend()
    state = run(lambda s: s.__iadd__(separate_reasoning(gen("x"), "qwen3")), backend, stream=True)
    thoughts, answer, words = (
        state.text_iter("x_reasoning_content"),
        state.text_iter(),
        backend.words("<think>a b</think> c d"),
    )
    assert [(next(words), next(thoughts)) for _ in range(2)] == [("<think>a", "a"), (" b</think>", " b")]
    assert [(next(words), next(answer)) for _ in range(2)] == [(" c", " c"), (" d", " d")]
    assert (list(words), list(thoughts), list(answer), state["x"]) == ([], [], [], " c d")


def test_no_thoughts_and_thoughts_without_end() -> None:
    node = separate_reasoning(gen("x"), "qwen3")
    state = run(lambda s: s.__iadd__(node), ScriptedBackend("Just </think> this."))
    assert (state["x"], state["x_reasoning_content"]) == ("Just </think> this.", "")
    state = run(lambda s: s.__iadd__(node), ScriptedBackend("<think>on and on"))
    assert (state["x"], state["x_reasoning_content"]) == ("", "on and on")


def test_failed_reasoning_leaves_no_stream() -> None:
    boom = RuntimeError("boom")
    backend = counting(errors={1: boom}, delay=0.003)
    with no_threads_left():
        state = run(lambda s: s.__iadd__(separate_reasoning(gen("x"), "qwen3")), backend)
        assert error_of(lambda: state["x_reasoning_content"]) is boom
    assert backend.open_streams == 0
    backend = counting(delay=5)
    with no_threads_left():
        run(lambda s: s.__iadd__(separate_reasoning(gen("x"), "qwen3")), backend).cancel()
    assert backend.open_streams == 0


def test_reasoning_mistakes() -> None:
    with pytest.raises(InvalidArgument, match=r"no reasoning format 'gpt'; it is one of deepseek-r1, qwen3\."):
        separate_reasoning(gen("x"), "gpt")
    with pytest.raises(InvalidArgument, match="one free text"):
        separate_reasoning(gen("x", regex="a"), "qwen3")


@given(st.text(alphabet="<>/thinka ", max_size=40), st.lists(st.integers(0, 40), max_size=6), st.booleans())
def test_splitting_does_not_depend_on_the_pieces(text: str, cuts: list[int], starts_inside: bool) -> None:
    reasoning = Reasoning("<think>", "</think>", starts_inside)
    whole = Splitter(reasoning).push(text, is_last=True)
    splitter, places = Splitter(reasoning), sorted({0, *cuts, len(text)})
    parts = [splitter.push(text[a:b]) for a, b in itertools.pairwise(places)]
    parts.append(splitter.push("", is_last=True))
    assert ("".join(t for t, _ in parts), "".join(a for _, a in parts)) == whole


# -- growing objects ----------------------------------------------------------------------------------------------


def test_objects_grow_while_they_stream() -> None:
    backend = HeldBackend()
    state = run(lambda s: s.__iadd__(gen("x", schema={})), backend, stream=True)
    words, values = backend.words('{"a": [1, 2], "b": "two words"}'), state.object_iter("x")
    seen = []
    for word in words:
        if word != ' "b":':  # a name without its value adds nothing
            seen.append(next(values))
    assert seen == [{}, {"a": [1]}, {"a": [1, 2]}, {"a": [1, 2], "b": "two"}, {"a": [1, 2], "b": "two words"}]
    assert (list(values), state["x"]) == ([], seen[-1])
