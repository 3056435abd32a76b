"""GGUF files made in the test, converted, and compared with the model and tokenizer that they were made from."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from lmprog_runtime.errors import ModelUnsupported
from lmprog_runtime.model.gguf_convert import GgufFile
from lmprog_runtime.model.gguf_tokenizer import write_tokenizer
from lmprog_runtime.model.tokenizer import Tokenizer
from tests.support.gguf_files import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    View,
    byte_vocabulary,
    write_gguf,
)
from tests.support.tiny_models import make_model

TYPES = {"F32": gguf.GGMLQuantizationType.F32, "F16": gguf.GGMLQuantizationType.F16}


def convert(path: Path, target: Path, **settings: Any) -> dict[str, torch.Tensor]:
    written: list[int] = []
    target.mkdir()
    file = GgufFile(path, **settings)
    file.convert(target, written.append)
    assert sum(written) == file.num_bytes
    return load_file(target / "model.safetensors")


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "attention_bias": True, "rms_norm_eps": 1e-5}),
        ("llama", {"head_dim": 24, "num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 48}),
        ("qwen2", {}),
        ("qwen3", {"tie_word_embeddings": True}),
    ],
)
def test_a_converted_model_is_the_model(family: str, settings: dict[str, Any], tmp_path: Path) -> None:
    model = make_model(family, vocab_size=259, **settings)
    if settings.get("attention_bias"):  # GGUF has no bias on the output
        for layer in model.model.layers:
            torch.nn.init.zeros_(layer.self_attn.o_proj.bias)
    write_gguf_without_output_bias(tmp_path / "m.gguf", family, model)
    convert(tmp_path / "m.gguf", tmp_path / "out")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32, attn_implementation="eager")
    ids = torch.arange(3, 40)[None]
    assert torch.equal(again(ids).logits, model(ids).logits)


def write_gguf_without_output_bias(path: Path, family: str, model: Any) -> None:
    state = {name: value for name, value in model.state_dict().items() if not name.endswith("o_proj.bias")}
    write_gguf(path, family, View(model.config, state))


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_1"])
def test_every_kind_of_number_is_kept_exactly(kind: str, tmp_path: Path) -> None:
    quantised = gguf.GGMLQuantizationType[kind]
    model = make_model("llama", vocab_size=259, num_hidden_layers=1)
    write_gguf(tmp_path / "m.gguf", "llama", model, quantised)
    tensors = convert(tmp_path / "m.gguf", tmp_path / "out")
    weight = model.model.layers[0].mlp.down_proj.weight.detach().numpy()
    expected = gguf.quants.dequantize(gguf.quants.quantize(weight, quantised), quantised)
    got = tensors["model.layers.0.mlp.down_proj.weight"]
    assert np.array_equal(got.float().numpy(), expected)
    dtype = {"F16": "float16", "BF16": "bfloat16"}.get(kind, "float32")
    assert str(got.dtype) == f"torch.{dtype}"
    assert tensors["model.norm.weight"].dtype == torch.float32
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == dtype


def test_quantised_tensors_can_be_rounded_to_bfloat16(tmp_path: Path) -> None:
    model = make_model("llama", vocab_size=259, num_hidden_layers=1)
    write_gguf(tmp_path / "m.gguf", "llama", model, gguf.GGMLQuantizationType.Q4_1)
    exact = convert(tmp_path / "m.gguf", tmp_path / "exact")
    rounded = convert(tmp_path / "m.gguf", tmp_path / "rounded", quantised_as="BF16")
    assert rounded["model.norm.weight"].dtype == torch.float32
    for name, tensor in exact.items():
        assert torch.equal(tensor.to(rounded[name].dtype), rounded[name])
    assert json.loads((tmp_path / "rounded" / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("fields", "scaling"),
    [
        ({}, None),
        ({"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 64},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ),
    ],
)
def test_scaling_of_positions_is_kept(fields: dict[str, Any], scaling: Any, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "llama", make_model("llama", vocab_size=259), **fields)
    convert(tmp_path / "m.gguf", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["rope_scaling"] == scaling


def llama3_divisors(head_dim: int, factor: float) -> np.ndarray:
    """As llama.cpp's converter computes them."""
    divisors = []
    for index in range(0, head_dim, 2):
        wavelength = 2 * np.pi * 10000.0 ** (index / head_dim)
        if wavelength < 8192 / 4:
            divisors.append(1.0)
        elif wavelength > 8192 / 1:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_scaling_of_llama_3_is_recognised(factor: float, tmp_path: Path) -> None:
    model = make_model("llama", vocab_size=259)
    write_with_frequencies(tmp_path / "m.gguf", model, llama3_divisors(16, factor))
    convert(tmp_path / "m.gguf", tmp_path / "out")
    scaling = json.loads((tmp_path / "out" / "config.json").read_text())["rope_scaling"]
    assert scaling == {
        "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip


def test_frequencies_of_another_kind_are_refused(tmp_path: Path) -> None:
    divisors = np.linspace(1, 8, 8, dtype=np.float32)
    write_with_frequencies(tmp_path / "m.gguf", make_model("llama", vocab_size=259), divisors)
    with pytest.raises(ModelUnsupported, match="not those of Llama 3"):
        convert(tmp_path / "m.gguf", tmp_path / "out")


def test_frequencies_in_half_precision_are_refused(tmp_path: Path) -> None:
    divisors = np.ones(7, dtype=np.float16)
    write_with_frequencies(tmp_path / "m.gguf", make_model("llama", vocab_size=259), divisors)
    with pytest.raises(ModelUnsupported, match=r"rope_freqs.weight is stored as F16; only F32 is known"):
        convert(tmp_path / "m.gguf", tmp_path / "out")


def write_with_frequencies(path: Path, model: Any, divisors: np.ndarray) -> None:
    write_gguf(
        path, "llama", View(model.config, {**model.state_dict(), "rope_freqs.weight": torch.from_numpy(divisors)})
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"expert_count": 8}, "mixture of experts"),
        ({"attention__sliding_window": 128}, r"sets 'llama.attention.sliding_window', which is not understood"),
        ({"rope__dimension_count": 8}, "only a part of each head"),
        ({"rope__scaling__type": "longrope", "rope__scaling__factor": 4.0}, "positions by 'longrope'"),
    ],
)
def test_what_would_change_the_computation_is_refused(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "llama", make_model("llama", vocab_size=259, num_hidden_layers=1), **fields)
    with pytest.raises(ModelUnsupported, match=message):
        convert(tmp_path / "m.gguf", tmp_path / "out")


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "mamba", make_model("llama", vocab_size=259, num_hidden_layers=1))
    with pytest.raises(ModelUnsupported, match="architecture 'mamba'; GGUF files can be of: llama, qwen2, qwen3"):
        GgufFile(tmp_path / "m.gguf")


@pytest.mark.parametrize("keep", [0, 3, 40, 2000])
def test_a_file_that_is_cut_is_refused(keep: int, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "llama", make_model("llama", vocab_size=259, num_hidden_layers=1))
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "m.gguf").read_bytes()[:keep])
    with pytest.raises(ModelUnsupported, match=r"cut.gguf cannot be read as a GGUF file"):
        GgufFile(tmp_path / "cut.gguf")


# -- tokenizers -------------------------------------------------------------------------------------------------------


def metadata(**changes: Any) -> dict[str, Any]:
    tokens, kinds = byte_vocabulary()
    content = {
        "general.architecture": "llama",
        "llama.context_length": 64,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [*tokens, "ab", "Ġab", "123", "[PAD1]", "<new>"],
        "tokenizer.ggml.token_type": [*kinds, NORMAL, NORMAL, NORMAL, UNUSED, USER_DEFINED],
        "tokenizer.ggml.merges": ["a b", "Ġ ab"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 0,
    }
    return {**content, **{f"tokenizer.ggml.{name}": value for name, value in changes.items()}}


def built(tmp_path: Path, **changes: Any) -> Tokenizer:
    write_tokenizer(metadata(**changes), tmp_path)
    return Tokenizer((tmp_path / "tokenizer.json").read_bytes())


def test_byte_level_text_is_cut_as_the_file_says(tmp_path: Path) -> None:
    tokenizer = built(tmp_path)
    tokens = metadata()["tokenizer.ggml.tokens"]
    assert tokenizer.encode(" ab") == [tokens.index("Ġab")]
    assert tokenizer.decode_bytes(tokenizer.encode("x  12<|im_end|>\n")) == b"x  12<|im_end|>\n"
    assert tokenizer.special_ids == {0, 1, 2, tokens.index("[PAD1]")}
    assert not set(tokenizer.encode("[PAD1]")) & tokenizer.special_ids
    assert tokenizer.encode("<new>") == [tokens.index("<new>")]
    assert tokenizer.bos_ids == ()


def test_llama_3_starts_prompts_and_takes_whole_words(tmp_path: Path) -> None:
    tokenizer = built(tmp_path, pre="llama-bpe")
    assert tokenizer.bos_ids == (1,)
    assert tokenizer.encode("123") == [metadata()["tokenizer.ggml.tokens"].index("123")]  # no merge makes it


def test_a_file_can_say_that_nothing_starts_a_prompt(tmp_path: Path) -> None:
    assert built(tmp_path, pre="llama-bpe", add_bos_token=False).bos_ids == ()


@pytest.mark.parametrize(
    ("changes", "message"), [({"pre": "tekken"}, "in the way 'tekken'"), ({"model": "bert"}, "'bert'")]
)
def test_unknown_tokenizers_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelUnsupported, match=message):
        built(tmp_path, **changes)


PIECES = ["▁", "a", "b", "c", "ab", "bc", "abc", "▁a", "▁ab", "▁▁", "ca", "aa"]
SCORES = dict(zip(PIECES, [-1e9, -1e9, -1e9, -1e9, -4, -3, -9, -2, -7, -1, -5, -6], strict=True))


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    return metadata(
        model="llama",
        tokens=tokens,
        token_type=[UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(PIECES)],
        scores=[0.0] * 259 + [float(SCORES[piece]) for piece in PIECES],
        unknown_token_id=0,
        eot_token_id=None,
        **changes,
    )


def sentencepiece_oracle(text: str) -> list[str]:
    """SentencePiece's BPE: join the neighbours whose piece has the best score, leftmost first, while there are any."""
    pieces = list(text)
    while True:
        joined = [(-SCORES[a + b], i) for i, (a, b) in enumerate(pairwise(pieces)) if a + b in SCORES]
        if not joined:
            return pieces
        at = min(joined)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("sentencepiece")
    write_tokenizer(sentencepiece_metadata(), folder)
    return Tokenizer((folder / "tokenizer.json").read_bytes())


@given(st.text("abc ", max_size=24))
def test_scores_become_merges_in_sentencepiece_order(sentencepiece: Tokenizer, text: str) -> None:
    pieces = [sentencepiece.decode_bytes([i]).decode().replace(" ", "▁") for i in sentencepiece.encode(text)]
    assert pieces == sentencepiece_oracle(text.replace(" ", "▁"))


def test_sentencepiece_has_bytes_and_a_space_at_the_start(sentencepiece: Tokenizer) -> None:
    assert sentencepiece.decode_bytes(sentencepiece.encode("aé\x04😀")) == "aé\x04😀".encode()
    assert sentencepiece.at_start("a") == " a"
    assert sentencepiece.bos_ids == (1,)


def test_a_sentencepiece_file_can_say_that_no_space_is_added(tmp_path: Path) -> None:
    write_tokenizer(sentencepiece_metadata(add_space_prefix=False), tmp_path)
    assert Tokenizer((tmp_path / "tokenizer.json").read_bytes()).at_start("a") == "a"


def test_transformers_reads_what_is_written(tmp_path: Path) -> None:
    write_tokenizer(sentencepiece_metadata(), tmp_path)
    reference = AutoTokenizer.from_pretrained(tmp_path)
    assert reference.decode(reference.encode("ab c", add_special_tokens=False)) == "ab c"
    assert (reference.bos_token, reference.eos_token, reference.unk_token) == ("<s>", "</s>", "<unk>")
    assert isinstance(reference.backend_tokenizer, tokenizers.Tokenizer)
