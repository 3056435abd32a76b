"""What users of such languages have run into, each as a test with the number it has in the collection of cases."""

from __future__ import annotations

import asyncio
import copy
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

import lmprog
from lmprog import (
    InvalidArgument,
    PromptTooLong,
    ScriptedBackend,
    UnencodableText,
    UnknownParameter,
    UnknownVariable,
    assistant,
    assistant_begin,
    assistant_end,
    function,
    gen,
    select,
    user,
)
from tests.support.language import HeldBackend, counting, error_of, no_threads_left

pytestmark = pytest.mark.timeout(60)


def run(body: Any, backend: Any = None, **options: Any) -> Any:
    return function(body).run(backend=backend or counting(), **options)


def test_case_d01_a_failing_step_surfaces_in_every_read() -> None:
    boom = RuntimeError("boom")
    backend = ScriptedBackend("x", errors={1: boom})

    @function
    def program(s):
        s += "A:" + gen("a")
        time.sleep(0.1)
        s += "B:" + gen("b")

    with no_threads_left():
        state = program.run(backend=backend)
        reads = [lambda: state["a"], lambda: state["b"], state.text, lambda: list(state.text_iter())]
        assert [error_of(read) for read in reads] == [boom] * 4
    note = "".join(boom.__notes__)
    assert "gen('a')" in note
    assert "test_language_cases.py" in note
    assert len(backend.calls) == 1


def test_case_d02_one_bad_row_does_not_lose_the_batch(capsys: pytest.CaptureFixture[str]) -> None:
    too_long = PromptTooLong("The prompt has 9000 tokens; the context has 8192.")

    @function
    def program(s, pattern, text):
        s += text + gen("x", regex=pattern)

    def answer(call: Any) -> Any:
        return too_long if "long" in call.prompt else "a"

    rows = [{"pattern": "(" if i == 2 else "a", "text": "long" if i == 4 else f"t{i}"} for i in range(6)]
    states = program.run_batch((row for row in rows), backend=ScriptedBackend(answer), progress_bar=True)
    assert [type(state.error()) for state in states] == [
        type(None), type(None), InvalidArgument, type(None), PromptTooLong, type(None),
    ]  # fmt: skip
    assert [state["x"] for i, state in enumerate(states) if i not in (2, 4)] == ["a"] * 4
    bar = capsys.readouterr().err
    assert "6run" in bar  # of an iterator: how many there will be is not known
    assert bar.endswith("\n")
    assert program.run_batch([], backend=ScriptedBackend(answer)) == []
    with pytest.raises(InvalidArgument):
        program.run_batch(rows, backend=ScriptedBackend(answer), raise_on_error=True)


def test_case_d03_text_and_messages_agree_when_forking_inside_an_open_turn() -> None:
    found: dict[str, Any] = {}

    @function
    def program(s):
        s += user("P ") + assistant_begin()
        found["open"] = copy.deepcopy(s.messages())
        with s.fork(1) as branches:
            branches += "C" + assistant_end()
        found["child"] = branches[0].messages()
        found["child text"] = branches[0].text()
        s += "parent" + assistant_end()

    state = run(program.function)
    assert found["open"] == [
        {"role": "user", "content": "P "},
        {"role": "assistant", "content": "", "partial": True},
    ]
    assert found["child"] == [{"role": "user", "content": "P "}, {"role": "assistant", "content": "C"}]
    assert state.messages() == [{"role": "user", "content": "P "}, {"role": "assistant", "content": "parent"}]
    for text, messages in ((found["child text"], found["child"]), (state.text(), state.messages())):
        again = run(lambda s, m=messages: [s.role(each["role"], each["content"]) for each in m] and None)
        assert again.text() == text


def test_case_d05_prompt_text_is_literal() -> None:
    values = {"NAME": "n", "[ANSWER]": "v"}
    kept = dict(values)
    texts = ["{name}", "[ANSWER]", "{{gen 'x'}}", "%s", "{% raw %}", "$x", "}", f"{values['NAME']}{values['[ANSWER]']}"]

    @function
    def program(s):
        for text in texts:
            s += text
        s += user("".join(texts)) + gen("x")

    backend = ScriptedBackend("ok")
    assert program.run(backend=backend).text().startswith("".join(texts))
    assert backend.calls[0].prompt.count("".join(texts)) == 2
    assert values == kept


@pytest.mark.parametrize("level", ["gen", "run", "function"])
def test_case_d07_every_parameter_reaches_the_backend(level: str) -> None:
    given: dict[str, Any] = {
        "max_tokens": 9, "min_tokens": 2, "temperature": 0.3, "top_p": 0.8, "top_k": 5, "min_p": 0.1,
        "repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.1, "logit_bias": {3: -1.0},
        "stop": ("\n",), "stop_token_ids": (7,), "stop_regex": "z+", "ignore_eos": True, "seed": 4, "logprobs": True,
        "top_logprobs": 2, "finish": "close",
    }  # fmt: skip
    backend = ScriptedBackend("ok")
    at = {each: given if each == level else {} for each in ("gen", "run", "function")}

    @function(**at["function"])
    def program(s):
        s += gen("x", **at["gen"])

    program.run(backend=backend, **at["run"])
    assert backend.calls[0].sampling.given() == given


def test_case_d07_a_misspelling_is_guessed() -> None:
    attempts = [
        lambda: gen("x", temprature=1),  # type: ignore[call-overload]
        lambda: run(lambda s: None, temprature=1),
        lambda: function(temprature=1),
    ]
    for attempt in attempts:
        with pytest.raises(UnknownParameter, match="did you mean 'temperature'"):
            attempt()


@pytest.mark.parametrize("stops", [("]", ",", '"'), ('"', ",", "]"), (",", '"', "]")])
def test_case_d08_the_stop_that_comes_first_wins_in_any_order(stops: tuple[str, ...]) -> None:
    state = run(lambda s: s.__iadd__('["' + gen("x", stop=stops) + "|"), ScriptedBackend('John", "x]'))
    assert (state["x"], state.text()) == ("John", '["John|')
    assert state.get_meta_info("x")["matched_stop"] == '"'


def test_case_d08_stops_of_many_tokens_at_the_start_and_before_min_tokens() -> None:
    def value(answer: str, **options: Any) -> str:
        found: str = run(lambda s: s.__iadd__(gen("x", **options)), ScriptedBackend(answer))["x"]
        return found

    assert value("It fell when it hit the floor", stop=" when it hit") == "It fell"
    assert value("stop right here", stop="stop") == ""
    assert value("one two three four five six seven two", stop=" two", min_tokens=5) == (
        "one two three four five six seven"
    )


def test_case_d09_variables_from_python_return_values_and_unknown_names() -> None:
    @function
    def program(s):
        s["n_tools"] = 3
        s += gen("x")
        return {"k": 1}

    state = program.run(backend=counting())
    assert (state["n_tools"], state.ret_value) == (3, {"k": 1})
    with pytest.raises(KeyError) as caught:
        _ = state["typo"]
    assert isinstance(caught.value, UnknownVariable)
    assert "n_tools" in str(caught.value)
    assert "x" in str(caught.value)


def test_case_d10_inside_an_event_loop_and_as_async_def() -> None:
    @function
    def plain(s):
        s += gen("x")
        return s["x"]

    @function
    async def awaited(s):
        s += gen("x")
        return await s.aget("x")

    backend = ScriptedBackend("ok", delay=0.05)

    async def main() -> None:
        assert plain.run(backend=backend).ret_value == "ok"
        tasks = [asyncio.ensure_future(awaited.arun(backend=backend)) for _ in range(50)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert [run.ret_value for run in done[1::2]] == ["ok"] * 25
        assert all(isinstance(each, asyncio.CancelledError) for each in done[::2])
        with pytest.raises(lmprog.BlockingRead, match="arun"):
            awaited.run(backend=backend)

    with no_threads_left():
        asyncio.run(main())
    assert backend.open_streams == 0


def test_case_f01_branches_are_isolated() -> None:
    seen: list[list[int]] = []

    @function
    def program(s):
        s["notes"], s["k"] = [], 0
        branches = s.fork(3)
        for i, branch in enumerate(branches):
            branch["notes"].append(i)
            branch["k"] = i + 1
        seen.extend(branch["notes"] for branch in branches)
        branches.end()

    state = program.run(backend=counting())
    assert (state["notes"], state["k"]) == ([], 0)
    assert seen == [[0], [1], [2]]


def test_case_f02_a_ragged_join_keeps_its_alignment() -> None:
    @function
    def program(s):
        s += "root"
        s["p"] = "parent"
        branches = s.fork(3)
        for i, branch in enumerate(branches):
            branch["p"] = i
            if i != 1:
                branch += gen("v")
        branches.join()

    state = program.run(backend=ScriptedBackend(["first", "third"]))
    assert state["v"] == ["first", None, "third"]
    assert state["p"] == [0, 1, 2]
    assert state.text() == "root"


def test_case_s04_select_and_a_constrained_gen_may_differ() -> None:
    """`select` knows the whole choices; a model that goes token by token takes the lure of the first token."""
    backend = ScriptedBackend("skill", scores={"skill": [-0.1, -9.0], "ski": [-0.5, -0.2]})
    state = run(lambda s: s.__iadd__(select("best", ["skill", "ski"]) + gen("step", regex="skill|ski")), backend)
    assert (state["best"], state["step"]) == ("ski", "skill")


def test_case_s05_degenerate_choices() -> None:
    def best(choices: Any, **scores: Any) -> str:
        backend = ScriptedBackend(scores=scores or (lambda call: dict.fromkeys(call.choices, -1.0)))
        found: str = run(lambda s: s.__iadd__("x" + select("v", choices)), backend)["v"]
        return found

    with pytest.raises(InvalidArgument, match="empty"):
        select("v", [])
    with pytest.raises(InvalidArgument, match="choices"):
        select("v", ["a", 3])  # type: ignore[list-item]
    assert best(["x"]) == "x"
    assert best(["a", "a"]) == "a"
    assert best(["", "b"]) in ("", "b")
    assert best(["cat", "catalogue"], cat=[-1.0], catalogue=[-1.0, -0.1]) == "catalogue"
    many = [f"choice {i}" for i in range(5000)]
    assert best(many, **{each: -float(i != 4321) for i, each in enumerate(many)}) == "choice 4321"

    def refuse(call: Any) -> Any:
        raise UnencodableText(f"The model cannot read {call.choices[1]!r}.")

    state = run(lambda s: s.__iadd__(select("v", ["a", "\x04"])), ScriptedBackend(scores=refuse))
    with pytest.raises(ValueError, match=r"'\\x04'"):
        _ = state["v"]


# -- descriptions in the prompt, and objects while they are written -----------------------------------------------


@dataclass
class Person:
    """Somebody in the text."""

    name: str = field(metadata={"description": "as written in the text"})
    age: int = field(default=0, metadata={"description": "in whole years"})


def test_docstrings_and_descriptions_go_into_the_prompt_on_request() -> None:
    @function
    def program(s, is_described):
        s += user("Who is it?" + (f"\n{lmprog.describe(Person)}" if is_described else "")) + assistant(
            gen("x", type=Person)
        )

    backend = ScriptedBackend('{"name": "Ada", "age": 36}')
    assert program.run(True, backend=backend)["x"] == Person("Ada", 36)
    assert program.run(False, backend=backend)["x"] == Person("Ada", 36)
    described, plain = (call.prompt for call in backend.calls)
    for words in ("Somebody in the text.", "as written in the text", "in whole years"):
        assert words in described
        assert words not in plain


def test_objects_while_they_are_written() -> None:
    @function
    def program(s):
        s += gen("x", type=Person)

    backend = HeldBackend()
    state = program.run(backend=backend, stream=True)
    values = state.object_iter("x")
    seen = []
    for word in backend.words('{"name": "Ada Lovelace", "age": 36}'):
        if word not in (' Lovelace",', ' "age":'):  # a name without its value adds nothing
            seen.append(next(values))
    seen += values
    assert seen[:2] == [{}, {"name": "Ada"}]
    assert seen[-1] == {"name": "Ada Lovelace", "age": 36}
    assert lmprog.partial_json('{"name": "Ada Lov') == {"name": "Ada Lov"}
    assert state["x"] == lmprog.from_json(Person, '{"name": "Ada Lovelace", "age": 36}')
    assert lmprog.to_json_schema(Person) == gen("x", type=Person).constraint.source  # type: ignore[union-attr]
