"""Typed outputs, tools, records, reports and replays on the real engine, with a tiny random model."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from lmprog import IncompleteOutput, assistant, function, gen, select, use_tools, user
from lmprog.backends.replay import RecordingBackend, ReplayBackend
from lmprog.report import render_html, render_tree, totals, trace_events
from lmprog.report.layout import entry_of


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


@dataclass
class Note:
    """What was seen."""

    score: Annotated[int, Field(ge=0, le=10)]
    mood: Mood
    when: date | None
    tags: Annotated[list[Literal["a", "b"]], Field(max_length=2)]
    replies: Annotated[list[Note], Field(max_length=1)] = field(default_factory=list)


class Answer(BaseModel):
    yes: bool
    size: tuple[Literal[1, 2], Mood]


@pytest.mark.parametrize("spec", [Note, Answer, list[Mood], dict[Literal["x", "y"], bool], Note | Answer, date])
def test_typed_outputs_are_of_their_type_or_were_cut(backend, spec):
    @function
    def typed(s, number):
        s += f"{number}:" + gen("x", type=spec, max_tokens=200, temperature=1.5, seed=number)

    read = 0
    for run in typed.run_batch([{"number": i} for i in range(12)], backend=backend):
        try:
            assert run["x"] is not None
            read += 1
        except IncompleteOutput:
            assert run.get_meta_info("x")["finish_reason"] == "length"
    assert read >= 6


def test_tools_always_end(backend):
    used = []

    def look(page: Literal["one", "two"], lines: Annotated[int, Field(ge=1, le=9)] = 1) -> str:
        """Look at a page."""
        used.append((page, lines))
        return f"{page} has {lines}"

    @function
    def ask(s):
        s += user("Look.")
        return use_tools(s, [look], max_calls=1, max_tokens=60, temperature=1.0)

    for seed in range(6):
        try:
            answer = ask.run(backend=backend, seed=seed).ret_value
        except IncompleteOutput as cut:
            answer = cut.partial
        assert isinstance(answer, str)
    assert used
    assert all(page in ("one", "two") and 1 <= lines <= 9 for page, lines in used)


@function
def mixed(s):
    s += user("Say something.") + assistant(gen("a", max_tokens=12, logprobs=True, top_logprobs=2))
    with s.fork(2) as branches:
        for i, branch in enumerate(branches):
            branch += user(f"Go on {i}.") + assistant(gen("b", max_tokens=6) + select("c", ["yes", "no"]))
    s += user("And?") + assistant(gen("d", regex="[ab]{3}cccc", n=2))


def outcome(run):
    return [(r.kind, r.text, r.usage, dict(r.timing), dict(r.meta), r.error) for r in run.record.walk()]


@pytest.mark.filterwarnings("ignore:2 samples at temperature 0")
@pytest.mark.parametrize("streams", [False, True])
def test_a_replay_of_the_engine_is_exact(backend, tmp_path, streams):
    with RecordingBackend(backend, tmp_path / "calls.jsonl") as recording:
        run = mixed.run(backend=recording, seed=3, stream=streams)
        run.sync()
        first = outcome(run)
    replay = ReplayBackend(tmp_path / "calls.jsonl")
    assert outcome(mixed.run(backend=replay, seed=3, stream=streams)) == first
    assert replay.unused() == []
    assert any(meta.get("logprobs") for _, _, _, _, meta, _ in first)


def test_reports_say_what_the_engine_did(backend):
    cold = mixed.run(backend=backend, seed=3).record
    warm = mixed.run(backend=backend, seed=3).record
    assert totals(warm).usage.prompt_tokens == totals(cold).usage.prompt_tokens
    assert totals(warm).computed < totals(cold).computed

    def first_turn(record):
        return entry_of(record).children[0].pieces

    assert [piece.origin for piece in first_turn(cold)] == ["prompt"]
    assert first_turn(warm)[0].origin == "cached"
    assert any(piece.origin == "forced" for entry in entry_of(cold).children for piece in entry.pieces)
    assert "sample 1" in render_tree(cold)
    assert "var(--forced)" in render_html(cold)
    phases = [event for event in trace_events(cold) if event.get("cat") == "phase"]
    assert {event["name"] for event in phases} == {"queue", "prefill", "decode"}
