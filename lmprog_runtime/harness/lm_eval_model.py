"""lmprog as a model of lm-evaluation-harness: `lmprog lm-eval --model lmprog --model_args pretrained=MODEL ...`

Importing this file registers the model. Scores are those of lm-eval's own `hf` model, from the same token ids. What
choices and few-shot examples share is computed once: the choices of one context are one token trie, contexts share the
radix tree.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from lmprog_runtime.harness.batch import run_batch
from lmprog_runtime.request import GenerateRequest, SamplingParams, ScoreRequest
from lmprog_runtime.runtime import LocalRuntime

log = logging.getLogger("lmprog.lm_eval")

DEFAULT_GENERATED = 256
TokenPair = tuple[tuple[str, str] | None, list[int], list[int]]


@register_model("lmprog")
class LmprogModel(TemplateLM):  # type: ignore[misc]  # lm-eval has no types
    """`model_args`: pretrained (a model as `Runtime` takes it) and any setting of RuntimeConfig; dtype is float32
    unless given."""

    def __init__(
        self, pretrained: str = "smollm2-135m", batch_size: Any = None, device: Any = None, **settings: Any
    ) -> None:
        """`batch_size` and `device` are what lm-eval passes to every model; the scheduler batches by itself."""
        del batch_size
        if device is not None:  # lm-eval says cuda unless told otherwise, on machines without one too
            settings.setdefault("device", "auto" if str(device).startswith("cuda") else device)
        self._use(LocalRuntime.start(**{"model": pretrained, "dtype": "float32", **settings}))

    @classmethod
    def over(cls, runtime: LocalRuntime) -> LmprogModel:
        """A model over a runtime that is already loaded."""
        model = cls.__new__(cls)
        model._use(runtime)
        return model

    def _use(self, runtime: LocalRuntime) -> None:
        super().__init__()
        self.runtime = runtime
        self.truncated = 0
        self._encoded = lru_cache(maxsize=64)(self._encode)  # the choices of a context come one after another

    @property
    def eot_token_id(self) -> int:
        return min(self.runtime.tokenizer.eos_ids)

    @property
    def prefix_token_id(self) -> int:
        return self.runtime.tokenizer.prefix_id

    @property
    def max_length(self) -> int:
        return self.runtime.engine.context_length

    @property
    def tokenizer_name(self) -> str:
        return self.runtime.files.name.replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval writes into its results beside its own settings."""
        info = self.runtime.info()
        used = self.runtime.statistics()
        noted = {"truncated_contexts": self.truncated, "computed_tokens": used["computed_tokens"]}
        return {**{name: info[name] for name in ("revision", "executor", "dtype", "device")}, **noted}

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        del chat_template  # a model here has one template, its own
        return self.runtime.files.chat_template

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation as text; lm-eval encodes it again itself."""
        segments = self.runtime.chat.render_segments(
            chat_history,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        names = {token_id: name for name, token_id in self.runtime.tokenizer.special_names.items()}
        return "".join(names[segment] if isinstance(segment, int) else segment for segment in segments)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Ids of a text in which a chat template may have written control tokens."""
        return list(self._encoded(string, add_special_tokens is not False))

    def _encode(self, string: str, may_start: bool) -> list[int]:
        tokenizer = self.runtime.tokenizer
        ids = tokenizer.encode_segments(tokenizer.split_specials(string))
        starts = may_start and tuple(ids[: len(tokenizer.bos_ids)]) != tokenizer.bos_ids
        return [*tokenizer.bos_ids, *ids] if starts else ids

    def _loglikelihood_tokens(
        self, requests: Sequence[TokenPair], disable_tqdm: bool = False, **_unused: Any
    ) -> list[tuple[float, bool]]:
        """One score request per context, with all its continuations; every one of a context's requests in one trie."""
        by_context: dict[tuple[int, ...], list[int]] = {}
        pairs = [self._fit(prefix, continuation) for _, prefix, continuation in requests]
        for index, (prefix, _tail) in enumerate(pairs):
            by_context.setdefault(tuple(prefix), []).append(index)
        ordered = sorted(by_context)  # neighbours share the longest prefixes
        score_requests = [
            ScoreRequest(list(context), [pairs[index][1] for index in by_context[context]], wants_greedy=True)
            for context in ordered
        ]
        results = run_batch(self.runtime.engine, score_requests, description="loglikelihood", quiet=disable_tqdm)
        answers: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        for context, result in zip(ordered, results, strict=True):
            for index, choice in zip(by_context[context], result.choices, strict=True):
                answers[index] = (sum(choice.logprobs), choice.is_greedy)
                self._remember(requests[index], answers[index])
        return answers

    def _remember(self, request: TokenPair, answer: tuple[float, bool]) -> None:
        if request[0] is not None:
            self.cache_hook.add_partial("loglikelihood", request[0], answer)

    def _fit(self, context: list[int], continuation: list[int]) -> tuple[list[int], list[int]]:
        """Cut from the left what the model cannot take, as lm-eval's own models do; counted and said."""
        excess = len(context) + len(continuation) - self.max_length
        if excess <= 0:
            return context, continuation
        if excess >= len(context):
            raise ValueError(f"A continuation of {len(continuation)} tokens leaves no room for its context.")
        self.truncated += 1
        log.warning("cut %d tokens from the left of a context (%d cut so far)", excess, self.truncated)
        return context[excess:], continuation

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        windows: list[TokenPair] = []
        owners: list[int] = []
        for index, (text,) in enumerate(request.args for request in requests):
            tokens = self.tok_encode(text, add_special_tokens=False)
            for window in get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length - 1, 1):
                windows.append((None, *make_disjoint_window(window)))
                owners.append(index)
        totals = [0.0] * len(requests)
        scored = self._loglikelihood_tokens(windows, disable_tqdm=disable_tqdm)
        for owner, (logprob, _) in zip(owners, scored, strict=True):
            totals[owner] += logprob
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        generate_requests = [self._generate_request(*request.args) for request in requests]
        results = run_batch(self.runtime.engine, generate_requests, description="generate_until", quiet=disable_tqdm)
        for request, result in zip(requests, results, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, result.text)
        return [result.text for result in results]

    def _generate_request(self, context: str, settings: dict[str, Any]) -> GenerateRequest:
        """lm-eval's generation settings as ours; ValueError for one that we do not know."""
        given = normalize_gen_kwargs(settings, DEFAULT_GENERATED)
        stops = handle_stop_sequences(given.pop("until", None), eos=None)
        most = given.pop("max_gen_toks")
        temperature = given.pop("temperature", 0.0)
        if not given.pop("do_sample", True):
            temperature = 0.0
        params = {name: given.pop(name) for name in ("top_p", "top_k", "min_p", "repetition_penalty") if name in given}
        if given:
            raise ValueError(f"Generation settings that lmprog does not know: {', '.join(sorted(given))}.")
        ids, _ = self._fit(self.tok_encode(context), [0] * most)
        stop = tuple(text for text in stops if text)
        return GenerateRequest(ids, SamplingParams(max_tokens=most, temperature=temperature, stop=stop, **params))
