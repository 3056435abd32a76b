"""The stand-in for sglang: its backends, its engine, and the utilities of its benchmark programs."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

import pytest

from lmprog import ScriptedBackend
from lmprog.compat.sglang.engine import Engine
from lmprog.compat.sglang.runtime import local_settings
from lmprog.errors import InvalidArgument, UnknownParameter
from tests.support.sglang_programs import ran

# -- backends ---------------------------------------------------------------------------------------------------------


def test_the_default_backend_counts(sgl):
    backend = ScriptedBackend("b c", scores={"x": -1.0, "y": -2.0})
    sgl.set_default_backend(backend)
    default = sgl.global_config.default_backend
    program = sgl.function(lambda s: s.__iadd__("a " + sgl.gen("x") + sgl.select("y", ["x", "y"])))
    program.run().sync()
    assert (default.token_usage.prompt_tokens, default.token_usage.completion_tokens) == (4, 2)
    default.token_usage.reset()
    assert default.token_usage.prompt_tokens == 0
    assert default.endpoint.get_model_name() == "scripted"
    assert default.calls is backend.calls
    assert sgl.get_server_info()["backend"] == "scripted"
    assert sgl.flush_cache() is True
    sgl.global_config.default_backend = default
    assert sgl.global_config.default_backend is default
    assert backend.open_streams == 0


def test_speculation_goes_through_the_counter(sgl):
    sgl.set_default_backend(ScriptedBackend({"n:$": "1\nm:2\n", "m:$": "2\n"}))
    usage = sgl.global_config.default_backend.token_usage

    def body(s):
        s += "n:" + sgl.gen("n", stop="\n") + "\nm:" + sgl.gen("m", stop="\n")

    assert sgl.function(num_api_spec_tokens=9)(body).run()["m"] == "2"
    ahead = usage.prompt_tokens
    usage.reset()
    assert sgl.function(body).run()["m"] == "2"
    assert ahead < usage.prompt_tokens


def test_settings_of_the_runtime():
    assert local_settings(
        {
            "model_path": "m",
            "dtype": "half",
            "tp_size": 1,
            "tokenizer_path": "m",
            "log_level": "error",
            "port": 30000,
            "chunked_prefill_size": 64,
            "context_length": 512,
        }
    ) == {"model": "m", "dtype": "float16", "step_tokens": 64, "context_length": 512}
    with pytest.raises(InvalidArgument, match="no setting like tp_size=2; it has chunked_prefill_size, context_length"):
        local_settings({"tp_size": 2})
    with pytest.raises(InvalidArgument, match="mem_fraction_static"):
        local_settings({"mem_fraction_static": 0.8})
    with pytest.raises(InvalidArgument, match="tokenizer_path"):
        local_settings({"model_path": "m", "tokenizer_path": "other"})


def test_the_engine():
    backend = ScriptedBackend(lambda call: call.prompt.upper())
    with Engine.over(backend) as engine:
        assert engine.generate("a", {"max_new_tokens": 3, "temperature": 0})["text"] == "A"
        assert [each["text"] for each in engine.generate(["a", "b"])] == ["A", "B"]
        many = engine.generate(["a", "b"], [{"temperature": 0}, {"temperature": 1}], return_logprob=True)
        assert [each["meta_info"]["completion_tokens"] for each in many] == [1, 1]
        assert [each["text"] for each in engine.generate("a b", stream=True)][-1] == "A B"
        assert engine.generate("ab", {"regex": "[A-B]+"})["text"] == "AB"
        assert asyncio.run(engine.async_generate(["a"]))[0]["text"] == "A"
        assert engine.get_server_info()["backend"] == "scripted"
        engine.flush_cache()
        with pytest.raises(InvalidArgument, match="stream=True takes one prompt"):
            engine.generate(["a"], stream=True)
        with pytest.raises(InvalidArgument, match="There are 1 sampling_params for 2 prompts"):
            engine.generate(["a", "b"], [{}])
        with pytest.raises(UnknownParameter, match="max_newtokens"):
            engine.generate("a", {"max_newtokens": 1})
    assert backend.calls[0].sampling.given() == {"max_tokens": 3, "temperature": 0.0}


def test_the_engine_streams_for_async_programs():
    async def read():
        stream = await Engine.over(ScriptedBackend("b c", token_delay=0.001)).async_generate("a", stream=True)
        return [each["text"] async for each in stream]

    assert asyncio.run(read())[-1] == "b c"


@pytest.mark.parametrize("prompt", [["a", "b"], ["a"], ("a",)])
@pytest.mark.parametrize("call", [Engine.generate, lambda *a, **k: asyncio.run(Engine.async_generate(*a, **k))])
def test_the_engine_streams_one_prompt(prompt, call):
    backend = ScriptedBackend("x")
    with pytest.raises(InvalidArgument, match="stream=True takes one prompt"):
        call(Engine.over(backend), prompt, stream=True)
    with pytest.raises(InvalidArgument, match="There are 2 sampling_params for 1 prompts"):
        call(Engine.over(backend), "a", [{}, {}], stream=True)
    assert backend.calls == []


@pytest.mark.parametrize("stream", [False, True])
def test_the_engine_has_the_same_options_for_async_programs(stream):
    async def read(engine):
        found = await engine.async_generate("a", stream=stream, return_logprob=True, top_logprobs_num=2)
        return [each async for each in found] if stream else found

    backend, other = ScriptedBackend("b c"), ScriptedBackend("b c")
    asyncio.run(read(Engine.over(backend)))
    list(Engine.over(other).generate("a", stream=stream, return_logprob=True, top_logprobs_num=2))
    assert [call.sampling for call in backend.calls] == [call.sampling for call in other.calls]
    assert backend.calls[0].sampling.top_logprobs == 2


# -- utilities --------------------------------------------------------------------------------------------------------


def test_files(sgl, tmp_path, capsys):
    from sglang.utils import download_and_cache_file, dump_state_text, print_highlight, read_jsonl

    (tmp_path / "a.jsonl").write_text('# comment\n{"a": 1}\n{"a": 2}\n')
    assert [row["a"] for row in read_jsonl(tmp_path / "a.jsonl")] == [1, 2]
    state = ran(sgl, lambda s: s.__iadd__("text"), ScriptedBackend("x"))
    dump_state_text(tmp_path / "out.txt", [state, "plain"])
    assert (tmp_path / "out.txt").read_text().splitlines()[1] == "text"
    assert "plain" in (tmp_path / "out.txt").read_text()
    assert download_and_cache_file("https://x.example/a.jsonl", str(tmp_path / "a.jsonl")) == str(tmp_path / "a.jsonl")
    print_highlight("bold")
    assert capsys.readouterr().out == "bold\n"


def test_a_download_is_whole_or_nothing(sgl, tmp_path, monkeypatch):
    import requests
    from sglang.utils import download_and_cache_file

    class Answer:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def raise_for_status(self):
            return None

        def iter_content(self, _):
            yield b"all of it"

    monkeypatch.setattr(requests, "get", lambda *args, **kwargs: Answer())
    path = download_and_cache_file("https://x.example/data", str(tmp_path / "data"))
    assert Path(path).read_bytes() == b"all of it"
    assert [each.name for each in tmp_path.iterdir()] == ["data"]


def test_tokenizers(sgl):
    from sglang.srt.utils.hf_transformers_utils import get_tokenizer

    sgl.set_default_backend(ScriptedBackend("x"))
    with pytest.raises(InvalidArgument, match="The default backend has no tokenizer that could be given for 'm'"):
        get_tokenizer("m")


def test_command_lines_of_benchmarks(sgl, monkeypatch):
    from sglang.test.test_utils import add_common_sglang_args_and_parse, select_sglang_backend

    monkeypatch.setattr(sys, "argv", ["bench", "--port", "1234"])
    arguments = add_common_sglang_args_and_parse(argparse.ArgumentParser())
    with select_sglang_backend(arguments) as backend:
        assert "127.0.0.1:1234" in json.dumps(vars(backend), default=str)
    arguments.backend = "other"
    with pytest.raises(InvalidArgument, match="There is no backend 'other'"):
        select_sglang_backend(arguments)
