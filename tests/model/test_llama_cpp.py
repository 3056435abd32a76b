"""llama.cpp through its batch API: the default model's file gives what this project's executor finds in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lmprog_runtime.bench.llama_cpp_side import LlamaCpp, llama_cpp_side
from lmprog_runtime.bench.sides import Ours
from lmprog_runtime.bench.workloads import Workload, make_workloads
from lmprog_runtime.ops.native import available_levels
from lmprog_runtime.runtime import LocalRuntime
from tests.support.default_model import default_tokenizer
from tests.support.real_model import MODEL, model_files

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not available_levels(), reason="the C++ library does not run here"),
]
SMALL = {work.name: work._replace(new_tokens=4) for work in make_workloads(default_tokenizer(), 5, 0.03)}
SMALL["chat"] = SMALL["chat"]._replace(
    prompts=[ids[:20] for ids in SMALL["chat"].prompts],
    later_turns=[[ids[:9] for ids in turns] for turns in SMALL["chat"].later_turns or []],
)


def _file() -> Path:
    file = model_files().gguf
    if file is None:
        pytest.skip("the default model is here from the Hub, without its GGUF file")
    return file


@pytest.fixture(scope="module")
def side() -> Iterator[LlamaCpp]:
    with llama_cpp_side(_file(), "gguf", 49152, 1) as made:
        yield made


@pytest.mark.parametrize("name", ["few-shot", "chat", "fork", "JSON extraction"])
def test_sharing_changes_no_answer(side: LlamaCpp, name: str) -> None:
    """Each prompt on its own: nothing is shared, nothing decodes together. Near ties may fall otherwise.

    Answers to something else have almost no token in common.
    """
    work = SMALL[name]
    work = work._replace(answer_lens=(4,) * len(work.prompts))
    answers = side.answers(work)
    turns = [
        [first, *more] for first, more in zip(work.prompts, work.later_turns or [[]] * len(work.prompts), strict=True)
    ]
    each = len(turns[0])
    wanted = []
    for number, conversation in enumerate(turns):
        known: list[int] = []
        for turn, answer in zip(conversation, answers[number * each :], strict=False):
            known += turn
            wanted += side.answers(Workload("alone", [known], 4))
            known += answer
    assert [len(answer) for answer in answers] == [4] * len(wanted)
    assert np.mean(np.array(answers) == np.array(wanted)) > 0.7


@pytest.mark.parametrize("dtype", ["gguf", "int8"])
def test_choices_are_scored_as_here(dtype: str) -> None:
    runtime = LocalRuntime.start(model=MODEL, dtype=dtype, max_total_tokens=2048, threads=1)
    try:
        ours = Ours(runtime).run(SMALL["choices"]).choice_logprobs
    finally:
        runtime.close()
    with llama_cpp_side(_file(), dtype, 49152, 1) as made:
        theirs = made.run(SMALL["choices"]).choice_logprobs
    np.testing.assert_allclose(theirs, ours, rtol=0.03)
