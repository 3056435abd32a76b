"""Every kernel in plain torch, on any device: the meaning of the names, and the fallback."""

from lmprog_kernels.plan import prepare_plan
from lmprog_kernels.reference.attention import (
    decode_attention,
    extend_attention,
    merge_states,
    plan_attention,
    shared_prefix_attention,
)
from lmprog_kernels.reference.storage import apply_token_mask, store_kv, unpack_mask

__all__ = [
    "apply_token_mask",
    "decode_attention",
    "extend_attention",
    "merge_states",
    "plan_attention",
    "prepare_plan",
    "shared_prefix_attention",
    "store_kv",
    "unpack_mask",
]
