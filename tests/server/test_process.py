"""`lmprog serve` as a process: flags, logs, signals."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from lmprog_runtime.config import RuntimeConfig
from lmprog_runtime.server.flags import add_flags, runtime_config, server_settings
from lmprog_runtime.server.settings import ServerSettings
from tests.support.tiny_engine import TINY_VOCAB
from tests.support.tiny_models import save_whole_model
from tests.support.tiny_server import ASCII_ONLY, eventually

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete model directory."""
    return save_whole_model(tmp_path_factory.mktemp("tiny"), vocab_size=TINY_VOCAB, max_position_embeddings=2048)


@contextmanager
def _process(model: Path, *flags: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "lmprog.cli", "serve", str(model), "--port", str(port), "--executor", "torch"]
    command[1:3] = ["-c", "import sys; from lmprog.cli import main; sys.exit(main(sys.argv[1:]))"]
    path = f"{ROOT}:{ROOT / 'kernels'}"
    more = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment}
    command += ["--dtype", "float32", "--max-total-tokens", "4096", *flags]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **more}, stderr=subprocess.PIPE, text=True)
    url = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: _is_healthy(process, url), 60)
        yield process, url
    finally:
        process.kill()
        process.communicate()


def _is_healthy(process: subprocess.Popen[str], url: str) -> bool:
    assert process.poll() is None, process.stderr and process.stderr.read()
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.ConnectError:
        return False


def _command_lines() -> str:
    """Of all processes, as everybody on this machine can read them."""
    listed = subprocess.run(["ps", "-Awwo", "args"], capture_output=True, text=True, check=True)
    return listed.stdout


def test_sigterm_finishes_what_runs_and_the_log_has_no_prompt(model: Path) -> None:
    flags = ("--log-format", "json", "--log-requests", "--served-model-name", "small")
    with _process(model, *flags, LMPROG_API_KEY="sk-from-environment") as (process, url):
        assert str(model) in (commands := _command_lines())
        assert "sk-from" not in commands, "case A08: the list of processes has no key"
        headers = {"Authorization": "Bearer sk-from-environment"}
        assert httpx.get(f"{url}/v1/models").status_code == 401
        assert httpx.get(f"{url}/v1/models", headers=headers).json()["data"][0]["id"] == "small"
        body: dict[str, Any] = {"model": "small", "prompt": "a private prompt", "max_tokens": 1500, "stream": True}
        body["logit_bias"] = ASCII_ONLY
        lines: list[str] = []

        def read() -> None:
            with httpx.stream("POST", f"{url}/v1/completions", json=body, headers=headers, timeout=60) as answer:
                lines.extend(answer.iter_lines())

        reader = threading.Thread(target=read)
        reader.start()
        eventually(lambda: httpx.get(f"{url}/stats", headers=headers).json()["running"] == 1)
        process.send_signal(signal.SIGTERM)
        eventually(lambda: httpx.get(f"{url}/health").status_code == 503)
        assert httpx.post(f"{url}/v1/completions", json=body, headers=headers).status_code == 503
        reader.join(60)
        assert [line for line in lines if line][-1] == "data: [DONE]"
        _, log = process.communicate(timeout=20)
        assert process.returncode == 0
    entries = [json.loads(line) for line in log.splitlines()]
    assert any("ready" in entry["message"] for entry in entries)
    mine = [entry for entry in entries if entry.get("path") == "/v1/completions" and entry["status"] == 200]
    assert mine[0]["prompt_tokens"] == 16
    assert mine[0]["completion_tokens"] == 1500
    assert mine[0]["seconds"] > 0
    assert "private" not in log
    assert "sk-from" not in log


def test_sigterm_under_load_loses_nothing(model: Path) -> None:
    """Every request ends: those that were taken with their whole answer, those after the signal with a 503."""
    ends: list[tuple[int, str]] = []
    with _process(model, "--served-model-name", "small", "--max-running", "4") as (process, url):
        body: dict[str, Any] = {"model": "small", "prompt": "x", "max_tokens": 60, "stream": True}
        body["logit_bias"] = ASCII_ONLY
        is_told = threading.Event()

        def ask() -> None:
            with httpx.Client(base_url=url, timeout=60) as client:
                while not is_told.is_set():
                    with client.stream("POST", "/v1/completions", json=body) as answer:
                        lines = [line for line in answer.iter_lines() if line]
                    ends.append((answer.status_code, lines[-1]))
                    if answer.status_code == 503:
                        return

        def run() -> None:
            try:
                ask()
            except httpx.ConnectError:  # it has stopped listening
                return

        readers = [threading.Thread(target=run) for _ in range(12)]
        for reader in readers:
            reader.start()
        eventually(lambda: len(ends) > 12)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=40)
        is_told.set()
        for reader in readers:
            reader.join(60)
        assert process.returncode == 0
    assert {status for status, _ in ends} <= {200, 503}
    assert all(line == "data: [DONE]" for status, line in ends if status == 200)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--host", "0.0.0.0"], "Refusing to listen"),
        (["--log-format", "xml"], "log_format is 'xml'"),
        (["--max-queue", "0"], "max_queue is 0"),
        (["--host", "192.0.2.1", "--allow-public-without-key"], "Cannot listen on 192.0.2.1, port 30000"),
        (["/no/such/model", "--port", "0"], "/no/such/model"),
    ],
)
def test_mistakes_are_one_sentence(flags: list[str], message: str) -> None:
    code = "import sys; from lmprog_runtime.launch_server import main; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"}
    out = subprocess.run([sys.executable, "-c", code, *flags], env=environment, capture_output=True, text=True)
    assert out.returncode == 1
    assert message in out.stderr
    assert "Traceback" not in out.stderr


def test_a_taken_port_is_one_sentence_before_the_model_is_loaded() -> None:
    code = "import sys; from lmprog_runtime.launch_server import main; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-c", code, "/no/such/model", "--port", str(taken.getsockname()[1])]
        out = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert out.returncode == 1
    assert out.stderr.count("\n") == 1
    assert "of 127.0.0.1 is taken; stop what uses it, or choose another --port." in out.stderr


def test_every_setting_is_a_flag_and_keeps_its_default() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    plain = parser.parse_args([])
    assert runtime_config(plain) == RuntimeConfig()
    assert server_settings(plain) == ServerSettings()
    for cls in (RuntimeConfig, ServerSettings):
        for field in dataclasses.fields(cls):
            assert f"--{field.name.replace('_', '-')}" in parser.format_help()
    flags = "--model-path x --port 7 --isolate-cache --no-jump-forward --max-running-requests 3 --drain-seconds 1.5"
    given = parser.parse_args(flags.split(" "))
    assert (runtime_config(given).model, runtime_config(given).max_running) == ("x", 3)
    assert not runtime_config(given).jump_forward
    assert (server_settings(given).port, server_settings(given).drain_seconds) == (7, 1.5)
    assert server_settings(given).isolate_cache


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMPROG_API_KEY", "a, b")
    parser = argparse.ArgumentParser()
    add_flags(parser)
    assert server_settings(parser.parse_args([])).keys == ("a", "b")
    assert server_settings(parser.parse_args(["--api-key", "c"])).keys == ("c",)
