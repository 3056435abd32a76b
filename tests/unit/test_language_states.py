"""Text, messages, variables and turns of a state."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

import pytest

import lmprog
from lmprog import (
    IncompleteOutput,
    InvalidArgument,
    Sampling,
    ScriptedBackend,
    State,
    UnknownVariable,
    assistant,
    assistant_begin,
    assistant_end,
    chat,
    function,
    gen,
    role,
    select,
    special,
    system,
    user,
    user_begin,
    user_end,
)
from lmprog.sampling import OF_ONE_CALL
from tests.support.language import PROGRAMS, counting


def run(body: Any, backend: ScriptedBackend | None = None, **options: Any) -> Any:
    return function(body).run(backend=backend or ScriptedBackend("!"), **options)


@pytest.mark.parametrize(
    "text",
    [
        "{name}",
        "[ANSWER]",
        "{{gen 'x'}}",
        "%s",
        "{% raw %}",
        "$x",
        "}",
        "{",
        "\\n",
        "<|im_end|>",
        "a\x00b",
        "\ud83d\ude00",
        f"{ {'k': 1}['k'] }",
    ],
)
def test_prompt_text_is_literal(text: str) -> None:
    name = answer = x = "unchanged"

    def body(s: Any) -> None:
        nonlocal name
        s += text
        s += user(text) + gen("x")

    backend = ScriptedBackend("!")
    assert run(body, backend).text() == text + "<|im_start|>user\n" + text + "<|im_end|>\n!"
    assert backend.calls[0].prompt == text + "<|im_start|>user\n" + text + "<|im_end|>\n"
    assert name == answer == x == "unchanged"


def test_appending_forms() -> None:
    def body(s: Any) -> None:
        s += "a"
        s += ["b", gen("x"), ("c", ["d"])]
        s += "e" + gen() + "f" + ["g"]
        s += ["h"] + gen("y")  # noqa: RUF005 - this form is what is tested
        s += lambda state: "i" + state["x"]
        s += lambda state: state.__iadd__("j")
        s += lambda _: None
        s += ""
        s += []

    assert run(body).text() == "ab!cde!fgh!i!j"


@pytest.mark.parametrize("form", ["call", "method", "with", "marks", "role"])
def test_all_forms_of_turns_are_equal(form: str) -> None:
    def body(s: Any) -> None:
        if form == "call":
            s += system("S") + user("U" + gen("x")) + assistant("A")
        elif form == "method":
            s.system("S")
            s.user("U" + gen("x"))
            s.assistant("A")
        elif form == "with":
            with s.system():
                s += "S"
            with s.user():
                s += "U" + gen("x")
            with s.assistant():
                s += "A"
        elif form == "marks":
            s += lmprog.system_begin() + "S" + lmprog.system_end() + user_begin() + "U"
            s += gen("x")
            s += user_end() + assistant_begin() + "A" + assistant_end()
        else:
            s += role("system", "S") + role("user", ["U", gen("x")])
            s.role("assistant", "A")

    state = run(body)
    expected = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U!"},
        {"role": "assistant", "content": "A"},
    ]
    assert state.messages() == expected
    assert state.text() == chat.render(expected)


def test_empty_turn() -> None:
    assert run(lambda s: s.__iadd__(user())).messages() == [{"role": "user", "content": ""}]


def test_open_turn_is_marked_partial_and_text_agrees() -> None:
    seen: list[Any] = []

    def body(s: Any) -> None:
        s += user("P ")
        s += assistant_begin()
        s += "so far " + gen("x")
        seen.append((s.messages(), s.text()))
        s += assistant_end()
        seen.append((s.messages(), s.text()))

    run(body)
    assert seen[0][0][-1] == {"role": "assistant", "content": "so far !", "partial": True}
    assert seen[1][0][-1] == {"role": "assistant", "content": "so far !"}
    assert all(chat.render(messages) == text for messages, text in seen)


def test_fork_inside_an_open_turn() -> None:
    """A branch's message is only what belongs to that turn; the parent's is its own."""
    states: list[State] = []

    def body(s: Any) -> None:
        s += user("P ")
        s += assistant_begin()
        child = s.fork(1)[0]
        child += "C"
        states.append(child)
        child += assistant_end()
        s += "parent"
        s += assistant_end()

    parent = run(body)
    child = states[0]
    assert child.messages() == [{"role": "user", "content": "P "}, {"role": "assistant", "content": "C"}]
    assert parent.messages() == [{"role": "user", "content": "P "}, {"role": "assistant", "content": "parent"}]
    for state in (parent, child):
        assert chat.render(state.messages()) == state.text()


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.name in {"forked", "scoped"}], ids=lambda p: p.name)
def test_text_of_whole_chats_is_rendered_from_their_messages(program: Any) -> None:
    state = program.run(backend=counting())
    assert chat.render(state.messages()) == state.text()


def test_what_the_backend_saw_is_what_text_says() -> None:
    backend = ScriptedBackend(["one", "two"])
    state = run(lambda s: s.__iadd__("a" + gen() + user("b") + assistant("c" + gen("x"))), backend)
    assert state.text() == backend.calls[-1].prompt + "two" + chat.ROLE_END


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: user_begin() + user_begin(), "A user turn cannot begin inside the user turn"),
        (lambda: user(assistant("x")), "An? assistant turn cannot begin inside the user turn"),
        (lambda: user_end(), "no open user turn to end; open is none"),
        (lambda: user_begin() + assistant_end(), "no open assistant turn to end; open is user"),
    ],
)
def test_turns_that_do_not_nest(wrong: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        run(lambda s: s.__iadd__(wrong()))


def test_special_tokens_are_by_name() -> None:
    assert run(lambda s: s.__iadd__("a" + special("<|x|>") + gen("y"))).text() == "a<|x|>!"


# -- variables ----------------------------------------------------------------------------------------------------


def test_variables_from_python_and_return_value() -> None:
    def body(s: Any) -> dict[str, int]:
        s["n_tools"] = 3
        s += gen("x")
        assert s["n_tools"] == 3
        return {"k": 1}

    state = run(body)
    assert (state["n_tools"], state["x"], state.ret_value, state.variables()) == (3, "!", {"k": 1}, ["n_tools", "x"])
    assert "x" in state
    assert "y" not in state
    state["later"] = 4
    assert state["later"] == 4


def test_unknown_variable_inside_the_program() -> None:
    with pytest.raises(UnknownVariable, match="has no variable 'y'; it has 'x'"):
        run(lambda s: s.__iadd__(gen("x")).__getitem__("y"))


def test_reads_are_never_stale() -> None:
    """Each read gives the value that was set last before it in the program, whatever is still running."""
    seen: list[str] = []

    def body(s: Any) -> None:
        s += gen("x")
        s["x"] = "assigned"
        seen.append(s["x"])
        s += gen("x")
        seen.append(s["x"])
        s += gen("x")
        seen.append(s["x"])

    run(body, ScriptedBackend(["1", "2", "3"], delay=0.005))
    assert seen == ["assigned", "2", "3"]


def test_var_scope() -> None:
    def body(s: Any) -> None:
        s += "before "
        with s.var_scope("scope"):
            s += "a" + gen("x")
            with s.var_scope("inner"):
                s += "b"
        s += " after"

    state = run(body)
    assert (state["scope"], state["inner"], state.text()) == ("a!b", "b", "before a!b after")


def test_copy_is_not_seen_by_the_parent() -> None:
    copies: list[Any] = []

    def body(s: Any) -> None:
        s += "a"
        with s.copy() as scratch:
            scratch += "b" + gen("x")
            copies.append(scratch)
        s += "c"

    state = run(body)
    assert (state.text(), copies[0].text(), copies[0]["x"]) == ("ac", "ab!", "!")
    assert "x" not in state


def test_meta_info() -> None:
    def body(s: Any) -> None:
        s += "one two" + gen("x", max_tokens=2) + select("c", ["a", "b"])
        s["p"] = 1

    state = run(body, ScriptedBackend("a b c", scores={"a": [-1.0, -2.0], "b": -0.5}))
    info = state.get_meta_info("x")
    wanted = {
        "finish_reason": "length",
        "matched_stop": None,
        "is_complete": True,
        "prompt_tokens": 2,
        "completion_tokens": 2,
    }
    assert wanted.items() <= info.items()
    info = state.get_meta_info("c")
    assert (info["choices"], info["scores"], info["logprobs"]) == (("a", "b"), (-1.5, -0.5), ((-1.0, -2.0), (-0.5,)))
    with pytest.raises(UnknownVariable):
        state.get_meta_info("y")
    with pytest.raises(InvalidArgument, match="'p' was not written by a step"):
        state.get_meta_info("p")


def test_stop_text_is_nowhere_in_the_state() -> None:
    state = run(lambda s: s.__iadd__("Name: " + gen("x", stop=["]", ",", '"']) + "."), ScriptedBackend('John", "x]'))
    assert (state["x"], state.text(), state.get_meta_info("x")["matched_stop"]) == ("John", "Name: John.", '"')


def test_typed_output_that_was_cut_has_the_partial_text() -> None:
    state = run(lambda s: s.__iadd__(gen("x", schema={}, max_tokens=1) + "go on"), ScriptedBackend('{"a": 1}'))
    with pytest.raises(IncompleteOutput, match=r"'x' was cut at 5 characters.*raise max_tokens") as first:
        state["x"]
    assert first.value.partial == '{"a":'
    assert state.text() == '{"a":go on'  # the text itself is fine
    with pytest.raises(IncompleteOutput) as second:
        state["x"]
    assert second.value is first.value


def test_typed_output_of_any_type() -> None:
    pytest.importorskip("lmprog.schema")

    @dataclass
    class Person:
        name: str
        born: datetime.date

    answer = '{"name":"Ann","born":"1990-01-02"}'
    state = run(
        lambda s: s.__iadd__(gen("p", type=Person) + gen("n", schema=list[int])), ScriptedBackend([answer, "[1,2]"])
    )
    assert (state["p"], state["n"]) == (Person("Ann", datetime.date(1990, 1, 2)), [1, 2])
    assert state["p"] is state["p"]


def test_value_that_cannot_be_read_names_the_variable() -> None:
    state = run(lambda s: s.__iadd__(gen("x", regex="[a-z]+", dtype=int)), ScriptedBackend("abc"))
    with pytest.raises(ValueError, match="invalid literal") as caught:
        state["x"]
    assert "In reading 'x' from 'abc'" in caught.value.__notes__[0]


# -- records and usage --------------------------------------------------------------------------------------------


def test_usage_rolls_up_over_branches_and_calls() -> None:
    backend = counting()
    for program in PROGRAMS:
        backend.calls.clear()
        state = program.run(backend=backend)
        assert state.usage.completion_tokens == sum(call.kind == "generate" for call in backend.calls)
        assert state.usage.prompt_tokens == sum(len(call.prompt.split()) for call in backend.calls)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_records_are_complete_and_in_order(program: Any) -> None:
    state = program.run(backend=counting(delay=0.001))
    for record in state.record.walk():
        assert record.status == "done"
        assert record.ended >= record.started > 0
        if record.kind not in {"program", "branch"}:
            assert record.location.rpartition(":")[0].endswith("tests/support/language.py")
        for before, after in zip(record.children, record.children[1:], strict=False):
            if record.kind in {"program", "branch"} and after.kind != "program":
                assert before.started <= after.started
    assert [r.name for r in state.record.walk() if r.kind in {"gen", "select"} and r.name] != []


def test_segments_say_where_text_came_from() -> None:
    class Forcing(ScriptedBackend):
        def _generate(self, call: Any, known_words: int) -> Any:
            result = super()._generate(call, known_words)
            return result._replace(meta={"segments": (("forced", "ab"), ("generated", "c"))})

    records = run(lambda s: s.__iadd__("x" + gen("y")), Forcing("abc")).record.children
    assert [record.segments() for record in records] == [[("prompt", "x")], [("forced", "ab"), ("generated", "c")]]
    assert run(lambda s: s.__iadd__(gen("y"))).record.children[0].segments() == [("generated", "!")]


# -- sampling -----------------------------------------------------------------------------------------------------

VALUES: dict[str, tuple[Any, Any, Any]] = {
    "max_tokens": (1, 2, 3), "min_tokens": (1, 2, 3), "temperature": (0.0, 0.5, 1.0), "top_p": (0.1, 0.5, 1.0),
    "top_k": (-1, 2, 3), "min_p": (0.0, 0.2, 0.3), "repetition_penalty": (1.0, 1.2, 1.3),
    "frequency_penalty": (0.0, 1.0, 2.0), "presence_penalty": (0.0, 1.0, 2.0), "logit_bias": ({1: 1.0}, {2: 1.0}, {}),
    "stop": (("a",), ("b",), ("c",)), "stop_token_ids": ((1,), (2,), (3,)), "stop_regex": ("a", "b", "c"),
    "ignore_eos": (False, True, False), "seed": (0, 1, 2), "logprobs": (False, True, False), "top_logprobs": (0, 1, 2),
    "finish": ("close", "close", "close"),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize(
    "levels", ["gen run function backend", "run function backend", "function backend", "backend", ""]
)
def test_precedence_gen_run_function_backend(name: str, levels: str) -> None:
    first, second, third = VALUES[name]
    given = dict(zip(levels.split(), [first, second, third, second], strict=False))
    backend = ScriptedBackend("!", defaults=Sampling(**_if("backend", name, given)))

    @function(**_if("function", name, given))
    def program(s):
        s += gen("x", **_if("gen", name, given))

    program.run(backend=backend, **_if("run", name, given))
    expected = given[levels.split()[0]] if levels else None
    assert getattr(backend.calls[0].sampling, name) == expected


def _if(level: str, name: str, given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[level]} if level in given else {}


def test_every_sampling_parameter_is_in_the_table() -> None:
    assert set(VALUES) == OF_ONE_CALL


def test_heal_and_constraint_reach_the_backend() -> None:
    backend = ScriptedBackend("ab")
    run(lambda s: s.__iadd__(gen("x", regex="[ab]+", heal=False) + gen("y", dtype=str, regex="ab")), backend)
    assert [call.heal for call in backend.calls] == [False, None]
    assert [call.constraint and call.constraint.source for call in backend.calls] == ["[ab]+", "ab"]


# -- programs -----------------------------------------------------------------------------------------------------


def test_default_backend_is_of_the_context() -> None:
    def body(s: Any) -> None:
        s += gen("x")

    program = function(body)
    outer, inner = ScriptedBackend("outer"), ScriptedBackend("inner")
    lmprog.set_default_backend(outer)
    with lmprog.use_backend(inner):
        assert program.run()["x"] == "inner"
        assert lmprog.get_server_info()["calls"] == 1
    assert program()["x"] == "outer"
    lmprog.flush_cache()
    with pytest.raises(InvalidArgument):
        lmprog.set_default_backend("outer")  # type: ignore[arg-type]


def test_call_runs_on_this_state_with_its_own_defaults() -> None:
    @function(temperature=0.5, seed=3)
    def inner(s, word):
        s += word + gen("x")
        return s["x"] * 2

    @function(temperature=0.9, top_p=0.8)
    def outer(s):
        s += "a"
        s["result"] = s.call(inner, word="b")
        s += gen("y")

    backend = ScriptedBackend(["1", "2"])
    state = outer.run(backend=backend, seed=4)
    assert (state.text(), state["result"]) == ("ab12", "11")
    seen = [(c.sampling.temperature, c.sampling.top_p, c.sampling.seed) for c in backend.calls]
    assert seen == [(0.5, 0.8, 4), (0.9, 0.8, 4)]


def test_plain_call_makes_a_child_run_on_the_same_backend() -> None:
    @function
    def inner(s):
        s += "inner" + gen("x")

    @function
    def outer(s):
        s += "outer" + inner()["x"]

    state = outer.run(backend=ScriptedBackend("!"))
    assert state.text() == "outer!"
    assert state.usage.completion_tokens == 1
    assert [child.kind for child in state.record.children] == ["program", "text"]


def test_methods_keyword_only_bind_and_signature() -> None:
    class Agent:
        name = "ann"

        @function(temperature=0)
        def greet(self, s, who: str, *, mark: str = "!") -> int:
            """Say hello."""
            s += f"{self.name} greets {who}{mark}"
            return 5

    backend = ScriptedBackend()
    agent = Agent()
    state = agent.greet.run(who="bob", backend=backend)
    assert (state.text(), state.ret_value) == ("ann greets bob!", 5)
    assert agent.greet.bind(mark="?").run("bob", backend=backend).text() == "ann greets bob?"
    assert agent.greet.bind(who="eve").with_options(backend=backend)().text() == "ann greets eve!"
    assert str(agent.greet.__signature__) == "(who: 'str', *, mark: 'str' = '!') -> 'int'"  # type: ignore[attr-defined]
    assert (agent.greet.__name__, agent.greet.__doc__) == ("greet", "Say hello.")
    with pytest.raises(lmprog.UnknownParameter, match="did you mean 'mark'"):
        agent.greet.bind(marc="?")


def test_stream_thread_sees_the_context_of_its_caller() -> None:
    with lmprog.use_backend(ScriptedBackend("!")):
        assert function(lambda s: s.__iadd__(gen("x"))).run(stream=True)["x"] == "!"


def test_repr_says_where_a_run_stands_and_never_waits() -> None:
    @function
    def program(s):
        s += "a" + gen("x")
        assert repr(s) == "<program 'program': running, 2 steps>"
        branches = s.fork(["p", "q"])
        assert repr(branches) == "<branches 'p', 'q'>"
        assert repr(branches["p"]) == "<program 'program', branch 'p': waiting, 0 steps>"

    state = program.run(backend=ScriptedBackend("x", delay=0.05))
    state.sync()
    assert repr(state) == "<program 'program': done, 3 steps>"
