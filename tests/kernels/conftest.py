"""Implementations under test."""

from __future__ import annotations

import pytest

from lmprog_runtime.ops import Kernels, kernels_for


@pytest.fixture(params=["reference", "triton"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if request.param == "triton":
        pytest.importorskip("triton", minversion="3.9", reason="older interpreters of Triton fail with numpy 2.4")
    return kernels_for("cpu", request.param)
