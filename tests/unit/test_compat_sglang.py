"""The stand-in for sglang: imports, words, states, and what it refuses."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
import types
from pathlib import Path

import pytest

import lmprog
import lmprog.compat.sglang
from lmprog import ScriptedBackend
from lmprog.backends.base import TokenLogprob
from lmprog.compat.sglang.modules import MODULES
from lmprog.compat.sglang.words import translated
from lmprog.errors import InvalidArgument, UnknownParameter, UnsupportedParameter
from tests.support.sglang_programs import ran

ROOT = Path(__file__).parents[2]


# -- imports ----------------------------------------------------------------------------------------------------------


def test_all_modules_and_names_are_there(sgl):
    for name, targets in MODULES.items():
        module = importlib.import_module(name)
        for each in targets:
            assert getattr(module, each) is not None
        assert set(dir(module)) == set(targets)


def test_star_imports(sgl):
    scope = {}
    exec("from sglang import *\nfrom sglang.lang.ir import *", scope)
    assert scope["gen"] is sgl.gen
    assert scope["REGEX_INT"]


def test_submodules_can_be_reached_without_an_import(sgl):
    assert sgl.lang.ir.REGEX_BOOL == "(True|False)"


def test_a_name_is_stronger_than_a_submodule_of_that_name(sgl):

    assert sgl.global_config.verbosity == 0
    assert importlib.import_module("sglang.global_config").global_config is sgl.global_config


def test_what_the_stand_in_has_not(sgl):
    with pytest.raises(
        AttributeError, match="lmprog's stand-in for sglang has no 'VertexAI'; it has Anthropic, Engine"
    ):
        _ = sgl.VertexAI
    with pytest.raises(ModuleNotFoundError, match=r"lmprog's stand-in for sglang has no module sglang\.srt\.layers"):
        importlib.import_module("sglang.srt.layers")
    with pytest.raises(ImportError):
        exec("from sglang.lang.ir import SglVariable", {})


def test_installing_twice_and_undoing():
    before = list(sys.meta_path)
    lmprog.compat.sglang.install()
    lmprog.compat.sglang.install()
    importlib.import_module("sglang.lang.api")
    assert len(sys.meta_path) == len(before) + 1
    lmprog.compat.sglang.uninstall()
    assert sys.meta_path == before
    assert not [name for name in sys.modules if name.split(".")[0] == "sglang"]


def test_another_sglang_is_not_replaced(monkeypatch):
    monkeypatch.setitem(sys.modules, "sglang", types.ModuleType("sglang"))
    with pytest.raises(InvalidArgument, match="sglang has been imported already; call install"):
        lmprog.compat.sglang.install()


def test_running_a_script(tmp_path):
    (tmp_path / "helper.py").write_text("WORD = 'helped'")
    script = tmp_path / "program.py"
    script.write_text(
        "import sys, helper, sglang as sgl\n"
        "from lmprog import ScriptedBackend\n"
        "@sgl.function\n"
        "def f(s):\n"
        "    s += 'a' + sgl.gen('x')\n"
        "if __name__ == '__main__':\n"
        "    print(f.run(backend=ScriptedBackend('b'))['x'], helper.WORD, sys.argv[1:])\n"
    )
    command = [sys.executable, "-m", "lmprog.compat.sglang", str(script), "one"]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout == "b helped ['one']\n"
    out = subprocess.run(command[:3], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (out.returncode, out.stderr) == (1, "usage: python -m lmprog.compat.sglang program.py [arguments]\n")


# -- words ------------------------------------------------------------------------------------------------------------


def test_parameters_have_the_same_names_and_order(sgl):
    backend = ScriptedBackend("x")
    ran(
        sgl,
        lambda s: s.__iadd__(
            sgl.gen("a", 5, 1, None, ["."], [7], ["a", "b"], 0.5, 0.9, 3, 0.1, 0.2, 0.3, True, True, None, 2)
        ),
        backend,
    ).sync()
    assert backend.calls[0].sampling.given() == {
        "max_tokens": 5,
        "min_tokens": 1,
        "stop": (".",),
        "stop_token_ids": (7,),
        "stop_regex": "(?:a)|(?:b)",
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.3,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 2,
    }


def test_options_of_a_run(sgl):
    backend = ScriptedBackend("x")
    program = sgl.function(lambda s, question: s.__iadd__(question + sgl.gen("a")))
    program.run("q", max_new_tokens=9, temperature=0.5, stop=[], return_logprob=None, backend=backend).sync()
    program.run(question="q", backend=backend, use_thread=False).sync()
    program(question="q", backend=backend, stop=".").sync()
    assert [call.sampling.given() for call in backend.calls] == [
        {"max_tokens": 9, "temperature": 0.5},
        {"max_tokens": 128},
        {"max_tokens": 128, "stop": (".",)},
    ]


def test_an_argument_may_have_the_name_of_an_option(sgl):
    program = sgl.function(lambda s, temperature: s.__iadd__(f"{temperature}" + sgl.gen("a")))
    backend = ScriptedBackend("x")
    assert program.run(temperature="warm", backend=backend).text() == "warmx"
    assert backend.calls[0].sampling.temperature is None


def test_misspelt_options_and_things_that_cannot_be(sgl):
    program = sgl.function(lambda s: s.__iadd__(sgl.gen("a")))
    with pytest.raises(UnknownParameter, match="did you mean 'temperature'"):
        program.run(temprature=1, backend=ScriptedBackend("x"))
    with pytest.raises(TypeError):
        sgl.gen("a", temprature=1)
    with pytest.raises(InvalidArgument, match="no log-probabilities of prompts"):
        sgl.gen("a", logprob_start_len=0)
    assert translated({"logprob_start_len": -1, "return_text_in_logprobs": True}) == {}


def test_values_are_texts(sgl):
    backend = ScriptedBackend({"int $": "12", "str $": '"a"', "json $": '{"a":1}'})

    def body(s):
        s += (
            "int "
            + sgl.gen_int("i")
            + "str "
            + sgl.gen_string("s")
            + "json "
            + sgl.gen("j", json_schema={"type": "object"})
        )
        s += s["i"] + s["j"]

    state = ran(sgl, body, backend)
    assert (state["i"], state["s"], state["j"]) == ("12", '"a"', '{"a":1}')
    assert state.text().endswith('12{"a":1}')


def test_choices(sgl):
    backend = ScriptedBackend(scores={"a": -2.0, "b": -1.0})
    state = ran(sgl, lambda s: s.__iadd__(sgl.select("x", ["a", "b"]) + sgl.gen("y", choices=["a", "b"])), backend)
    assert (state["x"], state["y"]) == ("b", "b")
    assert state.get_meta_info("x")["normalized_prompt_logprobs"] == [-2.0, -1.0]


def test_pictures_are_refused_by_models_that_do_not_see(sgl):
    program = sgl.function(lambda s: s.__iadd__(sgl.user(sgl.image("a.png") + sgl.video("b.mp4", 4) + "What?")))
    assert "<image a.png><video b.mp4, 4 frames>What?" in program.run(backend=ScriptedBackend("x")).text()
    with pytest.raises(UnsupportedParameter, match="special"):
        program.run(backend=ScriptedBackend("x", unsupported=["special"]))


# -- functions and states ---------------------------------------------------------------------------------------------


def test_a_tree_of_thought_program(sgl):
    """As benchmark programs write it: forks of forks, by index, with joins."""

    @sgl.function
    def tree(s, question):
        s += sgl.user(question)
        plans = s.fork(2)
        plans += sgl.user("Plan.") + sgl.assistant(sgl.gen("plan", n=None))
        for i in range(2):
            answers = plans[i].fork(3)
            for f in answers:
                f += sgl.user("Answer.") + sgl.assistant(sgl.gen("answer"))
            answers.join()
            s[f"answers{i}"] = plans[i]["answer"]
        plans.join()
        with s.copy() as scratch:
            scratch += sgl.user("Aside.") + sgl.assistant(sgl.gen("aside"))
            s.set_var("noted", scratch.get_var("aside"))
        return len(plans)

    backend = ScriptedBackend(lambda call: f"n{call.number}")
    state = tree.run(question="Q?", backend=backend)
    assert state["plan"] == ["n1", "n2"]
    assert len(state["answers0"]) == len(state["answers1"]) == 3
    assert state["noted"] == "n9"
    assert state.ret_value == 2
    assert "noted" in state
    assert "other" not in state
    assert [m["role"] for m in state.messages()] == ["user"]
    assert state.error() is None
    assert repr(state).startswith("ProgramState(<|im_start|>user")


def test_groups(sgl):
    @sgl.function
    def program(s):
        s += "root "
        forks = s.fork(2)
        forks += ["a", "b"]
        forks += lambda i: f"{i}" + sgl.gen("x")
        forks[0] += "end"
        with pytest.raises(InvalidArgument, match="A branch cannot be replaced"):
            forks[0] = forks[1]
        forks.join("concate_and_append")

    assert program.run(backend=ScriptedBackend("!")).text() == "root a0!endb1!"


def test_turns_and_scopes(sgl):
    @sgl.function
    def program(s):
        s.system("Be kind.")
        with s.user():
            s += "Hi"
        with s.assistant(), s.var_scope("all"):
            s += "Oh, " + sgl.gen("x")

    state = program.run(backend=ScriptedBackend("hello"))
    assert state["all"] == "Oh, hello"
    assert [m["content"] for m in state.messages()] == ["Be kind.", "Hi", "Oh, hello"]


def test_things_that_cannot_be_appended(sgl):
    with pytest.raises(InvalidArgument, match="None cannot be appended"):
        ran(sgl, lambda s: s.__iadd__(None), ScriptedBackend("x"))
    with pytest.raises(InvalidArgument, match="leave position_ids_offset out"):
        ran(sgl, lambda s: s.fork(2, [0, 5]), ScriptedBackend("x"))


def test_errors_name_the_line_of_the_program(sgl):
    def body(s):
        s += sgl.gen("x")

    error = ran(sgl, body, ScriptedBackend(RuntimeError("boom"))).error()
    assert "test_compat_sglang.py" in "".join(error.__notes__)


def test_binding_tracing_caching(sgl):
    @sgl.function
    def program(s, a, b="B"):
        s += "fixed " + a + b + sgl.gen("x")

    bound = program.bind(a="A")
    assert bound.run(backend=ScriptedBackend("!")).text() == "fixed AB!"
    assert "gen" in str(program.trace(a="A"))
    backend = ScriptedBackend("!", scores={".": -1.0})
    assert program.cache(backend).startswith("fixed ")


@pytest.mark.parametrize("items", [[{"q": "1"}, {"q": "2"}], [("1",), ("2",)], [["1"], ["2"]]])
def test_batches(sgl, items):
    program = sgl.function(lambda s, q: s.__iadd__(q + sgl.gen("x")))
    backend = ScriptedBackend("!")
    assert [state.text() for state in program.run_batch(items, backend=backend, max_new_tokens=3)] == ["1!", "2!"]
    generator = program.run_batch(items, backend=backend, generator_style=True, num_threads=2)
    assert [state.text() for state in generator] == ["1!", "2!"]
    assert program.run_batch([], backend=backend) == []
    assert {call.sampling.max_tokens for call in backend.calls} == {3, 128}


def test_functions_keep_their_names(sgl):
    @sgl.function
    def documented(s):
        """What it does."""

    assert (documented.__name__, documented.__doc__) == ("documented", "What it does.")


def test_a_program_runs_another(sgl):
    inner = sgl.function(lambda s: s.__iadd__("in" + sgl.gen("x")))

    def outer(s):
        s += "out" + inner()["x"]

    assert ran(sgl, outer, ScriptedBackend("!")).text() == "out!"


def test_streams(sgl):
    program = sgl.function(lambda s: s.__iadd__("a" + sgl.gen("x")))
    backend = ScriptedBackend("b c", token_delay=0.001)
    assert "".join(program.run(backend=backend, stream=True).text_iter()) == "ab c"
    assert "".join(program.run(backend=backend, stream=True).text_iter(var_name="x")) == "b c"

    async def collect(**options):
        state = program.run(backend=backend, stream=True)
        return [piece async for piece in state.text_async_iter("x", **options)]

    assert "".join(asyncio.run(collect())) == "b c"
    ((text, meta),) = asyncio.run(collect(return_meta_data=True))
    assert (text, meta["completion_tokens"]) == ("b c", 2)


def test_meta_data_needs_a_variable(sgl):
    async def read():
        state = ran(sgl, lambda s: s.__iadd__("a"), ScriptedBackend("x"))
        return [piece async for piece in state.text_async_iter(return_meta_data=True)]

    with pytest.raises(InvalidArgument, match="return_meta_data needs the variable"):
        asyncio.run(read())


def test_meta_info_has_the_formats(sgl):
    class Scored(ScriptedBackend):
        def _generate(self, call, known_words):
            logprobs = (TokenLogprob("b", 7, -0.5, (("b", -0.5), ("c", -1.5))),)
            return super()._generate(call, known_words)._replace(logprobs=logprobs)

    meta = ran(sgl, lambda s: s.__iadd__("a" + sgl.gen("x", stop=".")), Scored("b. c")).get_meta_info("x")
    assert meta["finish_reason"] == {"type": "stop", "matched": "."}
    assert meta["output_token_logprobs"] == [(-0.5, 7, "b")]
    assert meta["output_token_logprobs_length"] == 1
    assert meta["output_top_logprobs"] == [[(-0.5, None, "b"), (-1.5, None, "c")]]
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (1, 1)


def test_separate_reasoning(sgl):
    backend = ScriptedBackend("<think>hm</think>yes")
    program = sgl.function(
        lambda s: s.__iadd__(sgl.separate_reasoning(sgl.assistant(sgl.gen("x")), model_type="qwen3"))
    )
    state = program.run(backend=backend)
    assert (state["x"], state["x_reasoning_content"]) == ("yes", "hm")
