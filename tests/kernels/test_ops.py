"""The choice of kernels, and that implementations are interchangeable."""

from __future__ import annotations

import inspect

import pytest

from lmprog_runtime.ops import Kernels, kernels_for

NAMES = [name for name in vars(Kernels) if not name.startswith("_")]


@pytest.mark.parametrize("name", NAMES)
def test_every_implementation_has_the_same_signature(kernels: Kernels, name: str) -> None:
    wanted = list(inspect.signature(getattr(Kernels, name)).parameters)[1:]
    assert list(inspect.signature(getattr(kernels, name)).parameters) == wanted


def test_there_is_something_to_compare() -> None:
    assert {"plan_attention", "store_kv", "merge_states", "apply_token_mask"} <= set(NAMES)


def test_the_cpu_takes_the_reference_unless_told_otherwise() -> None:
    assert kernels_for("cpu") is kernels_for("cpu", "reference")


def test_detection_happens_once() -> None:
    assert kernels_for("cpu") is kernels_for("cpu")
