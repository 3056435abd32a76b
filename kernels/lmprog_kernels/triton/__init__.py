"""The kernels in Triton, for CUDA. With TRITON_INTERPRET=1 set before the import they run on the CPU, for tests."""

from lmprog_kernels.plan import prepare_plan
from lmprog_kernels.triton.attention import (
    decode_attention,
    extend_attention,
    merge_states,
    plan_attention,
    shared_prefix_attention,
)
from lmprog_kernels.triton.storage import apply_token_mask, store_kv

__all__ = [
    "apply_token_mask",
    "decode_attention",
    "extend_attention",
    "merge_states",
    "plan_attention",
    "prepare_plan",
    "shared_prefix_attention",
    "store_kv",
]
