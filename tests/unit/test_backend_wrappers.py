"""Backends around another one: what they do not change is the other's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lmprog import ScriptedBackend
from lmprog.backends.base import Backend, Stream
from lmprog.backends.replay import RecordingBackend, ReplayBackend
from lmprog.backends.scripted import ScriptedStream
from lmprog.backends.speculation import SpeculativeBackend
from lmprog.compat.sglang.defaults import CountedBackend

WRAPPERS: dict[str, Callable[[Backend, Path], Backend]] = {
    "recording": lambda backend, folder: RecordingBackend(backend, folder / "calls.jsonl"),
    "speculative": lambda backend, _: SpeculativeBackend(backend, 16),
    "counted": lambda backend, _: CountedBackend(backend),
}


class Closing(ScriptedBackend):
    closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_a_with_block_closes_the_backend_inside(wrap: str, tmp_path: Path) -> None:
    inner = Closing()
    wrapped = WRAPPERS[wrap](inner, tmp_path)
    with wrapped as entered:
        assert entered is wrapped
        assert inner.closed == 0
    assert inner.closed == 1


@pytest.mark.parametrize("wrap", WRAPPERS)
@pytest.mark.parametrize("continues", [False, True])
def test_streams_say_whether_the_model_goes_on_with_a_turn(wrap: str, continues: bool, tmp_path: Path) -> None:
    class Turns(ScriptedStream):
        @property
        def continues_turns(self) -> bool:
            return continues

    class Chat(ScriptedBackend):
        def open_stream(self) -> Stream:
            return Turns(self, "", 0)

    with WRAPPERS[wrap](Chat(), tmp_path) as wrapped:
        assert wrapped.open_stream().continues_turns is continues
    assert ScriptedBackend().open_stream().continues_turns


def test_backends_themselves_are_closed_by_a_with_block(tmp_path: Path) -> None:
    with Closing() as backend:
        assert backend.closed == 0
    assert backend.closed == 1
    RecordingBackend(backend, tmp_path / "calls.jsonl").close()
    with ReplayBackend(tmp_path / "calls.jsonl") as replay:
        assert replay.unused() == []
