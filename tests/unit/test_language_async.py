"""Programs under asyncio: `async def`, arun, amap, cancellation, and sync programs inside a running loop."""

from __future__ import annotations

import asyncio
import gc
import resource
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from lmprog import BlockingRead, Cancelled, InvalidArgument, ScriptedBackend, assistant, function, gen, user
from tests.support.language import PROGRAMS, HeldBackend, counting, error_of, no_threads_left, straight

pytestmark = pytest.mark.timeout(60)


def constant(**options: Any) -> ScriptedBackend:
    return ScriptedBackend(" x", **options)


@function
async def chat(s, question):
    s += user(question) + assistant(gen("a"))
    answer = await s.aget("a")
    with s.fork(2) as branches:
        branches += user("more") + assistant(gen("b"))
    await branches
    s += user(" ".join(b["b"] for b in branches)) + assistant(gen("c"))
    await s
    return answer + s["c"]


def test_async_program() -> None:
    async def main() -> Any:
        return await chat.arun(question="x", backend=counting(delay=0.003))

    with no_threads_left():
        state = asyncio.run(main())
    assert (state.ret_value, state["a"], state["c"]) == (" n1 n4", " n1", " n4")


def test_plain_run_of_an_async_program_outside_a_loop() -> None:
    assert chat.run(question="x", backend=counting(delay=0.003)).ret_value == " n1 n4"


def test_run_of_an_async_program_inside_a_loop_names_the_other_form() -> None:
    async def main() -> None:
        with pytest.raises(
            BlockingRead, match=r"chat\.run\(\) cannot wait inside a running event loop; write: await chat\.arun"
        ):
            chat.run(question="x", backend=counting())

    asyncio.run(main())


def test_await_on_the_call_itself() -> None:
    async def main() -> Any:
        return (await chat.with_options(backend=counting())("x")).ret_value

    assert asyncio.run(main()) == " n1 n4"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_sync_run_inside_a_loop_works(program: Any) -> None:
    async def main() -> Any:
        return program.run(backend=constant(delay=0.001)).text()

    assert asyncio.run(main()) == program.run(backend=constant()).text()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_arun_of_sync_programs(program: Any) -> None:
    state = asyncio.run(program.arun(backend=constant(delay=0.001)))
    assert state.text() == program.run(backend=constant()).text()


def test_arun_of_a_sync_program_does_not_block_the_loop() -> None:
    """The call ends only when the loop itself, while the program's thread reads, lets it end."""

    @function
    def reads(s):
        s += gen("a")
        return s["a"]

    async def main() -> Any:
        backend = HeldBackend()
        running = asyncio.ensure_future(reads.arun(backend=backend))
        while backend.sinks.empty():
            await asyncio.sleep(0.001)
        assert list(backend.words("fine")) == ["fine"]
        return (await running).ret_value

    assert asyncio.run(main()) == "fine"


def test_read_that_would_block_the_loop_is_refused_with_the_way_out() -> None:
    @function
    async def wrong(s):
        s += gen("a")
        return s["a"]

    async def main(backend: ScriptedBackend) -> None:
        with pytest.raises(BlockingRead, match="write `await s`"):
            await wrong.arun(backend=backend)

    backend = counting(delay=0.01)
    with no_threads_left():
        asyncio.run(main(backend))
    assert backend.open_streams == 0


def test_ready_values_need_no_await() -> None:
    @function
    async def fine(s):
        s["x"] = 5
        return s["x"], s.text()

    assert fine.run(backend=counting()).ret_value == (5, "")


def test_failures_are_raised_by_reads_and_awaits() -> None:
    boom = RuntimeError("boom")

    @function
    async def lazy(s):
        s += gen("a")

    async def main() -> None:
        with pytest.raises(RuntimeError) as caught:
            await chat.arun(question="x", backend=ScriptedBackend(boom))
        assert caught.value is boom
        state = await lazy.arun(backend=ScriptedBackend(boom))
        assert error_of(lambda: state["a"]) is boom
        with pytest.raises(RuntimeError) as caught:
            await state
        assert caught.value is boom

    asyncio.run(main())


def test_half_of_fifty_runs_cancelled() -> None:
    backend = counting(delay=lambda call: 5 if "bad" in call.prompt else 0.01)

    async def main() -> list[Any]:
        tasks = [
            asyncio.ensure_future(chat.arun(question="bad" if i % 2 else "good", backend=backend)) for i in range(50)
        ]
        await asyncio.sleep(0.02)
        for task in tasks[1::2]:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    with no_threads_left():
        results = asyncio.run(main())
    assert all(isinstance(result, asyncio.CancelledError) for result in results[1::2])
    assert all(result.ret_value for result in results[::2])
    assert backend.open_streams == backend.running == 0


@pytest.mark.parametrize("where", ["body", "settling"])
def test_cancelling_a_sync_program(where: str) -> None:
    backend = counting(delay=5)

    @function
    def reads(s):
        s += gen("a")
        return s["a"] if where == "body" else None

    async def main() -> None:
        task = asyncio.ensure_future(reads.arun(backend=backend))
        await asyncio.sleep(0.03)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    start = time.monotonic()
    with no_threads_left():
        asyncio.run(main())
    assert time.monotonic() - start < 4.5
    assert backend.open_streams == backend.running == 0


def test_streaming_in_a_task() -> None:
    async def main() -> None:
        state = await chat.arun(question="x", backend=counting(delay=0.002), stream=True)
        text = "".join([piece async for piece in state.text_async_iter()])
        assert text == state.text()
        assert [piece async for piece in state.text_async_iter("c")] == [" n4"]
        assert state.ret_value == " n1 n4"
        boom = ValueError("boom")
        failed = await chat.arun(question="x", backend=ScriptedBackend(boom), stream=True)
        with pytest.raises(ValueError, match="boom"):
            [piece async for piece in failed.text_async_iter("a")]

    asyncio.run(main())


def test_amap_in_order_with_errors_in_their_place() -> None:
    def answer(call: Any) -> Any:
        return OSError("down") if "q3" in call.prompt else "fine"

    backend = ScriptedBackend(answer, delay=lambda call: 0.001 * (call.number % 4))

    async def main() -> list[Any]:
        items = ({"question": f"q{i}"} if i != 5 else {"typo": 1} for i in range(12))
        return [run async for run in chat.amap(items, backend=backend, concurrency=4)]

    runs = asyncio.run(main())
    assert [type(run.error()).__name__ for run in runs] == [
        {3: "OSError", 5: "UnknownParameter"}.get(i, "NoneType") for i in range(12)
    ]
    assert backend.open_streams == 0


def test_amap_is_bounded_and_closing_cancels() -> None:
    backend = counting(delay=lambda call: 0.001 if "q0" in call.prompt else 5)

    async def main() -> None:
        with pytest.raises(InvalidArgument, match="concurrency"):
            [run async for run in straight.amap([], concurrency=0)]
        runs = chat.amap([(f"q{i}",) for i in range(1000)], backend=backend, concurrency=5)
        await anext(runs)  # type: ignore[call-overload]
        await runs.aclose()  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    with no_threads_left():
        asyncio.run(main())
    assert backend.peak_running <= 10
    assert backend.open_streams == backend.running == 0


def test_race_and_call() -> None:
    @function
    async def inner(s, word):
        s += word + gen("x")
        return await s.aget("x")

    @function
    async def outer(s):
        s += "a"
        value = await s.call(inner, word="b")
        group = s.fork(3)
        group += gen("v")
        winner = (await group.afirst())[0]
        group.join(on_error="drop")
        s += "end"
        await s
        return value, winner["v"], s["v"]

    backend = counting(delay=lambda call: {1: 0.001, 2: 5, 3: 0.005, 4: 5}[call.number])
    with no_threads_left():
        assert outer.run(backend=backend).ret_value == (" n1", " n3", [" n3"])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read as on Linux")
def test_ten_thousand_runs_on_few_threads_and_in_little_memory() -> None:
    backend = ScriptedBackend("x", delay=0.02)

    @function
    async def program(s, i):
        s += f"{i}" + gen("a")
        s += await s.aget("a") + gen("b")

    async def main() -> tuple[int, int, list[weakref.ref[Any]]]:
        runs = asyncio.gather(*(program.arun(i, backend=backend) for i in range(10_000)))
        await asyncio.sleep(0.05)
        threads = threading.active_count()
        states = await runs
        assert [state["b"] for state in states] == ["x"] * 10_000
        return threads, _resident_bytes(), [weakref.ref(state) for state in states]

    threads_before, bytes_before = threading.active_count(), _resident_bytes()
    with no_threads_left():
        threads, resident, states = asyncio.run(main())
    assert threads <= threads_before + 1
    assert resident - bytes_before < 10_000 * 30_000, "a run that has ended takes 12 kB, its two calls included"
    gc.collect()
    assert not any(state() for state in states), "nothing keeps runs that nobody has"
    assert (len(backend.calls), backend.open_streams) == (20_000, 0)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_cancelled_is_what_a_reader_of_a_cancelled_run_gets() -> None:
    async def main() -> None:
        state = await chat.arun(question="x", backend=counting(delay=5), stream=True)
        await asyncio.sleep(0)
        state.cancel()
        assert isinstance(error_of(state.text), Cancelled)

    with no_threads_left():
        asyncio.run(main())
