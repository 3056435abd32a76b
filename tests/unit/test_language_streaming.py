"""Streaming of the whole text and of one variable, from a thread and from a task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lmprog import InvalidArgument, ScriptedBackend, UnknownVariable, assistant, function, gen, select, user
from tests.support.language import PROGRAMS, HeldBackend, counting, no_threads_left

pytestmark = pytest.mark.timeout(20)


@function
def story(s):
    s += user("Tell.") + assistant(gen("story") + " " + gen("title"))
    s["after"] = s["title"].upper()
    s += "end"


def words(**options: Any) -> ScriptedBackend:
    return ScriptedBackend(["once upon a time", "The Title"], **options)


@pytest.mark.parametrize("delays", [{}, {"delay": 0.005}, {"token_delay": 0.002}])
def test_pieces_add_up_to_the_text(delays: dict[str, float]) -> None:
    with no_threads_left():
        state = story.run(backend=words(**delays), stream=True)
        pieces = list(state.text_iter())
        assert "".join(pieces) == state.text()
        assert list(state.text_iter("story")) in (["once", " upon", " a", " time"], ["once upon a time"])
        assert (state["title"], state["after"]) == ("The Title", "THE TITLE")


def test_variable_comes_token_by_token_while_the_program_runs() -> None:
    backend = HeldBackend()
    state = story.run(backend=backend, stream=True)
    for name, text in (("story", "once upon a time"), ("title", "The Title")):
        pieces = state.text_iter(name)
        for word in backend.words(text):
            assert next(pieces) == word
        assert list(pieces) == []


def test_without_stream_the_pieces_are_steps() -> None:
    state = story.run(backend=words())
    assert list(state.text_iter("story")) == ["once upon a time"]
    assert "".join(state.text_iter()) == state.text()


def test_reads_from_outside_wait_for_a_running_body() -> None:
    state = story.run(backend=words(delay=0.01), stream=True)
    assert state["after"] == "THE TITLE"
    state = story.run(backend=words(delay=0.01), stream=True)
    assert state.text().endswith("end")
    state = story.run(backend=words(delay=0.01), stream=True)
    assert state.usage.completion_tokens == 6
    state = story.run(backend=words(delay=0.01), stream=True)
    with pytest.raises(UnknownVariable):
        state["typo"]
    state = story.run(backend=words(delay=0.01), stream=True)
    with pytest.raises(UnknownVariable):
        state.text_iter("typo")


def test_assigned_variables_cannot_be_streamed() -> None:
    state = story.run(backend=words())
    with pytest.raises(InvalidArgument, match="'after' was not written by a step"):
        state.text_iter("after")


def test_select_streams_as_one_piece() -> None:
    @function
    def program(s):
        s += select("x", ["a", "b"])

    assert list(program.run(backend=ScriptedBackend("b"), stream=True).text_iter("x")) == ["b"]


def test_failure_ends_the_stream_with_the_original_error() -> None:
    boom = RuntimeError("boom")
    state = story.run(backend=words(errors={2: boom}, token_delay=0.002), stream=True)
    with pytest.raises(RuntimeError) as caught:
        list(state.text_iter())
    assert caught.value is boom


def test_only_streaming_runs_ask_for_deltas() -> None:
    class Asked(ScriptedBackend):
        def __init__(self) -> None:
            super().__init__("x")
            self.seen: list[bool] = []

        def open_stream(self) -> Any:
            stream = super().open_stream()
            original = stream.generate
            stream.generate = lambda call, sink: (self.seen.append(call.wants_deltas), original(call, sink))[1]  # type: ignore[method-assign]
            return stream

    backend = Asked()
    for stream in (False, True):
        story.run(backend=backend, stream=stream).sync()
    assert backend.seen == [False, False, True, True]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_streaming_changes_nothing(program: Any) -> None:
    plain = program.run(backend=counting())
    streamed = program.run(backend=counting(token_delay=0.0005), stream=True)
    if program.name not in {"forked", "joined", "appended", "scoped", "caller"}:  # calls of branches come in any order
        assert streamed.text() == plain.text()
    assert "".join(streamed.text_iter()) == streamed.text()
    assert len(streamed.text()) == len(plain.text())


def test_async_iteration_with_meta_data() -> None:
    async def main() -> None:
        backend = HeldBackend()
        state = story.run(backend=backend, stream=True)
        pieces = state.text_async_iter("story")
        for word in backend.words("once upon a time"):
            assert await anext(pieces) == word
        assert [piece async for piece in pieces] == []
        pairs = state.text_async_iter("title", return_meta_data=True)
        for word in backend.words("The Title"):
            piece, meta = await anext(pairs)
            assert (piece, meta["prompt_tokens"]) == (word, 0)
        assert "".join([piece async for piece in state.text_async_iter()]) == state.text()
        assert state.get_meta_info("title")["finish_reason"] == "stop"
        with pytest.raises(InvalidArgument, match="return_meta_data needs the variable"):
            async for _ in state.text_async_iter(return_meta_data=True):
                pass

    asyncio.run(main())


def test_branch_text_can_be_streamed_inside_the_program() -> None:
    @function
    def program(s):
        s += "root "
        branch = s.fork(1)[0]
        branch += gen("x")
        branch.text_iter()
        return list(branch.text_iter("x")), "".join(branch.text_iter())

    assert program.run(backend=ScriptedBackend("a b", delay=0.005)).ret_value == (["a b"], "root a b")
