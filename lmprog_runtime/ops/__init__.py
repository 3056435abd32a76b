"""Picks the kernels. The only place of the runtime that imports lmprog_kernels."""

from lmprog_runtime.ops.kernels import Kernels, Plan, Rule, kernels_for, unpack_mask

__all__ = ["Kernels", "Plan", "Rule", "kernels_for", "unpack_mask"]
