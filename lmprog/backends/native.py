"""A backend over a server's native API: `lmprog serve` on one machine, programs on another. Needs `requests` only.

The server turns text into tokens, by the same code as the in-process runtime, and gives back the ids; from then on they
travel as ids. So a program gets the very same tokens here and there, and no generated token is encoded again.
"""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import requests

from lmprog.backends.base import (
    FEATURES,
    Backend,
    ChoiceScore,
    GenerateCall,
    GenerateResult,
    PendingCall,
    ScoreCall,
    ScoreResult,
    Sink,
    Stream,
    TokenLogprob,
    Usage,
)
from lmprog.backends.threads import CallThreads, Report
from lmprog.errors import BackendUnavailable, Cancelled, InvalidArgument, LmprogError, from_code
from lmprog.sampling import OF_ONE_CALL, Sampling

_SAMPLING = OF_ONE_CALL
_TRY_AGAIN = frozenset({429, 502, 503, 504})
_RENAMED = {"max_tokens": "max_new_tokens"}
_BESIDE = {"logprobs": "return_logprob", "top_logprobs": "top_logprobs_num"}  # next to the sampling parameters
_LONGEST_WAIT = 10.0
_MOST_CLOSED = 1000  # streams that one call closes

_Piece = str | dict[str, Any]


class RuntimeEndpoint(Backend):
    """A model behind `lmprog serve`: `RuntimeEndpoint("http://127.0.0.1:30000")`.

    `api_key` defaults to LMPROG_API_KEY. `timeout` is the longest silence of the server in seconds, after which a call
    fails with BackendUnavailable. Calls that could not be taken (no connection, 429, 503) are tried `retries` more
    times. At most `max_concurrency` calls, each on a thread of its own, are with the server at a time; others wait.
    Use it as a context manager, or call `close()`.
    """

    name = "endpoint"
    defaults = Sampling(temperature=1.0)

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float = 600.0,
        retries: int = 4,
        max_concurrency: int = 64,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidArgument(f"url is {url!r}; it begins with http:// or https://.")
        self._url = url.rstrip("/")
        self._key = api_key if api_key is not None else os.environ.get("LMPROG_API_KEY")
        self._timeout, self._retries = timeout, retries
        self.calls = CallThreads(max_concurrency, "lmprog-endpoint")
        self._aborts = ThreadPoolExecutor(1, thread_name_prefix="lmprog-endpoint-abort")
        self._ended: deque[dict[str, Any]] = deque()  # streams that the server has not been told of
        self._local = threading.local()
        self._sessions: list[requests.Session] = []

    def open_stream(self) -> EndpointStream:
        return EndpointStream(self)

    def supports(self, parameter: str) -> bool:
        return parameter in FEATURES or parameter in _SAMPLING

    def flush_cache(self) -> None:
        self.ask("POST", "/flush_cache")

    def server_info(self) -> dict[str, Any]:
        return {"backend": self.name, "url": self._url, **self.ask("GET", "/get_server_info")}

    def close(self) -> None:
        self.calls.close()
        self._aborts.shutdown(wait=True)  # after the calls: their ends are told of here
        for session in self._sessions:
            session.close()

    # -- HTTP -----------------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JSON of one call. BackendUnavailable when the server cannot be reached, or the error that it answers."""
        with self.send(method, path, body) as answer:
            found: dict[str, Any] = answer.json()
            return found

    def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        request_id: str = "",
        cancelled: threading.Event | None = None,
    ) -> requests.Response:
        """An answer with status 200, its body still to be read. Cancelled when that event comes before a retry."""
        pause = cancelled or threading.Event()
        for attempt in range(self._retries + 1):
            is_last = attempt == self._retries
            try:
                answer = self._send_once(method, path, body, request_id)
            except requests.ConnectionError as error:
                if is_last:
                    raise self._unavailable(f"cannot be reached ({error.__class__.__name__})") from error
                _wait(pause, min(0.1 * 2**attempt, _LONGEST_WAIT))
                continue
            if answer.ok:
                return answer
            with answer:
                if answer.status_code not in _TRY_AGAIN or is_last:
                    raise _error_of(answer)
                _wait(pause, _seconds(answer.headers.get("Retry-After"), 0.1 * 2**attempt))
        raise AssertionError("the last attempt returns or raises")

    def _send_once(self, method: str, path: str, body: Mapping[str, Any] | None, request_id: str) -> requests.Response:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        headers |= {"X-Request-Id": request_id} if request_id else {}
        try:
            return self._session().request(
                method, self._url + path, json=body, headers=headers, timeout=(10.0, self._timeout), stream=True
            )
        except requests.Timeout as error:
            raise self._unavailable(f"did not answer within {self._timeout:g} s") from error

    def _session(self) -> requests.Session:
        """One per thread: sessions are not made to be shared."""
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
            self._sessions.append(self._local.session)
        session: requests.Session = self._local.session
        return session

    def _unavailable(self, reason: str) -> BackendUnavailable:
        return BackendUnavailable(f"The server at {self._url} {reason};", hint="check that `lmprog serve` runs there.")

    def abort(self, request_id: str) -> None:
        """Tell the server, in the background, that nobody waits for a request any more."""

        def tell() -> None:
            try:
                self._send_once("POST", "/abort", {"rid": request_id}, "").close()
            except (requests.RequestException, LmprogError):
                return  # it ended by itself, or the server is gone

        try:
            self._aborts.submit(tell)
        except RuntimeError:  # the endpoint is closed, and with it every connection
            return

    def close_stream(self, stream_id: str, dead_from: int | None) -> None:
        """Tell the server, in the background, that a stream has ended; several that end together in one call."""
        self._ended.append({"stream_id": stream_id, "dead_from": dead_from})
        try:
            self._aborts.submit(self._tell_ended)
        except RuntimeError:  # the endpoint is closed; the server lets go of the stream by itself after a while
            return

    def _tell_ended(self) -> None:
        streams = [self._ended.popleft() for _ in range(min(len(self._ended), _MOST_CLOSED))]
        if not streams:  # an earlier call has told of them
            return
        try:
            self._send_once("POST", "/close_streams", {"streams": streams}, "").close()
        except (requests.RequestException, LmprogError):
            return  # the server is gone, and so are its streams

    def answer(
        self, path: str, body: Mapping[str, Any], request_id: str, cancelled: threading.Event, report: Report
    ) -> Mapping[str, Any]:
        """What the server says to a model call; of a stream, its last event."""
        with self.send("POST", path, body, request_id=request_id, cancelled=cancelled) as answer:
            if not body.get("stream"):
                whole: dict[str, Any] = answer.json()
                return whole
            for event in self._events(answer):
                if "error" in event:
                    raise _error(event)
                if "output_ids" in event:
                    return event
                report(event["delta"])
            raise BackendUnavailable("The server's stream had no end.")

    def _events(self, answer: requests.Response) -> Iterator[dict[str, Any]]:
        """Events of a stream as they come. BackendUnavailable when the connection breaks."""
        buffer = b""
        try:
            for piece in answer.iter_content(chunk_size=None):
                *events, buffer = (buffer + piece).split(b"\n\n")
                for event in events:
                    data = event.removeprefix(b"data: ")
                    if data == b"[DONE]":
                        return
                    yield json.loads(data)
        except requests.RequestException as error:
            raise self._unavailable("closed the connection in the middle of an answer") from error
        raise self._unavailable("ended an answer before its end")


def _wait(cancelled: threading.Event, seconds: float) -> None:
    if cancelled.wait(seconds):
        raise Cancelled("The call was cancelled while it waited to be made again.")


def _seconds(text: str | None, otherwise: float) -> float:
    try:
        return min(float(text or otherwise), _LONGEST_WAIT)
    except ValueError:
        return otherwise


def _error_of(answer: requests.Response) -> LmprogError:
    try:
        return _error(answer.json())
    except (ValueError, KeyError, TypeError):
        return BackendUnavailable(f"The server answered {answer.status_code} and no JSON; is it an lmprog server?")


def _error(body: Mapping[str, Any]) -> LmprogError:
    error = body["error"]
    return from_code(error.get("code") or "", error["message"])


class EndpointStream(Stream):
    """`_ids` are committed; `_pending` holds texts and control pieces that the server will turn into ids."""

    def __init__(self, endpoint: RuntimeEndpoint) -> None:
        self._endpoint = endpoint
        self._ids: list[int] = []
        self._pending: list[_Piece] = []
        self._roles: tuple[str, ...] = ()
        self._fork_length: int | None = None  # a branch's own tokens, from here on, die with it
        self._id = uuid.uuid4().hex
        self._is_held = False  # the server has heard of this stream

    # -- text and turns -------------------------------------------------------------------------------------------

    def append_text(self, text: str) -> None:
        if text and self._pending and isinstance(self._pending[-1], str):
            self._pending[-1] += text
        elif text:
            self._pending.append(text)

    def begin_role(self, role: str) -> None:
        self._roles = (*self._roles, role)
        self._pending.append({"open": list(self._roles)})

    def end_role(self) -> None:
        self._pending.append({"close": list(self._roles)})

    def append_special(self, token: str) -> None:
        self._pending.append({"special": token})

    def fork(self, count: int) -> list[Stream]:
        return [self._branch() for _ in range(count)]

    def _branch(self) -> EndpointStream:
        child = EndpointStream(self._endpoint)
        child._ids, child._pending, child._roles = list(self._ids), list(self._pending), self._roles
        child._fork_length = len(self._ids)
        return child

    def close(self) -> None:
        if self._is_held:
            self._is_held = False
            self._endpoint.close_stream(self._id, self._fork_length)

    # -- model calls ----------------------------------------------------------------------------------------------

    def generate(self, call: GenerateCall, sink: Sink) -> PendingCall:
        body = {**self._prompt(), **_routing(call), **_sampling(call), "stream": call.wants_deltas}
        if call.heal is not None:
            body["heal"] = call.heal
        return self._call("/generate", body, sink, self._generated)

    def _generated(self, answer: Mapping[str, Any]) -> GenerateResult:
        meta, ids = answer["meta_info"], answer["output_ids"]
        self._ids += [*meta["prompt_ids"], *ids[: meta["kept"]]]
        self._pending = []
        self.append_text((meta["held_back"] if not meta["kept"] else "") + meta["tail"])
        return _generate_result(answer)

    def score(self, call: ScoreCall, sink: Sink) -> PendingCall:
        choices = {"choices": list(call.choices), "unconditional": call.unconditional}
        body = {**self._prompt(), **_routing(call), **choices}

        def scored(answer: Mapping[str, Any]) -> ScoreResult:
            meta = answer["meta_info"]
            self._ids += meta["prompt_ids"]
            self._pending = []
            self.append_text(meta["pending"])
            return _score_result(call, answer)

        return self._call("/select", body, sink, scored)

    def _call(
        self, path: str, body: Mapping[str, Any], sink: Sink, finish: Callable[[Mapping[str, Any]], Any]
    ) -> PendingCall:
        endpoint, request_id, cancelled = self._endpoint, f"lmprog-{uuid.uuid4().hex}", threading.Event()

        def cancel() -> None:
            cancelled.set()
            endpoint.abort(request_id)

        def work(report: Report) -> Mapping[str, Any]:
            return endpoint.answer(path, body, request_id, cancelled, report)

        return endpoint.calls.start(sink, work, finish, cancel)

    def append_choice(self, choice: ChoiceScore) -> None:
        self._ids += choice.token_ids
        self._pending = []

    def _prompt(self) -> dict[str, Any]:
        self._is_held = True
        return {"input_ids": list(self._ids), "segments": list(self._pending), "stream_id": self._id}


# -- from and to JSON --------------------------------------------------------------------------------------------------


def _routing(call: GenerateCall | ScoreCall) -> dict[str, Any]:
    wanted = call.routing
    return {"use_cache": wanted.cache, "cache_salt": wanted.cache_salt, "priority": wanted.priority}


def _sampling(call: GenerateCall) -> dict[str, Any]:
    given = call.sampling.given()
    beside = {_BESIDE[name]: given.pop(name) for name in _BESIDE if name in given}
    params = {_RENAMED.get(name, name): _plain(value) for name, value in given.items()}
    return {**beside, "sampling_params": {**params, **_constraint(call)}}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _constraint(call: GenerateCall) -> dict[str, Any]:
    wanted = call.constraint
    if wanted is None:
        return {}
    source = json.loads(wanted.source) if wanted.kind == "choices" else wanted.source
    return {wanted.kind: source, "whitespace": wanted.whitespace}


def _generate_result(answer: Mapping[str, Any]) -> GenerateResult:
    meta = answer["meta_info"]
    usage = _usage(meta)
    return GenerateResult(
        text=answer["text"],
        finish_reason=meta["finish_reason"]["type"],
        matched_stop=meta["finish_reason"]["matched"],
        is_complete=meta["is_complete"],
        usage=usage,
        token_ids=tuple(answer["output_ids"]),
        logprobs=_logprobs(meta),
        timing=meta["timing"],
        meta=_details(meta),
    )


def _details(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What the runtime in this process tells as well, where there is something to tell."""
    found: dict[str, Any] = {}
    if meta["forced_tokens"]:
        found["segments"] = tuple(map(tuple, meta["segments"]))
    below = {tier: meta["cached_tokens_details"][tier] for tier in ("host", "file")}
    if any(below.values()):
        found["cached_below"] = below
    if any(meta["drafts"]):
        found["drafts"] = dict(zip(("verified", "accepted"), meta["drafts"], strict=True))
    return found


def _logprobs(meta: Mapping[str, Any]) -> tuple[TokenLogprob, ...]:
    entries = zip(meta.get("output_token_logprobs", ()), meta.get("output_top_logprobs", ()), strict=True)
    return tuple(
        TokenLogprob(text, token_id, logprob, tuple((t, p) for p, _, t in top), tuple(i for _, i, _ in top))
        for (logprob, token_id, text), top in entries
    )


def _usage(meta: Mapping[str, Any]) -> Usage:
    return Usage(*(meta[name] for name in Usage._fields))


def _score_result(call: ScoreCall, answer: Mapping[str, Any]) -> ScoreResult:
    scores = [
        ChoiceScore(
            text,
            tuple(choice["logprobs"]),
            tuple(choice["token_ids"]),
            tuple(choice["unconditional_logprobs"]) if call.unconditional else None,
        )
        for text, choice in zip(call.choices, answer["choices"], strict=True)
    ]
    return ScoreResult(tuple(scores), _usage(answer["meta_info"]), answer["meta_info"]["timing"])
