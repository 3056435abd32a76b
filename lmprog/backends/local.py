"""The in-process runtime as a backend. Of the language's backends only this one imports `lmprog_runtime`, lazily.

A `LocalStream` keeps the token ids behind one program state. Text stays pending until a model call, then all of it is
encoded in one go. A fork hands the pending text on to its branches, so that forking never changes where tokens end.
Generated ids are kept as they are: no generated token is ever computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lmprog.backends.base import (
    FEATURES,
    Backend,
    ChoiceScore,
    GenerateCall,
    GenerateResult,
    PendingCall,
    Routing,
    ScoreCall,
    ScoreResult,
    Sink,
    Stream,
    TokenLogprob,
    Usage,
)
from lmprog.errors import LmprogError, MissingDependency, from_code
from lmprog.sampling import OF_ONE_CALL, Sampling

if TYPE_CHECKING:
    from lmprog_runtime import request as runtime_request
    from lmprog_runtime.runtime import LocalRuntime

_SAMPLING = OF_ONE_CALL


class Runtime(Backend):
    """A model on this machine: `Runtime("smollm2-135m", dtype="float32", threads=2, max_total_tokens=8192)`.

    Keyword arguments are the settings of `lmprog_runtime.config.RuntimeConfig`. Use it as a context manager, or call
    `close()`. Raises ModelNotFound, ModelUnsupported, or MissingDependency when the `runtime` extra is not installed.
    """

    name = "local"
    defaults = Sampling(temperature=1.0)

    def __init__(self, model: str = "smollm2-135m", **settings: Any) -> None:
        try:
            from lmprog_runtime.runtime import LocalRuntime
        except ImportError as error:
            raise MissingDependency(
                f"The local runtime needs {error.name}, which is not installed.",
                hint="Run: pip install 'lmprog[runtime]'",
            ) from error
        with _language_errors():
            self._runtime: LocalRuntime = LocalRuntime.start(model=model, **settings)

    @classmethod
    def over(cls, runtime: LocalRuntime) -> Runtime:
        """A backend over a runtime that is already loaded."""
        backend = cls.__new__(cls)
        backend._runtime = runtime
        return backend

    def open_stream(self) -> LocalStream:
        return LocalStream(self._runtime)

    def supports(self, parameter: str) -> bool:
        return parameter in FEATURES or parameter in _SAMPLING

    @property
    def cache(self) -> Any:
        """The prefix cache: `pretty()`, `dump()`, `explain(prompt)`, `events()`, `statistics()`, `check()`."""
        return self._runtime.cache

    @property
    def tokenizer(self) -> Any:
        return self._runtime.tokenizer

    def warm_prefix(self, text: str) -> None:
        """Compute the prefix now. It stays in the cache until the pool is needed for others."""
        with _language_errors():
            self._runtime.warm(text)

    def flush_cache(self) -> None:
        self._runtime.flush_cache()

    def server_info(self) -> dict[str, Any]:
        return {"backend": self.name, **self._runtime.info()}

    def close(self) -> None:
        self._runtime.close()


class LocalStream(Stream):
    """`_ids` are committed; `_pending` holds control ids and literal texts, no two texts next to each other."""

    def __init__(self, runtime: LocalRuntime, lease: Any = None) -> None:
        self._runtime = runtime
        self._ids: list[int] = []
        self._pending: list[int | str] = []
        self._roles: tuple[str, ...] = ()
        self._fork_length: int | None = None  # a branch's own tokens, from here on, die with it
        self._lease = runtime.engine.lease() if lease is None else lease

    # -- text and turns -------------------------------------------------------------------------------------------

    def append_text(self, text: str) -> None:
        self._append([text])

    def begin_role(self, role: str) -> None:
        roles = (*self._roles, role)
        with _language_errors():
            self._append(self._runtime.chat.opening_segments(roles))
        self._roles = roles

    def end_role(self) -> None:
        with _language_errors():
            self._append(self._runtime.chat.closing_segments(self._roles))

    def append_special(self, token: str) -> None:
        with _language_errors():
            self._append([self._runtime.tokenizer.special_id(token)])

    def _append(self, segments: Sequence[int | str]) -> None:
        for segment in segments:
            if isinstance(segment, str) and self._pending and isinstance(self._pending[-1], str):
                self._pending[-1] += segment
            elif segment != "":
                self._pending.append(segment)

    def _commit(self) -> tuple[list[int], str]:
        """The stream up to its last piece of text, as ids, and that text."""
        from lmprog_runtime.pending_text import commit

        return commit(self._runtime.tokenizer, self._ids, self._pending)

    # -- model calls ----------------------------------------------------------------------------------------------

    def generate(self, call: GenerateCall, sink: Sink) -> PendingCall:
        from lmprog_runtime.model.boundaries import heal_tail
        from lmprog_runtime.request import GenerateRequest

        with _language_errors():
            ids, text = self._commit()
            healed = heal_tail(self._runtime.tokenizer, ids, text, call.heal)
        request = GenerateRequest(
            token_ids=healed.token_ids,
            params=_runtime_params(call.sampling),
            constraint=_runtime_constraint(call),
            prefix_text=healed.held_back,
            lease=self._lease,
            **_runtime_routing(call.routing),
        )

        def finish(done: runtime_request.Completion) -> GenerateResult:
            held = healed.held_back.decode() if not done.kept else ""
            self._ids, self._pending = [*healed.token_ids, *done.token_ids[: done.kept]], []
            self._append([held + done.tail])
            return _generate_result(done, self._runtime.tokenizer)

        return self._submit(request, sink, finish)

    def score(self, call: ScoreCall, sink: Sink) -> PendingCall:
        from lmprog_runtime.model.boundaries import joint_split
        from lmprog_runtime.request import ScoreRequest

        with _language_errors():
            ids, text = self._commit()
            split = joint_split(self._runtime.tokenizer, ids, text, call.choices)
        routing = _runtime_routing(call.routing)
        request = ScoreRequest(token_ids=split.token_ids, choices=split.choices, lease=self._lease, **routing)
        self._ids, self._pending = list(split.token_ids), []
        self._append([split.pending])
        if not call.unconditional:
            return self._submit(request, sink, lambda done: _score_result(call.choices, done))
        alone = ScoreRequest(
            token_ids=[self._runtime.tokenizer.prefix_id],
            choices=[self._runtime.tokenizer.encode(choice) for choice in call.choices],
            **routing,
        )
        both = _Both(sink, lambda joint, bare: _score_result(call.choices, joint, bare))
        parts = ((request, both.sink(0)), (alone, both.sink(1)))
        return _LocalCalls([self._submit(part, part_sink, lambda done: done) for part, part_sink in parts])

    def append_choice(self, choice: ChoiceScore) -> None:
        self._ids += choice.token_ids
        self._pending = []

    def _submit(self, request: Any, sink: Sink, finish: Callable[[Any], Any]) -> PendingCall:
        from lmprog_runtime.request import Sink as RuntimeSink

        engine = self._runtime.engine

        def done(result: Any) -> None:
            try:
                value = finish(result)
            except BaseException as error:  # a waiting program must hear of it, whatever it is
                sink.fail(error)
            else:
                sink.done(value)

        reports = RuntimeSink(
            delta=lambda delta: sink.delta(delta.text),
            done=done,
            fail=lambda error: sink.fail(_language_error(error)),
        )
        return _LocalCall(engine, engine.submit(request, reports))

    # -- branches -------------------------------------------------------------------------------------------------

    def fork(self, count: int) -> list[Stream]:
        return [self._branch(lease) for lease in self._runtime.engine.fork_lease(self._lease, count)]

    def _branch(self, lease: Any) -> LocalStream:
        child = LocalStream(self._runtime, lease)
        child._ids, child._pending, child._roles = list(self._ids), list(self._pending), self._roles
        child._fork_length = len(self._ids)
        return child

    def close(self) -> None:
        self._runtime.engine.release(self._lease, dead_from=self._fork_length)


class _LocalCall(PendingCall):
    def __init__(self, engine: Any, job_id: int) -> None:
        self._engine, self._job_id = engine, job_id

    def cancel(self) -> None:
        self._engine.abort(self._job_id)


class _LocalCalls(PendingCall):
    def __init__(self, calls: Sequence[PendingCall]) -> None:
        self._calls = calls

    def cancel(self) -> None:
        for call in self._calls:
            call.cancel()


class _Both:
    """Joins two runtime requests into one result. Both report on the engine thread, so no lock is needed."""

    def __init__(self, sink: Sink, combine: Callable[[Any, Any], ScoreResult]) -> None:
        self._sink, self._combine = sink, combine
        self._results: dict[int, Any] = {}
        self._has_failed = False

    def sink(self, index: int) -> Sink:
        return Sink(delta=lambda _: None, done=lambda result: self._done(index, result), fail=self._fail)

    def _done(self, index: int, result: Any) -> None:
        self._results[index] = result
        if len(self._results) == 2:
            self._sink.done(self._combine(self._results[0], self._results[1]))

    def _fail(self, error: BaseException) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._sink.fail(error)


class _language_errors:  # noqa: N801 - reads as a statement: `with _language_errors():`
    """Runtime errors leave as the language's own, so that programs catch one family whatever the backend."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None and (ours := _language_error(error)) is not error:
            raise ours from error


def _language_error(error: BaseException) -> BaseException:
    from lmprog_runtime.errors import RuntimeFault

    if not isinstance(error, RuntimeFault):
        return error
    ours: LmprogError = from_code(error.code, str(error))
    ours.__cause__ = error.__cause__ or error
    return ours


def _runtime_params(sampling: Sampling) -> runtime_request.SamplingParams:
    from lmprog_runtime.request import SamplingParams

    return SamplingParams(**sampling.given())  # same names and types as Sampling's; tests check each


def _runtime_routing(routing: Routing) -> dict[str, Any]:
    return {"use_cache": routing.cache, "salt": routing.cache_salt, "priority": routing.priority}


def _runtime_constraint(call: GenerateCall) -> runtime_request.Constraint | None:
    from lmprog_runtime.request import Constraint

    return Constraint(*call.constraint) if call.constraint else None


def _generate_result(done: runtime_request.Completion, tokenizer: Any) -> GenerateResult:
    def text_of(token_id: int) -> str:
        return str(tokenizer.decode_bytes([token_id]).decode(errors="replace"))

    return GenerateResult(
        text=done.text,
        finish_reason=done.finish_reason,
        matched_stop=done.matched_stop,
        is_complete=done.is_complete,
        usage=Usage(*done.usage),
        token_ids=done.token_ids,
        logprobs=tuple(
            TokenLogprob(
                text_of(e.token_id),
                e.token_id,
                e.logprob,
                tuple((text_of(i), p) for i, p in e.top),
                tuple(i for i, _ in e.top),
            )
            for e in done.logprobs
        ),
        timing=done.timing,
        meta=_details(done),
    )


def _details(done: runtime_request.Completion) -> dict[str, Any]:
    """What is worth knowing of this output, and nothing that is empty."""
    found: dict[str, Any] = {"segments": done.segments} if done.usage.forced_tokens else {}
    if any(done.loaded):
        found["cached_below"] = dict(zip(("host", "file"), done.loaded, strict=True))  # tokens from the tiers
    if done.drafts[0]:
        found["drafts"] = dict(zip(("verified", "accepted"), done.drafts, strict=True))  # guessed tokens
    return found


def _score_result(
    choices: Sequence[str], done: runtime_request.ScoreResult, alone: runtime_request.ScoreResult | None = None
) -> ScoreResult:
    bare = [tokens.logprobs for tokens in alone.choices] if alone else [None] * len(choices)
    scores = [
        ChoiceScore(text, tokens.logprobs, tokens.token_ids, unconditional)
        for text, tokens, unconditional in zip(choices, done.choices, bare, strict=True)
    ]
    usage = Usage(*done.usage)
    return ScoreResult(tuple(scores), usage.plus(Usage(*alone.usage)) if alone else usage, done.timing)
