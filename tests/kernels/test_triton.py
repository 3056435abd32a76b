"""What is particular to Triton: long items in ranges, a whole decoder on its kernels, and compilation for a card."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lmprog_kernels.plan import Rule, prepare_plan
from lmprog_runtime.model import sampler
from lmprog_runtime.model.decoder import TorchExecutor
from lmprog_runtime.model.model_spec import read_spec
from lmprog_runtime.model.weights import open_weights
from lmprog_runtime.ops import kernels_for
from lmprog_runtime.request import Constraint, GenerateRequest
from lmprog_runtime.runtime import constraint_compiler
from tests.support.attention_oracle import Case, PlanBuilder, dense_attention
from tests.support.step_batches import Packer, Stream
from tests.support.tiny_engine import TINY_VOCAB, TOKENIZER, greedy, prompt, run, start, tiny_engine
from tests.support.tiny_models import eager_logits, make_model, save_model

pytest.importorskip("triton", minversion="3.9", reason="older interpreters of Triton fail with numpy 2.4")


@pytest.mark.parametrize("rule", [{}, {"window": 700}, {"window": 20}])
def test_long_items_are_cut_into_ranges(rule: dict[str, int]) -> None:
    """1,100 and 600 keys from position 300 on: three and two ranges of 512, the first and last of them partial."""
    builder = PlanBuilder(np.random.default_rng(0), 2000)
    builder.extend(builder.take(1100), 1, first_position=300)
    builder.extend(builder.take(3), 2, first_position=900)
    builder.share(builder.take(600), 1, 2, first_position=300)
    torch.manual_seed(0)
    positions = np.array(builder.positions, np.int32)
    case = Case(torch.randn(3, 2, 16), torch.randn(2000, 2, 1, 16), builder.plan(), positions)
    plan = prepare_plan(case.plan.key_slots, case.plan.items, positions)
    found = kernels_for("cpu", "triton").plan_attention(case.queries, case.kv, plan, Rule(0.25, **rule))
    assert float((found - dense_attention(case, scale=0.25, **rule)).abs().max()) < 2e-6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_decoder_on_triton_kernels(dtype: str, tmp_path: Path) -> None:
    model = save_model("gemma2", tmp_path)
    spec = read_spec(tmp_path)
    weights = open_weights(tmp_path, spec)
    executor = TorchExecutor(spec, weights, num_slots=40, dtype=dtype, kernels=kernels_for("cpu", "triton"))
    tokens, packer, stream = [5, 17, 99, 4, 63, 8, 21, 5, 40, 77, 12, 3], Packer(40), Stream()
    steps = [executor.step(packer.step([(stream, tokens[a:b])])) for a, b in ((0, 8), (8, 11), (11, 12))]
    expected = eager_logits(model, tokens)
    limit = 1e-5 if dtype == "float32" else 0.06 * float(expected.abs().max())
    assert float((torch.cat(steps) - expected).abs().max()) < limit


def test_the_engine_on_triton_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cached prefixes, a batch, and a constraint's masks: what a card runs, with the tokens of the reference."""
    make_model("llama", vocab_size=TINY_VOCAB, num_hidden_layers=1).save_pretrained(tmp_path)
    spec = read_spec(tmp_path)

    def answers(name: str) -> list[tuple[int, ...]]:
        monkeypatch.setattr(sampler, "kernels_for", lambda device: kernels_for(device, name))
        executor = TorchExecutor(spec, open_weights(tmp_path, spec), num_slots=64, kernels=kernels_for("cpu", name))
        with tiny_engine(executor, compiler=constraint_compiler(TOKENIZER)) as engine:
            first = run(engine, GenerateRequest(prompt("shared, "), greedy(3)))
            waiting = [start(engine, GenerateRequest(prompt(f"shared, {tail}"), greedy(3)))[1] for tail in "ab"]
            digits = GenerateRequest(prompt("shared"), greedy(3), constraint=Constraint("regex", "[0-9]{3}"))
            return [result.token_ids for result in (first, *(each.result() for each in waiting), run(engine, digits))]

    assert answers("triton") == answers("reference")


def test_a_card_takes_triton() -> None:
    assert kernels_for("cuda") is kernels_for("cuda:1") is kernels_for("cpu", "triton")


_COMPILE = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lmprog_kernels.triton import attention, kernels

POINTERS = dict.fromkeys(("queries", "kv", "keys", "values"), "*bf16")
POINTERS |= dict.fromkeys(("out", "lse", "merged", "merged_lse", "logits"), "*fp32")
POINTERS |= dict.fromkeys(("key_slots", "items", "offsets", "positions", "slots", "masks"), "*i32")
POINTERS |= dict.fromkeys(("row_starts", "row_states"), "*i32")
FLOATS = dict.fromkeys(("scale", "softcap"), "fp32")


def compile_for_card(kernel, **constants):
    names = {name: {**POINTERS, **FLOATS}.get(name, "i32") for name in kernel.arg_names}
    names |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, signature=names, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert compiled.metadata.shared < 200 * 1024
    assert compiled.asm["cubin"]


size = dict(HEADS=9, DIM=64)
for tiling in (attention.DECODE, attention.EXTEND, attention.SHARED):
    tile = dict(TILE=tiling.heads_times_rows, KEYS=tiling.keys, SPLIT=tiling.split)
    flags = dict(GROUP=3, DIM_BLOCK=64, HAS_WINDOW=True, HAS_SOFTCAP=True, DOT=tl.bfloat16)
    compile_for_card(kernels.attend_tiles_kernel, **size, **tile, **flags)
compile_for_card(kernels.merge_states_kernel, **size, DIM_BLOCK=64, BY_ROW=True)
compile_for_card(kernels.merge_states_kernel, **size, DIM_BLOCK=64, BY_ROW=False)
compile_for_card(kernels.store_kernel, **size, BLOCK=1024)
compile_for_card(kernels.mask_tokens_kernel, BLOCK=1024)
"""


@pytest.mark.slow
def test_every_kernel_compiles_for_a_card(tmp_path: Path) -> None:
    """No card is needed for that. The interpreter runs kernels as Python and misses what the compiler refuses."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _COMPILE], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
