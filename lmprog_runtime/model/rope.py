"""Rotary position embeddings as tables of frequencies. Knows no model family and no tensors of a model.

All scalings that transformers computes once from the config are exact here. Two of its scalings change the
frequencies with the length of the running sequence, which no KV cache can follow (keys already stored keep the old
ones); both are exact as long as the sequence stays within the length that the config was made for, so that length
becomes the model's context: `dynamic` (up to max_position_embeddings) and `longrope` (up to the original length).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from lmprog_runtime.errors import ModelUnsupported


@dataclass(frozen=True, slots=True)
class Rope:
    """Element i of a head is rotated with element i + rotary_dim / 2 by position * inverse_frequencies[i]; elements
    from rotary_dim on are left alone. Source: RoFormer (arXiv 2104.09864), in the half-split layout of GPT-NeoX."""

    inverse_frequencies: tuple[float, ...]  # [rotary_dim / 2] float32 values, radians per position
    scale: float  # factor on both cosine and sine

    @property
    def rotary_dim(self) -> int:
        return 2 * len(self.inverse_frequencies)


class RopeFrame(NamedTuple):
    """What the frequencies depend on besides the rope parameters themselves."""

    head_dim: int
    max_positions: int


def make_rope(parameters: Mapping[str, Any], frame: RopeFrame) -> Rope:
    """`parameters` as in transformers' `rope_parameters`. Raises ModelUnsupported for an unknown kind or field."""
    kind = str(parameters["rope_type"])
    if kind not in _KINDS:
        raise ModelUnsupported(f"The config asks for rope type {kind!r}; known: {', '.join(_KINDS)}.")
    compute, fields = _KINDS[kind]
    unknown = set(parameters) - {"rope_type", "rope_theta", "partial_rotary_factor"} - set(fields)
    if unknown:
        raise ModelUnsupported(f"The config's {kind} rope has a field {min(unknown)!r} that is not understood.")
    dim = int(frame.head_dim * parameters.get("partial_rotary_factor", 1.0))
    missing = [name for name in fields if fields[name] and parameters.get(name) is None]
    if missing:
        raise ModelUnsupported(f"The config's {kind} rope lacks {missing[0]!r}.")
    frequencies, scale = compute(parameters, dim, frame)
    return Rope(tuple(frequencies.tolist()), scale)


def context_limit(parameters: Mapping[str, Any], max_positions: int) -> int:
    """Longest sequence for which these frequencies are what transformers computes."""
    if parameters["rope_type"] == "longrope":
        return min(max_positions, int(parameters["original_max_position_embeddings"]))
    return max_positions


def _exponents(dim: int) -> torch.Tensor:
    return torch.arange(0, dim, 2, dtype=torch.float32) / dim


def _plain(parameters: Mapping[str, Any], dim: int, frame: RopeFrame) -> tuple[torch.Tensor, float]:
    del frame
    return 1.0 / (parameters["rope_theta"] ** _exponents(dim)), 1.0


def _linear(parameters: Mapping[str, Any], dim: int, frame: RopeFrame) -> tuple[torch.Tensor, float]:
    return _plain(parameters, dim, frame)[0] / parameters["factor"], 1.0


def _llama3(parameters: Mapping[str, Any], dim: int, frame: RopeFrame) -> tuple[torch.Tensor, float]:
    """Long wavelengths are divided by the factor, short ones kept, those between blended (Llama 3.1 report, 2024)."""
    frequencies = _plain(parameters, dim, frame)[0]
    factor, low, high = (parameters[name] for name in ("factor", "low_freq_factor", "high_freq_factor"))
    length = parameters["original_max_position_embeddings"]
    wavelength = 2 * math.pi / frequencies
    blend = (length / wavelength - low) / (high - low)
    blended = (1 - blend) * frequencies / factor + blend * frequencies
    scaled = torch.where(wavelength > length / low, frequencies / factor, blended)
    return torch.where(wavelength < length / high, frequencies, scaled), 1.0


def _yarn(parameters: Mapping[str, Any], dim: int, frame: RopeFrame) -> tuple[torch.Tensor, float]:
    """Interpolates slow pairs, keeps fast ones, ramps between; source: YaRN (arXiv 2309.00071), section 3."""
    del frame
    frequencies = 1.0 / (parameters["rope_theta"] ** _exponents(dim))
    low, high = _yarn_range(parameters, dim)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    factor = float(parameters["factor"])
    blended = (1.0 / (factor * parameters["rope_theta"] ** _exponents(dim))) * ramp + frequencies * (1 - ramp)
    return blended, _yarn_attention_scale(parameters, factor)


def _yarn_range(parameters: Mapping[str, Any], dim: int) -> tuple[float, float]:
    """First and last pair of the ramp: those that turn beta_fast and beta_slow times over the original length."""

    def pair_turning(times: float) -> float:
        length = parameters["original_max_position_embeddings"]
        return dim * math.log(length / (times * 2 * math.pi)) / (2 * math.log(parameters["rope_theta"]))

    low = pair_turning(parameters.get("beta_fast") or 32)
    high = pair_turning(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    return low, high if high != low else high + 0.001


def _yarn_attention_scale(parameters: Mapping[str, Any], factor: float) -> float:
    if parameters.get("attention_factor") is not None:
        return float(parameters["attention_factor"])

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    weight, weight_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return scale(weight) / scale(weight_all) if weight and weight_all else scale(1.0)


def _longrope(parameters: Mapping[str, Any], dim: int, frame: RopeFrame) -> tuple[torch.Tensor, float]:
    """The frequencies for sequences up to the original length; source: LongRoPE (arXiv 2402.13753)."""
    original = parameters["original_max_position_embeddings"]
    divisors = torch.tensor(parameters["short_factor"], dtype=torch.float32)
    frequencies = 1.0 / (divisors * parameters["rope_theta"] ** _exponents(dim))
    if parameters.get("attention_factor") is not None:
        return frequencies, float(parameters["attention_factor"])
    factor = parameters.get("factor") or frame.max_positions / original
    return frequencies, 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))


_Compute = Callable[[Mapping[str, Any], int, RopeFrame], tuple[torch.Tensor, float]]
_YARN_FIELDS = {"factor": True, "original_max_position_embeddings": True} | dict.fromkeys(
    ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"), False
)
_LONGROPE_FIELDS = {"short_factor": True, "long_factor": True, "original_max_position_embeddings": True}
_LLAMA3_FIELDS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")

# kind -> (how to compute, field -> whether it must be given)
_KINDS: dict[str, tuple[_Compute, dict[str, bool]]] = {
    "default": (_plain, {}),
    "linear": (_linear, {"factor": True}),
    "dynamic": (_plain, {"factor": True}),
    "llama3": (_llama3, dict.fromkeys(_LLAMA3_FIELDS, True)),
    "yarn": (_yarn, _YARN_FIELDS),
    "longrope": (_longrope, _LONGROPE_FIELDS | {"factor": False, "attention_factor": False}),
}
