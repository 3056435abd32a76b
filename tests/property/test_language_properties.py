"""Random programs against a plain oracle: text, messages, variables and alignment of branches."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lmprog import ScriptedBackend, chat, function, gen
from lmprog.backends.base import ChoiceScore
from lmprog.backends.scripted import _cut
from lmprog.choices import METHODS
from lmprog.sampling import Sampling

SETTINGS = settings(max_examples=60, deadline=None)
NAMES = st.sampled_from(["a", "b", "c"])
TEXTS = st.text(alphabet="xy {}\n", max_size=4)

leaf_ops = st.one_of(
    st.tuples(st.just("text"), TEXTS),
    st.tuples(st.just("gen"), NAMES),
    st.tuples(st.just("set"), NAMES, st.integers(0, 9)),
)


def _compound(inner: Any) -> Any:
    ops = st.lists(inner, max_size=4)
    branches = st.lists(ops, min_size=1, max_size=3)
    return st.one_of(
        leaf_ops,
        st.tuples(st.just("fork"), branches, st.sampled_from(["leave", "gather_variable", "append_text"])),
        st.tuples(st.just("scope"), NAMES, ops),
    )


plain_programs = st.lists(st.recursive(leaf_ops, _compound, max_leaves=12), max_size=6)
turns = st.tuples(st.just("turn"), st.sampled_from(["system", "user", "assistant"]), plain_programs)
chat_programs = st.lists(turns, max_size=4)


def answer_to(prompt: str) -> str:
    """A function of the prompt alone, so that the order of branches does not matter."""
    return f"<{len(prompt)}>"


class Oracle:
    """What a program means, one step after the other."""

    def __init__(self, text: str = "", variables: dict[str, Any] | None = None) -> None:
        self.text, self.variables, self.set_here, self.prompts = text, dict(variables or {}), set[str](), list[str]()

    def run(self, ops: list[Any]) -> None:
        for kind, *details in ops:
            getattr(self, f"do_{kind}")(*details)

    def put(self, name: str, value: Any) -> None:
        self.variables[name] = value
        self.set_here.add(name)

    def do_text(self, text: str) -> None:
        self.text += text

    def do_gen(self, name: str) -> None:
        self.prompts.append(self.text)
        answer = answer_to(self.text)
        self.put(name, answer)
        self.text += answer

    def do_set(self, name: str, value: int) -> None:
        self.put(name, value)

    def do_scope(self, name: str, ops: list[Any]) -> None:
        start = len(self.text)
        self.run(ops)
        self.put(name, self.text[start:])

    def do_turn(self, role: str, ops: list[Any]) -> None:
        self.text += chat.role_begin(role)
        self.run(ops)
        self.text += chat.ROLE_END

    def do_fork(self, branches: list[list[Any]], mode: str) -> None:
        start, children = len(self.text), []
        for ops in branches:
            child = Oracle(self.text, self.variables)
            child.run(ops)
            children.append(child)
            self.prompts += child.prompts
        if mode == "append_text":
            self.text += "".join(child.text[start:] for child in children)
        if mode == "gather_variable":
            for name in {name for child in children for name in child.set_here}:
                self.put(name, [child.variables.get(name) for child in children])


def perform(s: Any, ops: list[Any]) -> None:
    for kind, *details in ops:
        if kind == "text":
            s += details[0]
        elif kind == "gen":
            s += gen(details[0])
        elif kind == "set":
            s[details[0]] = details[1]
        elif kind == "scope":
            with s.var_scope(details[0]):
                perform(s, details[1])
        elif kind == "turn":
            with s.role(details[0]):
                perform(s, details[1])
        else:
            group = s.fork(len(details[0]))
            for branch, inner in zip(group, details[0], strict=True):
                perform(branch, inner)
            if details[1] != "leave":
                group.join(details[1])


program = function(perform)


def backend_for(seed: int) -> ScriptedBackend:
    """Each call reports at once or a little later, so that steps end in any order and on either thread."""
    chance = random.Random(seed)
    return ScriptedBackend(lambda call: answer_to(call.prompt), delay=lambda _: chance.choice([0, 0, 0.0005, 0.001]))


@SETTINGS
@given(plain_programs, st.integers(0, 99), st.booleans())
def test_programs_mean_what_the_oracle_says(ops: list[Any], seed: int, stream: bool) -> None:
    oracle, backend = Oracle(), backend_for(seed)
    oracle.run(ops)
    state = program.run(ops, backend=backend, stream=stream)
    assert state.text() == oracle.text
    assert {name: state[name] for name in state.variables()} == oracle.variables
    assert state.usage.completion_tokens == len(oracle.prompts)
    assert sorted(call.prompt for call in backend.calls) == sorted(oracle.prompts)
    assert "".join(state.text_iter()) == oracle.text
    assert backend.open_streams == 0


@SETTINGS
@given(chat_programs, st.integers(0, 99))
def test_text_is_rendered_from_messages(ops: list[Any], seed: int) -> None:
    oracle = Oracle()
    oracle.run(ops)
    state = program.run(ops, backend=backend_for(seed))
    assert chat.render(state.messages()) == state.text() == oracle.text


branch_sets = st.lists(
    st.lists(st.tuples(NAMES, st.sampled_from(["gen", "set", "fail"])), max_size=4), min_size=1, max_size=5
)


@SETTINGS
@given(branch_sets, st.sampled_from(["keep", "drop"]), st.integers(0, 99))
def test_join_is_always_aligned(branches: list[Any], on_error: str, seed: int) -> None:
    boom = RuntimeError("boom")

    @function
    def joins(s):
        s["a"] = "parent"
        group = s.fork(len(branches))
        for i, (branch, steps) in enumerate(zip(group, branches, strict=True)):
            for name, kind in steps:
                if kind == "set":
                    branch[name] = i
                else:
                    branch += f" {i} {kind}" + gen(name)
        group.join(on_error=on_error)

    chance = random.Random(seed)
    backend = ScriptedBackend(
        lambda call: boom if call.prompt.endswith("fail") else "x", delay=lambda _: chance.choice([0, 0.0005])
    )
    state = joins.run(backend=backend)
    rows: list[Any] = []
    for i, steps in enumerate(branches):
        values: dict[str, Any] = {"a": "parent"}
        values.update({name: i if kind == "set" else "x" for name, kind in steps})
        rows.append(boom if any(kind == "fail" for _, kind in steps) else values)
    if on_error == "drop":
        rows = [row for row in rows if row is not boom]
    for name in {name for steps in branches for name, _ in steps}:
        assert state[name] == [row if row is boom else row.get(name) for row in rows]


@SETTINGS
@given(
    st.text(alphabet="ab ", max_size=24),
    st.lists(st.text(alphabet="ab ", min_size=1, max_size=3), max_size=3),
    st.integers(0, 6),
    st.one_of(st.none(), st.integers(1, 6)),
)
def test_stops_cut_at_the_first_place(answer: str, stops: list[str], min_tokens: int, max_tokens: int | None) -> None:
    cut = _cut(answer, Sampling(stop=tuple(stops), min_tokens=min_tokens, max_tokens=max_tokens))
    assert answer.startswith(cut.text)
    if min_tokens == 0:
        assert not any(stop in cut.text for stop in stops)
    if cut.matched_stop is not None:
        assert answer.startswith(cut.text + str(cut.matched_stop))
        assert cut.matched_stop in stops
    elif cut.finish_reason == "stop":
        assert cut.text == answer


tries = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple), min_size=1, max_size=6, unique=True)


@SETTINGS
@given(tries, st.integers(0, 999))
def test_greedy_selection_equals_a_walk_over_the_trie(paths: list[tuple[int, ...]], seed: int) -> None:
    """Where no choice is a prefix of another, greedy selection is greedy decoding restricted to the choices."""
    paths = [p for p in paths if not any(q != p and q[: len(p)] == p for q in paths)]
    chance = random.Random(seed)
    logprob = {prefix: -chance.random() for path in paths for prefix in (path[: i + 1] for i in range(len(path)))}
    scores = [ChoiceScore(str(p), tuple(logprob[p[: i + 1]] for i in range(len(p))), p) for p in paths]
    walked: tuple[int, ...] = ()
    while walked not in paths:
        following = {p[: len(walked) + 1] for p in paths if p[: len(walked)] == walked}
        walked = max(following, key=logprob.__getitem__)
    values = METHODS["greedy_token_selection"](scores)
    assert paths[values.index(1.0)] == walked
