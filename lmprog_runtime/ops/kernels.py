"""The torch-callable kernels: which implementation runs on which device."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lmprog_kernels.plan import Plan, Rule, Work
from lmprog_kernels.reference import unpack_mask

__all__ = ["Kernels", "Plan", "Rule", "kernels_for", "unpack_mask"]

_MODULES = {"reference": "lmprog_kernels.reference", "triton": "lmprog_kernels.triton"}


class Kernels(Protocol):
    """One implementation of all kernels; `lmprog_kernels.reference` says what each does."""

    def prepare_plan(
        self, key_slots: NDArray[np.int32], items: NDArray[np.int32], positions: NDArray[np.int32], device: str
    ) -> Plan: ...

    def plan_attention(
        self, queries: Tensor, kv: Tensor, plan: Plan, rule: Rule, sinks: Tensor | None = None
    ) -> Tensor: ...

    def decode_attention(
        self, queries: Tensor, kv: Tensor, plan: Plan, work: Work, rule: Rule
    ) -> tuple[Tensor, Tensor]: ...

    def extend_attention(
        self, queries: Tensor, kv: Tensor, plan: Plan, work: Work, rule: Rule
    ) -> tuple[Tensor, Tensor]: ...

    def shared_prefix_attention(
        self, queries: Tensor, kv: Tensor, plan: Plan, work: Work, rule: Rule
    ) -> tuple[Tensor, Tensor]: ...

    def merge_states(self, out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]: ...

    def store_kv(self, keys: Tensor, values: Tensor, kv: Tensor, slots: Tensor) -> None: ...

    def apply_token_mask(self, logits: Tensor, masks: Tensor) -> None: ...


def kernels_for(device: str, name: str = "auto") -> Kernels:
    """Triton on CUDA where it is installed, else plain torch. `name` ("reference", "triton") overrides, for tests."""
    if name == "auto":
        name = "triton" if device.startswith("cuda") and _has_triton() else "reference"
    return cast(Kernels, _load(name))


@cache
def _load(name: str) -> Any:
    return importlib.import_module(_MODULES[name])


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
