"""The sides of `lmprog bench peers`: this runtime, and servers that speak OpenAI's completions API."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import requests

from lmprog_runtime.bench.conversation import Conversation, Turn
from lmprog_runtime.bench.load import Load, run_load
from lmprog_runtime.bench.outcome import Outcome
from lmprog_runtime.bench.results import OURS
from lmprog_runtime.bench.targets import Completions, InProcess, Target
from lmprog_runtime.bench.workloads import Workload
from lmprog_runtime.errors import EngineFailed
from lmprog_runtime.harness.batch import run_batch
from lmprog_runtime.model.tokenizer import Tokenizer
from lmprog_runtime.request import Constraint, GenerateRequest, SamplingParams, ScoreRequest
from lmprog_runtime.runtime import LocalRuntime


class Work(NamedTuple):
    """What a side made of a workload."""

    output_lens: list[int]  # tokens of each answer, in order; empty for choices
    choice_logprobs: list[list[float]]  # sums, per prompt and choice; empty for other workloads


class Side(ABC):
    name: str

    @abstractmethod
    def run(self, work: Workload) -> Work | None:
        """Do the work from an empty cache. None: this side cannot."""


class Ours(Side):
    name = OURS

    def __init__(self, runtime: LocalRuntime, name: str = name) -> None:
        self.runtime, self.name = runtime, name

    def run(self, work: Workload) -> Work:
        self.runtime.flush_cache()
        if work.later_turns is not None:
            return _chat(InProcess(self.runtime), work, self.runtime.tokenizer)
        if work.choices is not None:
            asked = [ScoreRequest(p, some) for p, some in zip(work.prompts, work.choices, strict=True)]
            scored = run_batch(self.runtime.engine, asked, description=work.name, quiet=True)
            return Work([], [[sum(choice.logprobs) for choice in result.choices] for result in scored])
        constraint = Constraint("json_schema", work.schema) if work.schema else None
        params = SamplingParams(max_tokens=work.new_tokens, temperature=0.0, ignore_eos=work.schema is None)
        wanted = [GenerateRequest(prompt, params, constraint=constraint) for prompt in work.prompts]
        done = run_batch(self.runtime.engine, wanted, description=work.name, quiet=True)
        return Work([result.usage.completion_tokens for result in done], [])


class Endpoint(Side):
    """All requests of a workload at once, prompts as token ids or text. Choices go by echoed log-probabilities, where
    the server has those."""

    def __init__(self, name: str, url: str, model: str, tokenizer: Tokenizer, key: str | None) -> None:
        self.name, self.tokenizer = name, tokenizer
        self.target = Completions(url, model, tokenizer, key=key)

    def choose_prompts(self) -> None:
        """Ask once. A server that refuses token ids gets text from then on, and its name says so; it also answers in
        one piece, since such servers may stream no usage. EngineFailed when it takes neither."""
        ids, target = self.tokenizer.encode("One, two,"), self.target
        refused = target.send(ids, 1).error
        if not refused:
            return
        target.sends_text, target.streams = True, False
        if target.send(ids, 1).error:
            raise EngineFailed(f"{self.name} at {target.url} takes no completions: {refused}")
        self.name += ", prompts as text"

    def run(self, work: Workload) -> Work | None:
        self.target.flush_cache()
        if work.choices is not None:
            return self._choices(work.prompts, work.choices)
        self.target.ignore_eos = work.schema is None
        self.target.extra = self._more_fields(work)
        return _chat(self.target, work, self.tokenizer)

    def _more_fields(self, work: Workload) -> dict[str, object]:
        if work.schema:
            return {"response_format": _response_format(work.schema)}
        return {"min_tokens": work.new_tokens} if self.target.sends_text else {}  # these know no ignore_eos

    def _choices(self, prompts: list[list[int]], choices: list[list[list[int]]]) -> Work | None:
        pairs = [(prompt, choice) for prompt, some in zip(prompts, choices, strict=True) for choice in some]
        with ThreadPoolExecutor(len(pairs)) as pool:
            found = list(pool.map(lambda pair: self._logprob(*pair), pairs))
        sums = [value for value in found if value is not None]
        if len(sums) < len(found):
            return None
        each = len(choices[0])
        return Work([], [sums[start : start + each] for start in range(0, len(sums), each)])

    def _logprob(self, prompt: list[int], choice: list[int]) -> float | None:
        """None when the server does not echo log-probabilities of the prompt."""
        found = self._echo(prompt + choice)
        logprobs = found.get("token_logprobs") or []
        ends = [len(prompt), len(prompt) + len(choice)]
        if self.target.sends_text:  # the server's own tokens, of which there may be more or fewer
            texts = [self.target.text(ids) for ids in (prompt, prompt + choice)]
            ends = [bisect_left(found.get("text_offset") or [], len(text)) for text in texts]
        start, end = ends
        return float(sum(logprobs[start:end])) if 0 < start < end <= len(logprobs) else None

    def _echo(self, token_ids: list[int]) -> dict[str, list[Any]]:
        """Log-probabilities of the prompt's tokens; empty when the server has none."""
        target = self.target
        body = {"model": target.model, "prompt": target.prompt(token_ids), "max_tokens": 1, "temperature": 0.0}
        answer = requests.post(
            target.url + target.path,
            json={**body, "echo": True, "logprobs": 1},
            headers=target.headers,
            timeout=3600,
        )
        return (answer.json()["choices"][0].get("logprobs") or {}) if answer.status_code == 200 else {}


def _response_format(schema: str) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": json.loads(schema)}}


def _chat(target: Target, work: Workload, tokenizer: Tokenizer) -> Work:
    """Every conversation goes on as soon as its own answer is there. EngineFailed when a request failed."""
    later = work.later_turns or [[] for _ in work.prompts]
    conversations = [
        Conversation(tuple(Turn(tuple(ids), work.new_tokens) for ids in [first, *more]))
        for first, more in zip(work.prompts, later, strict=True)
    ]
    outcomes, _ = run_load(target, conversations, Load(), encode=tokenizer.encode, quiet=True)
    return Work([_checked(outcome, work, target.name) for outcome in outcomes], [])


def _checked(outcome: Outcome, work: Workload, name: str) -> int:
    if outcome.error:
        raise EngineFailed(f"{name} failed in {work.name}: {outcome.error}")
    if work.schema is None and outcome.output_len != work.new_tokens:
        raise EngineFailed(
            f"{name} gave {outcome.output_len} tokens instead of {work.new_tokens} in {work.name}; it must be able to "
            "ignore the end token (ignore_eos), or the work is not the same."
        )
    return outcome.output_len
