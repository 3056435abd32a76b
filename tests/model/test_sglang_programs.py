"""SGLang's own test programs on the default model: those that do not ask for more than it knows."""

from __future__ import annotations

import pytest

import lmprog.compat.sglang
from tests.support.real_model import MODEL
from tests.support.sglang_programs import fetch, programs_of

pytestmark = [pytest.mark.model, pytest.mark.slow]

NEED_KNOWLEDGE = {"test_few_shot_qa", "test_decode_int", "test_tool_use", "test_react", "test_hellaswag_select"}
NEED_EYES = {"test_image_qa"}
UNCHECKED = {"test_select", "test_expert_answer", "test_parallel_encoding"}


@pytest.mark.timeout(300)
def test_programs_run_on_the_default_model(pytestconfig):
    lmprog.compat.sglang.install()
    try:
        import sglang

        with sglang.Runtime(model_path=MODEL) as runtime:
            sglang.set_default_backend(runtime)
            programs = programs_of(fetch("0.5.23", pytestconfig.cache.mkdir("sglang-wheels")))
            for name in programs.keys() - NEED_KNOWLEDGE - NEED_EYES:
                programs[name](**({"check_answer": False} if name in UNCHECKED else {}))
    finally:
        lmprog.compat.sglang.uninstall()
