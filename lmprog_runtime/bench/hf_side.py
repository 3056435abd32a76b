"""transformers as a side of `lmprog bench peers`: batches as its users write them, plain or with the KV reused by hand.

No constraint, since it has none: for JSON it generates as many tokens as the longest answer of each batch has here.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from lmprog_runtime.bench.sides import Side, Work
from lmprog_runtime.bench.workloads import Workload
from lmprog_runtime.model.files import ModelFiles

Ids = list[int]


class Transformers(Side):
    """Requests go in batches of equal lengths; nothing is padded. With `reuses`, the shared beginning is computed once
    and copied to each batch, and a conversation keeps its KV between turns; without, each request starts from nothing.
    """

    def __init__(self, model: Any, batch_size: int, *, reuses: bool) -> None:
        self.model, self.batch_size, self.reuses = model, batch_size, reuses
        self.name = "transformers, KV reused by hand" if reuses else "transformers"

    @torch.inference_mode()
    def run(self, work: Workload) -> Work | None:
        if self.reuses and not work.shared_len and work.later_turns is None:
            return None
        if work.choices is not None:
            return Work([], self._scores(work, work.choices))
        if work.later_turns is not None:
            return Work(self._chats(work, work.later_turns), [])
        return Work(self._answers(work), [])

    def _answers(self, work: Workload) -> list[int]:
        lengths: list[int] = []
        past = self._prefix(work)
        for start in range(0, len(work.prompts), self.batch_size):
            batch = work.prompts[start : start + self.batch_size]
            wanted = max(work.answer_lens[start : start + self.batch_size]) if work.schema else work.new_tokens
            self._generate(torch.tensor(batch), wanted, _for_batch(past, len(batch)))
            lengths += [wanted] * len(batch)
        return lengths

    def _prefix(self, work: Workload) -> Any:
        """The KV of what all prompts begin with."""
        if not self.reuses:
            return None
        ids = torch.tensor([work.prompts[0][: work.shared_len]])
        return self.model(ids, use_cache=True, logits_to_keep=1).past_key_values

    def _generate(self, ids: torch.Tensor, count: int, past: Any) -> Any:
        return self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            return_dict_in_generate=True,
            cache=past,
        )

    def _scores(self, work: Workload, choices: list[list[Ids]]) -> list[list[float]]:
        pairs = [(p, choice) for p, some in zip(work.prompts, choices, strict=True) for choice in some]
        past = self._prefix(work)
        kept = work.shared_len if past is not None else 0
        sums: list[float] = []
        for start in range(0, len(pairs), self.batch_size):
            batch = pairs[start : start + self.batch_size]
            ids = torch.tensor([prompt + choice for prompt, choice in batch])
            length = len(batch[0][1])
            out = self.model(
                ids[:, kept:], cache=_for_batch(past, len(batch)), use_cache=True, logits_to_keep=length + 1
            )
            logprobs = torch.log_softmax(out.logits[:, :-1].float(), -1)
            sums += logprobs.gather(2, ids[:, -length:, None]).sum((1, 2)).tolist()
        each = len(choices[0])
        return [sums[start : start + each] for start in range(0, len(sums), each)]

    def _chats(self, work: Workload, later: list[list[Ids]]) -> list[int]:
        """All conversations in step, one batch per turn."""
        ids, past = torch.tensor(work.prompts), None
        for number, _ in enumerate([None, *later[0]]):
            out = self._generate(ids, work.new_tokens, past)
            past = out.past_key_values if self.reuses else None
            if number < len(later[0]):
                said = torch.tensor([turns[number] for turns in later])
                ids = torch.cat([out.sequences, said], 1)
        return [work.new_tokens] * len(work.prompts) * (1 + len(later[0]))


def _for_batch(past: Any, size: int) -> Any:
    """A copy of one sequence's KV for each sequence of a batch."""
    if past is None:
        return None
    copied = copy.deepcopy(past)
    copied.batch_repeat_interleave(size)
    return copied


def hf_sides(files: ModelFiles, dtype: torch.dtype, batch_size: int) -> list[Side]:
    """One model, without and with reuse."""
    from transformers.utils import logging

    from lmprog_runtime.model.hf import load_model

    logging.set_verbosity_error()  # its own calls warn of names that it calls deprecated
    logging.disable_progress_bar()
    model = load_model(files, dtype).eval()
    return [Transformers(model, batch_size, reuses=reuses) for reuses in (False, True)]
