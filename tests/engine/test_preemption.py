"""A sequence that is taken out of a full pool goes on as if nothing had been: its grammar, its logprobs, its tokens."""

from __future__ import annotations

import pytest

from lmprog_runtime.request import Completion, Constraint, GenerateRequest, SamplingParams
from lmprog_runtime.runtime import constraint_compiler
from tests.support.tiny_engine import TOKENIZER, prompt, run, run_all, tiny_engine, tiny_executor

PATTERN = Constraint("regex", r"\{\"a\":\"[a-f]{12,30}\",\"b\":[0-9]{3,8}\}")
REQUESTS = [
    GenerateRequest(
        prompt(f"{number}: a line, and"),
        SamplingParams(max_tokens=60, temperature=number % 2, seed=number, logprobs=True, top_logprobs=2),
        constraint=PATTERN,
    )
    for number in range(6)
]


def _outcome(done: Completion) -> tuple[object, ...]:
    top = [[token_id for token_id, _ in entry.top] for entry in done.logprobs]
    return done.text, done.token_ids, done.finish_reason, done.is_complete, done.segments, top


@pytest.mark.parametrize("speculation", [True, False])
def test_constrained_outputs_and_logprobs_are_those_of_a_large_pool(speculation: bool) -> None:
    compiler = constraint_compiler(TOKENIZER)
    with tiny_engine(compiler=compiler, speculation=speculation) as engine:
        wanted = [run(engine, request) for request in REQUESTS]
    with tiny_engine(
        tiny_executor(num_slots=120), compiler=compiler, speculation=speculation, decode_reserve=0
    ) as engine:
        found = run_all(engine, REQUESTS)
        preemptions = engine.call(lambda: engine.scheduler.counters.preemptions).result()
        assert engine.call(lambda: (engine.cache.held, engine.cache.tree.protected)).result() == (0, 0)
    assert preemptions > 0
    assert [_outcome(done) for done in found] == [_outcome(done) for done in wanted]
    for before, after in zip(wanted, found, strict=True):
        assert [e.logprob for e in after.logprobs] == pytest.approx([e.logprob for e in before.logprobs], abs=1e-4)
