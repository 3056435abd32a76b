"""llama.cpp's side of `lmprog bench peers`: what its sequences are told, against a model that notices every mistake."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lmprog_runtime.bench import peers
from lmprog_runtime.bench.llama_cpp_model import Piece, _batch
from lmprog_runtime.bench.llama_cpp_side import LlamaCpp, llama_cpp_side
from lmprog_runtime.bench.workloads import Workload
from lmprog_runtime.errors import RequestRefused
from tests.support.sequence_model import SequenceModel, logits_after

SHARED = [4, 8, 15, 16, 23]


@pytest.fixture
def models() -> tuple[SequenceModel, SequenceModel]:
    return SequenceModel(), SequenceModel()


@pytest.fixture
def side(models: tuple[Any, Any]) -> LlamaCpp:
    return LlamaCpp("llama.cpp", *models)


def _greedy(prompt: list[int], count: int) -> list[int]:
    known = list(prompt)
    for _ in range(count):
        known.append(int(logits_after(known).argmax()))
    return known[len(prompt) :]


def _prompts(count: int) -> list[list[int]]:
    return [[*SHARED, number, 7] for number in range(count)]


def test_answers_after_a_shared_beginning(side: LlamaCpp, models: tuple[SequenceModel, SequenceModel]) -> None:
    work = Workload("few-shot", _prompts(40), 3, len(SHARED))
    assert side.answers(work) == [_greedy(prompt, 3) for prompt in work.prompts]
    assert models[0].computed == len(SHARED) + 40 * (2 + 2), "the shared beginning once, and no last token"
    assert side.run(work).output_lens == [3] * 40, "from an empty cache again"


def test_json_answers_have_their_own_lengths(side: LlamaCpp, models: tuple[SequenceModel, SequenceModel]) -> None:
    work = Workload("JSON", _prompts(3), 9, len(SHARED), schema="{}", answer_lens=(1, 4, 2))
    assert side.answers(work) == [
        _greedy(prompt, count) for prompt, count in zip(work.prompts, work.answer_lens, strict=True)
    ]
    assert models[0].batch_sizes == [len(SHARED), 6, 2, 1, 1], "an answer that is long enough leaves the batch"


def test_conversations_go_on_from_what_was_said(side: LlamaCpp, models: tuple[SequenceModel, SequenceModel]) -> None:
    first, later = [[1, 2], [3, 4]], [[[5, 6], [7, 8]], [[9, 10], [11, 12]]]
    wanted: list[list[int]] = []
    for prompt, turns in zip(first, later, strict=True):
        known = list(prompt)
        for turn in [*turns, []]:
            wanted.append(_greedy(known, 3))
            known += [*wanted[-1], *turn]
    assert side.answers(Workload("chat", first, 3, later_turns=later)) == wanted
    assert models[1].computed == 2 * (3 * 2 + 3 * 3 - 1), "no token twice, and not the last one"
    assert side.answers(Workload("alone", first, 3)) == [_greedy(prompt, 3) for prompt in first]


def test_sums_of_choices(side: LlamaCpp, models: tuple[SequenceModel, SequenceModel]) -> None:
    prompts = _prompts(11)
    choices = [[[number, 1, 2], [number, 1, 3], [4, 4, number]] for number in range(11)]
    found = side.run(Workload("choices", prompts, 0, len(SHARED), choices=choices)).choice_logprobs
    wanted = [[_logprob(prompt, ids) for ids in some] for prompt, some in zip(prompts, choices, strict=True)]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert models[0].computed == len(SHARED) + 11 * (2 + 3 * 2)


def _logprob(prompt: list[int], choice: list[int]) -> float:
    total = 0.0
    for number, token in enumerate(choice):
        logits = logits_after([*prompt, *choice[:number]]).astype(np.float64)
        total += float(logits[token] - np.log(np.exp(logits).sum()))
    return total


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestRefused, match="takes a GGUF file"), llama_cpp_side(tmp_path / "no.gguf", "int8", 9, 1):
        pass


def test_conversations_beyond_the_context_are_refused(side: LlamaCpp) -> None:
    work = Workload("chat", [[1, 2]] * 17, 2, later_turns=[[]] * 17)
    with pytest.raises(RequestRefused, match="up to 16 conversations"):
        side.run(work)


class _Batch(ctypes.Structure):
    """As llama.h declares it."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


def test_a_batch_says_of_each_token_where_it_stands_and_whose_it_is() -> None:
    pieces = [Piece([5, 6, 7], 10, [1, 2], 1), Piece([], 4, [3]), Piece([8], 0, [4], 1)]
    made, arrays = _batch(SimpleNamespace(llama_batch=_Batch), pieces)
    count = made.n_tokens
    assert count == 4
    assert made.token[:count] == [5, 6, 7, 8]
    assert made.pos[:count] == [10, 11, 12, 0]
    assert made.logits[:count] == [0, 0, 1, 1]
    owners = [made.seq_id[i][: made.n_seq_id[i]] for i in range(count)]
    assert owners == [[1, 2], [1, 2], [1, 2], [4]]
    assert arrays


@pytest.mark.parametrize("name", ["int8", "int4", "gguf", "bfloat16"])
def test_transformers_computes_in_bfloat16_what_is_no_float_here(name: str) -> None:
    assert peers._float_dtype(name) is torch.bfloat16
    assert peers._float_dtype("float32") is torch.float32
