"""Programs over HTTP and on this machine give the same tokens, scores, errors."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lmprog import Backend, Runtime, RuntimeEndpoint, State, assistant, function, gen, select, special, system, user
from lmprog.errors import (
    BackendError,
    BackendUnavailable,
    Cancelled,
    ConstraintUnsupported,
    EngineFailed,
    PromptTooLong,
    RequestRefused,
    UnencodableText,
)
from lmprog.sampling import OF_ONE_CALL
from lmprog_runtime.request import SamplingParams
from lmprog_runtime.runtime import LocalRuntime
from tests.support.byte_tokenizer import FIRST_BYTE
from tests.support.tiny_engine import TINY_VOCAB
from tests.support.tiny_server import CONTEXT, Served, eventually, serving, tiny_runtime

ASCII_ONLY = {token_id: -100.0 for token_id in range(TINY_VOCAB) if not 32 <= token_id - FIRST_BYTE < 127}
Both = tuple[Backend, Backend]


@pytest.fixture
def both(server: Served) -> Iterator[Both]:
    """The same weights, in this process and behind HTTP."""
    with RuntimeEndpoint(server.url) as there, Runtime.over(tiny_runtime()) as here:
        yield here, there


@function
def conversation(s: State) -> None:
    s += system("You are brief.")
    for number in range(3):
        s += user(f"Question {number}: ")
        s += assistant(gen(f"a{number}", max_tokens=9, temperature=1.3, seed=number))
    s += user("Which?") + assistant("It is " + select("which", ["red", "reddish", "blue"]))


@function
def forks(s: State) -> None:
    s += "Here is a prefix: http:"
    branches = s.fork(3)
    for number, branch in enumerate(branches):
        branch += "//" + gen("x", max_tokens=8, temperature=1.0, seed=number, logit_bias=ASCII_ONLY) + " and "
        branch += gen("y", max_tokens=4, temperature=0, stop="e")
    s += "".join(branch["x"] for branch in branches) + gen("end", max_tokens=5, temperature=0, ignore_eos=True)


@function
def constrained(s: State) -> None:
    s += "A number: " + gen("n", regex="[0-9]{3}-[a-f]+!", max_tokens=30, seed=1)
    s += " a choice: " + gen("c", choices=["yes", "yesterday", "no"])
    s += special("<|im_end|>") + " done  " + gen("t", max_tokens=6, temperature=0, logprobs=True, top_logprobs=2)


@function
def scored(s: State) -> None:
    s += "The capital of France is"
    s += select("city", [" Paris", " Lyon", " Pariser"])
    s += gen("rest", max_tokens=4, temperature=0, ignore_eos=True)


def _facts(program: Any, backend: Backend, names: list[str]) -> dict[str, Any]:
    state = program.run(backend=backend)
    facts: dict[str, Any] = {"text": state.text()}
    for name in names:
        meta = dict(state.get_meta_info(name))
        for volatile in ("queue", "first_token", "total", "cached_tokens"):
            meta.pop(volatile, None)
        facts[name] = (state[name], meta)
    return facts


@pytest.mark.parametrize(
    ("program", "names"),
    [
        (conversation, ["a0", "a1", "a2", "which"]),
        (forks, ["end"]),
        (constrained, ["n", "c", "t"]),
        (scored, ["city", "rest"]),
    ],
    ids=["conversation", "forks", "constraints", "select"],
)
def test_results_are_those_of_the_runtime_in_this_process(both: Both, program: Any, names: list[str]) -> None:
    here, there = both
    assert _facts(program, there, names) == _facts(program, here, names)


def test_streams(both: Both) -> None:
    here, there = both
    texts = ["".join(conversation.run(backend=backend, stream=True).text_iter()) for backend in both]
    assert texts[0] == texts[1] == conversation.run(backend=there).text()
    pieces = list(conversation.run(backend=there, stream=True).text_iter("a1"))
    assert "".join(pieces) == conversation.run(backend=here)["a1"]


def test_no_generated_token_is_computed_twice(both: Both) -> None:
    state = conversation.run(backend=both[1])
    first, second = (state.get_meta_info(name) for name in ("a0", "a1"))
    assert second["cached_tokens"] >= first["prompt_tokens"] + first["completion_tokens"] - 1


def _error(backend: Backend, write: Callable[[State], None]) -> BaseException:
    @function
    def program(s: State) -> None:
        write(s)

    with pytest.raises(Exception) as caught:  # noqa: PT011 - the classes are compared by the caller
        program.run(backend=backend)["x"]
    return caught.value


def _write(*pieces: Any) -> Callable[[State], None]:
    def write(s: State) -> None:
        for piece in pieces:
            s += piece

    return write


@pytest.mark.parametrize(
    ("write", "kind"),
    [
        (_write("x" * (CONTEXT + 1), gen("x", max_tokens=4)), PromptTooLong),
        (_write("a\ud800", gen("x")), UnencodableText),
        (_write("a", gen("x", regex=r"(a)\1")), ConstraintUnsupported),
        (_write("a", gen("x", logit_bias={99999: 1.0})), RequestRefused),
    ],
    ids=["too long", "surrogate", "regex", "range"],
)
def test_errors(both: Both, write: Callable[[State], None], kind: type[BaseException]) -> None:
    here, there = (_error(backend, write) for backend in both)
    assert isinstance(there, kind)
    assert type(there) is type(here)
    assert str(there) == str(here)


def test_every_sampling_parameter_arrives(server: Served) -> None:
    """What `supports` promises reaches the engine as it was given, and no more. `finish` has a test of its own."""
    given: dict[str, Any] = {
        "max_tokens": 7, "min_tokens": 1, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1,
        "repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.3, "logit_bias": {5: 1.5},
        "stop": ("zz",), "stop_regex": "z[0-9]z", "stop_token_ids": (9,), "ignore_eos": True, "seed": 4,
        "logprobs": True, "top_logprobs": 2,
    }  # fmt: skip
    with RuntimeEndpoint(server.url) as endpoint, _params_given_to(server.runtime) as seen:
        assert set(given) == OF_ONE_CALL - {"finish"}
        assert all(map(endpoint.supports, OF_ONE_CALL))
        _run(endpoint, **given)
    assert seen == [SamplingParams(**given)]


def test_case_d07_what_holds_where_nothing_is_given(server: Served) -> None:
    """D07: temperature 1.0, all tokens, no seed, the rest of the context; the same in this process."""
    runtime = tiny_runtime()
    with RuntimeEndpoint(server.url) as there, Runtime.over(runtime) as here:
        for backend, place in ((there, server.runtime), (here, runtime)):
            with _params_given_to(place) as seen:
                _run(backend, regex="[ab]{3}")
            assert seen == [SamplingParams(max_tokens=None, temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0, seed=None)]


@contextlib.contextmanager
def _params_given_to(runtime: LocalRuntime) -> Iterator[list[SamplingParams]]:
    seen: list[SamplingParams] = []
    engine = runtime.engine
    submit = engine.submit_group
    engine.submit_group = lambda requests, sinks: (seen.append(requests[0].params), submit(requests, sinks))[1]  # type: ignore
    try:
        yield seen
    finally:
        del engine.submit_group


def test_an_output_that_is_closed_in_time(server: Served) -> None:
    with RuntimeEndpoint(server.url) as endpoint:
        assert _run(endpoint, regex="[a-z]{4}x*y", max_tokens=8, finish="close").endswith("y")
        with pytest.raises(RequestRefused, match="finish"):
            _run(endpoint, finish="close")


def _run(backend: Backend, **parameters: Any) -> str:
    @function
    def program(s: State) -> None:
        s += "abc" + gen("x", **parameters)

    text: str = program.run(backend=backend)["x"]
    return text


def test_a_cancelled_run_is_aborted_at_the_server(server: Served) -> None:
    @function
    def endless(s: State) -> None:
        s += "abc" + gen("x", max_tokens=CONTEXT - 100, logit_bias=ASCII_ONLY)

    with RuntimeEndpoint(server.url) as endpoint:
        state = endless.run(backend=endpoint, stream=True)
        eventually(lambda: server.runtime.statistics()["running"] == 1)
        state.cancel()
        with pytest.raises(Cancelled):
            state["x"]
        eventually(lambda: server.state.running == 0)
    server.comes_to_rest()


def test_keys() -> None:
    with serving(api_key="right") as guarded:
        with RuntimeEndpoint(guarded.url, api_key="right") as endpoint:
            assert _run(endpoint, max_tokens=1) is not None
            assert endpoint.server_info()["model"] == "tiny"
            endpoint.flush_cache()
        with RuntimeEndpoint(guarded.url, api_key="wrong") as endpoint, pytest.raises(BackendError, match="API key"):
            _run(endpoint, max_tokens=1)


def test_a_crash_of_the_model(server: Served) -> None:
    executor = server.runtime.executor
    step = executor.step
    executor.step = lambda batch: 1 / 0  # type: ignore[method-assign,assignment]
    try:
        with RuntimeEndpoint(server.url) as endpoint, pytest.raises(EngineFailed, match="division"):
            _run(endpoint, max_tokens=1)
    finally:
        executor.step = step  # type: ignore[method-assign]


def test_nobody_there() -> None:
    with RuntimeEndpoint("http://127.0.0.1:9", retries=1) as endpoint:
        started = time.monotonic()
        with pytest.raises(BackendUnavailable, match="cannot be reached"):
            _run(endpoint)
        assert time.monotonic() - started < 30


def test_a_busy_server_is_tried_again() -> None:
    with serving(max_queue=1) as busy, RuntimeEndpoint(busy.url) as endpoint:
        states = [conversation.run(backend=endpoint) for _ in range(4)]
        assert len({state.text() for state in states}) == 1


class _Silent(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        time.sleep(1.0)

    def log_message(self, *_: object) -> None:
        return


def test_silence_ends_in_an_error() -> None:
    silent = HTTPServer(("127.0.0.1", 0), _Silent)
    thread = threading.Thread(target=silent.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{silent.server_port}"
        with RuntimeEndpoint(url, timeout=0.2) as endpoint, pytest.raises(BackendUnavailable, match=r"0\.2 s"):
            _run(endpoint)
    finally:
        silent.shutdown()
        thread.join()
        silent.server_close()


class _Busy(BaseHTTPRequestHandler):
    """Takes no call, and wants to be left alone for long."""

    asked: list[str]
    was_asked: threading.Event

    def do_POST(self) -> None:
        self.asked.append(self.path)
        self.send_response(503)
        self.send_header("Retry-After", "10")
        self.send_header("Content-Length", "0")
        self.end_headers()
        self.was_asked.set()

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def busy() -> Iterator[tuple[str, list[str], threading.Event]]:
    """The url of such a server, the paths that it was asked for, and an event at the first."""
    asked: list[str] = []
    was_asked = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Busy", (_Busy,), {"asked": asked, "was_asked": was_asked}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked, was_asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_call_that_was_cancelled_is_not_tried_again(busy: tuple[str, list[str], threading.Event]) -> None:
    url, asked, was_asked = busy
    with RuntimeEndpoint(url) as endpoint:
        state = conversation.run(backend=endpoint)
        assert was_asked.wait(5)
        state.cancel()
        assert isinstance(state.error(), Cancelled)
    assert asked.count("/generate") == 1


def test_closing_ends_the_calls_that_wait_for_a_thread(busy: tuple[str, list[str], threading.Event]) -> None:
    url, _, was_asked = busy
    endpoint = RuntimeEndpoint(url, max_concurrency=1)
    with contextlib.ExitStack() as stack:
        stack.callback(endpoint.close)
        states = [conversation.run(backend=endpoint) for _ in range(2)]
        assert was_asked.wait(5)
        closing = threading.Thread(target=endpoint.close)
        closing.start()
        assert isinstance(states[1].error(), Cancelled)
        states[0].cancel()
        closing.join()


def test_it_needs_no_runtime() -> None:
    code = (
        "import sys; from lmprog import RuntimeEndpoint; RuntimeEndpoint('http://127.0.0.1:9').close();"
        "print(sorted({'torch', 'transformers', 'numpy', 'lmprog_runtime'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[2]
    out = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
