"""What scripts that generate under constraints share."""

from __future__ import annotations

from concurrent.futures import Future

from lmprog_runtime.request import Completion, Constraint, GenerateRequest, SamplingParams, Sink
from lmprog_runtime.runtime import LocalRuntime


def submit(runtime: LocalRuntime, prompt: str, params: SamplingParams, constraint: Constraint) -> Future[Completion]:
    """One generation; refusals and failures come out of the future."""
    future: Future[Completion] = Future()
    sink = Sink(lambda _: None, future.set_result, future.set_exception)
    runtime.engine.submit(GenerateRequest(runtime.tokenizer.encode(prompt), params, constraint=constraint), sink)
    return future
