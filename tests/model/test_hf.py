"""The hf executor: families that run, families that are refused, and steps against eager attention."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from lmprog_runtime.errors import ModelUnsupported
from lmprog_runtime.model import hf, hf_check
from lmprog_runtime.model.files import ModelFiles
from lmprog_runtime.model.hf import HfExecutor
from tests.support.step_batches import Packer, Stream
from tests.support.tiny_models import eager_logits, make_model

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_GPT = {"n_embd": 64, "n_head": 4, "n_layer": 4, "n_positions": 256}
_LATENT = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 32,
    "q_lora_rank": None, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12,
    "num_key_value_heads": 4, "first_k_dense_replace": 1, "head_dim": 8,
}  # fmt: skip
_HYBRID = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_MIXED_LAYERS = {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_state": 8, "mamba_chunk_size": 8}

RUNS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": _GPT,
    "gpt_neox": {},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "phi": {},
    "olmo2": {},
    "cohere2": {"sliding_window": 8},
    "glm4": {},
    "gemma2": {"sliding_window": 8, "query_pre_attn_scalar": 16},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen3_moe": _EXPERTS,
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    "deepseek_v3": _LATENT,
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "gpt_neo": (
        {"attention_types": [[["global", "local"], 2]], "num_layers": 4, "num_heads": 4, "window_size": 8},
        "0 of its 4 layers",
    ),
    "bloom": ({"n_head": 4, "n_layer": 4}, "0 of its 4 layers"),
    "mpt": ({"d_model": 64, "n_heads": 4, "n_layers": 4, "max_seq_len": 256}, "0 of its 4 layers"),
    "mamba": ({"state_size": 8}, "keeps a state"),
    "qwen3_next": ({**_EXPERTS, **_HYBRID, "shared_expert_intermediate_size": 32}, "keeps a state"),
    "falcon_h1": (_MIXED_LAYERS, "keeps a state"),
}


@pytest.fixture(autouse=True)
def _quiet() -> None:
    transformers_logging.set_verbosity_error()


def _save(family: str, fields: dict[str, Any], directory: Path) -> tuple[PreTrainedModel, ModelFiles]:
    model = make_model(family, **fields)
    model.save_pretrained(directory)
    return model, ModelFiles(family, directory, "0", 256, None, None)


@pytest.mark.parametrize("family", RUNS)
def test_steps_equal_eager_attention(family: str, tmp_path: Path) -> None:
    model, files = _save(family, RUNS[family], tmp_path)
    executor, packer = HfExecutor(files, num_slots=96), Packer(96)
    generator = np.random.default_rng(1)
    one, two = generator.integers(3, 128, 30).tolist(), generator.integers(3, 128, 20).tolist()
    branch = one[:15] + generator.integers(3, 128, 4).tolist()
    expected = [eager_logits(model, tokens) for tokens in (one, two, branch)]
    a, b = Stream(), Stream()
    found = [executor.step(packer.step([(a, one[:15]), (b, two[:19])]))]
    c = a.fork()
    found.append(executor.step(packer.step([(a, one[15:29]), (b, two[19:])])))
    found.append(executor.step(packer.step([(c, branch[15:]), (a, one[29:])], shared=15, logit_rows=[3, 4])))
    wanted = (
        expected[0][:15], expected[1][:19], expected[0][15:29], expected[1][19:], expected[2][18:], expected[0][29:],
    )  # fmt: skip
    assert float((torch.cat(found) - torch.cat(wanted)).abs().max()) < 1e-5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", REFUSED)
def test_what_does_not_agree_is_refused(family: str, dtype: str, tmp_path: Path) -> None:
    fields, reason = REFUSED[family]
    _, files = _save(family, fields, tmp_path)
    with pytest.raises(ModelUnsupported, match=reason):
        HfExecutor(files, num_slots=96, dtype=dtype)


@pytest.mark.parametrize("family", ["llama", "gemma2", "mixtral", "gpt_oss", "deepseek_v3"])
def test_16_bit_types_pass_the_self_test(family: str, tmp_path: Path) -> None:
    _, files = _save(family, RUNS[family], tmp_path)
    assert HfExecutor(files, num_slots=96, dtype="bfloat16").dtype == "bfloat16"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sequences_that_see_each_other_are_noticed(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that its model does not declare leaks from one packed sequence into the next."""
    model, files = _save("falcon_h1", _MIXED_LAYERS, tmp_path)
    monkeypatch.setattr(type(model), "_is_stateful", False)
    with pytest.raises(ModelUnsupported, match="in a packed batch are off"):
        HfExecutor(files, num_slots=96, dtype=dtype)


def test_without_memory_for_float32_the_test_is_a_rough_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, files = _save("llama", {}, tmp_path)
    monkeypatch.setattr(hf, "free_memory", lambda device: 0)
    assert HfExecutor(files, num_slots=96, dtype="bfloat16").dtype == "bfloat16"
    monkeypatch.setattr(hf_check, "_ROUGH", 1e-6)
    with pytest.raises(ModelUnsupported, match="in a packed batch are off"):
        HfExecutor(files, num_slots=96, dtype="bfloat16")


def test_a_window_that_only_the_mask_knows_is_refused(tmp_path: Path) -> None:
    """transformers gives some layers their window in the mask alone, which our attention never sees."""
    _, files = _save("llama", {}, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "sliding_window": 8}))
    with pytest.raises(ModelUnsupported, match="layer 0 attends with window None, not 8"):
        HfExecutor(files, num_slots=96)


def test_chunked_attention_bounds_the_context(tmp_path: Path) -> None:
    fields = {"num_local_experts": 2, "intermediate_size_mlp": 96, "attention_chunk_size": 32, "moe_layers": []}
    _, files = _save("llama4_text", fields, tmp_path)
    assert HfExecutor(files, num_slots=96).context_length == 32


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    _, files = _save("llama", {}, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    own = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "evil", "auto_map": own}))
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ModelUnsupported, match="cannot load"):
        HfExecutor(files, num_slots=96)


def test_pools_have_the_size_asked_for_and_kv_moves(tmp_path: Path) -> None:
    _, files = _save("gpt2", _GPT, tmp_path)
    executor = HfExecutor(files, num_slots=40, dtype="bfloat16")
    raw = np.random.default_rng(0).integers(0, 100, (2, 4 * 2 * 64 * 2)).astype(np.uint8)
    executor.write_kv(np.array([3, 39], np.int32), raw)
    assert np.array_equal(executor.read_kv(np.array([3, 39], np.int32)), raw)
    assert (executor.num_slots, executor.vocab_size, executor.context_length) == (40, 128, 256)
