"""The self-test of a transformers model on our KV pool: refuses what does not give what transformers itself gives.

Not every model asks the AttentionInterface, some keep other state per sequence, and some tell a layer's window to the
mask alone; transformers says so in a log line at most. Of 43 families tried with random models, 37 agree to 1e-5 of the
logits' spread in float32; gpt_neo, bloom, mpt and mamba never ask, qwen3_next and falcon_h1 carry a state from one
packed sequence into the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmprog_runtime.errors import ModelUnsupported
from lmprog_runtime.model.hf_paged import PagedModel, RowShape
from lmprog_runtime.model.plain_batch import Part, plain_batch

PROBE_SLOTS = 64
_EXACT = 1e-3
_ROUGH = 0.5
"""Allowed difference over the logits' spread, in float32 and in 16 bits. Rounding alone makes 0.06 of the default model
in bfloat16, and a state that leaks from sequence to sequence may make 0.03, so only float32 can tell them apart."""


class Found(NamedTuple):
    vocab_size: int  # columns of the logits
    shapes: dict[int, RowShape]  # of the layers


@torch.inference_mode()
def check(paged: PagedModel, *, is_exact: bool) -> Found:
    """Two sequences packed into extend, mixed and decode steps, against each alone in eager attention.

    `paged` must be fresh, with PROBE_SLOTS slots; `is_exact`: it is in float32. Raises ModelUnsupported.
    """
    if getattr(paged.model, "_is_stateful", False):
        raise _refusal(paged.config, "it keeps a state per sequence besides keys and values")
    first, second = probe_tokens(paged.config, 21), probe_tokens(paged.config, 13)[::-1].copy()
    expected = paged.eager(first), paged.eager(second)
    paged.use_pool()
    errors = [row_errors(found, wanted) for found, wanted in zip(_packed(paged, first, second), expected, strict=True)]
    worst, limit = float(torch.cat(errors).max()), _EXACT if is_exact else _ROUGH
    if not worst <= limit:  # a NaN is not
        raise _refusal(paged.config, f"its logits in a packed batch are off by {worst:.1%} (allowed: {limit:.1%})")
    return Found(expected[0].shape[1], paged.shapes())


def row_errors(found: Tensor, expected: Tensor) -> Tensor:
    """[rows]: length of the difference over that of the row's deviation from its mean."""
    spread = expected - expected.mean(-1, keepdim=True)
    errors: Tensor = (found - expected).square().sum(-1) / spread.square().sum(-1)
    return errors.sqrt()


def probe_tokens(config: Any, count: int) -> NDArray[np.int32]:
    """Ids spread over the vocabulary, without padding, which some models treat apart."""
    padding = getattr(config, "pad_token_id", None)
    ids = [number * 7919 % config.vocab_size for number in range(1, count + 2)]
    return np.array([token_id for token_id in ids if token_id != padding][:count], np.int32)


def _packed(paged: PagedModel, first: NDArray[np.int32], second: NDArray[np.int32]) -> tuple[Tensor, Tensor]:
    """Logits of both sequences, extended side by side in three steps, over scattered slots."""
    slots = np.arange(PROBE_SLOTS, dtype=np.int32)[::-1]
    first_slots, second_slots = slots[::2][: len(first)], slots[1::2][: len(second)]
    found: tuple[list[Tensor], list[Tensor]] = ([], [])
    start, other = 0, 0
    for end, other_end in ((16, 10), (20, 11), (21, 13)):
        parts = [Part(first[start:end], first_slots[:end]), Part(second[other:other_end], second_slots[:other_end])]
        logits, windows = paged.run(plain_batch(parts))
        _check_layers(paged.config, windows)
        found[0].append(logits[: end - start])
        found[1].append(logits[end - start :])
        start, other = end, other_end
    return torch.cat(found[0]), torch.cat(found[1])


def _check_layers(config: Any, windows: Mapping[int, int | None]) -> None:
    """Every layer must have attended through us, with the window that the config gives it."""
    expected = _expected_windows(config)
    if len(windows) != len(expected):
        raise _refusal(config, f"{len(windows)} of its {len(expected)} layers use the attention interface")
    for layer, window in expected.items():
        if windows.get(layer) != window:
            raise _refusal(config, f"layer {layer} attends with window {windows.get(layer)}, not {window}")


def _expected_windows(config: Any) -> dict[int, int | None]:
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return dict.fromkeys(range(config.num_hidden_layers), window)
    return {layer: window if kind == "sliding_attention" else None for layer, kind in enumerate(kinds)}


def _refusal(config: Any, reason: str) -> ModelUnsupported:
    return ModelUnsupported(f"transformers' {config.model_type!r} cannot run with this runtime's KV pool: {reason}.")
