"""The adapter for lm-evaluation-harness gives what its own transformers backend gives, item by item, in float32."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.real_model import MODEL, model_files

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed")
pytestmark = [
    pytest.mark.model,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("default"),  # lm-eval's own code warns
]
HELLASWAG = Path(__file__).parents[2].parent / "shared" / "data" / "hellaswag_val_first500.jsonl"
ITEMS = 6


@pytest.fixture(scope="module")
def ours() -> Iterator[Any]:
    from lmprog_runtime.harness.lm_eval_model import LmprogModel

    model = LmprogModel(pretrained=MODEL, max_total_tokens=16384)
    yield model
    model.runtime.close()


@pytest.fixture(scope="module")
def theirs() -> Any:
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=str(model_files().directory), dtype="float32", batch_size=4, device="cpu")


def _instances(pairs: list[tuple[Any, ...]], kind: str) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, pair, index) for index, pair in enumerate(pairs)]


def _hellaswag() -> list[tuple[str, str]]:
    if not HELLASWAG.exists():
        pytest.skip("the HellaSwag sample is not beside the checkout")
    rows = [json.loads(line) for line in HELLASWAG.read_text().splitlines()[:ITEMS]]
    return [(row["ctx"], f" {ending}") for row in rows for ending in row["endings"]]


def test_choices_score_alike(ours: Any, theirs: Any) -> None:
    instances = _instances(_hellaswag(), "loglikelihood")
    wanted, found = theirs.loglikelihood(instances, disable_tqdm=True), ours.loglikelihood(instances, disable_tqdm=True)
    assert [logprob for logprob, _ in found] == pytest.approx([logprob for logprob, _ in wanted], abs=1e-3)
    assert [is_greedy for _, is_greedy in found] == [is_greedy for _, is_greedy in wanted]


@pytest.mark.parametrize("pair", [("", "Hello there"), ("The capital of France is ", "Paris"), ("A B C D", " E")])
def test_edges_score_alike(ours: Any, theirs: Any, pair: tuple[str, str]) -> None:
    instances = _instances([pair], "loglikelihood")
    (wanted,), (found,) = (model.loglikelihood(instances, disable_tqdm=True) for model in (theirs, ours))
    assert found[0] == pytest.approx(wanted[0], abs=1e-3)
    assert found[1] == wanted[1]


def test_rolling_likelihoods_are_alike(ours: Any, theirs: Any) -> None:
    instances = _instances([("Rivers shape the land they cross.",), ("Once upon a time",)], "loglikelihood_rolling")
    wanted = theirs.loglikelihood_rolling(instances, disable_tqdm=True)
    assert ours.loglikelihood_rolling(instances, disable_tqdm=True) == pytest.approx(wanted, abs=5e-3)


def test_generations_are_alike(ours: Any, theirs: Any) -> None:
    settings = {"until": ["\n"], "max_gen_toks": 16, "do_sample": False}
    prompts = ["Q: What is the capital of Italy?\nA:", "1, 2, 3, 4,", "The sky is"]
    instances = _instances([(prompt, settings) for prompt in prompts], "generate_until")
    wanted = theirs.generate_until(instances, disable_tqdm=True)
    assert ours.generate_until(instances, disable_tqdm=True) == wanted


def test_an_unknown_setting_is_refused_by_name(ours: Any) -> None:
    instances = _instances([("x", {"until": [], "num_beams": 4})], "generate_until")
    with pytest.raises(ValueError, match="num_beams"):
        ours.generate_until(instances, disable_tqdm=True)


def test_what_does_not_fit_is_cut_from_the_left_and_counted(ours: Any) -> None:
    before = ours.truncated
    context, continuation = ours._fit(list(range(9000)), [1, 2, 3])
    assert len(context) + len(continuation) == ours.max_length
    assert ours.truncated == before + 1
