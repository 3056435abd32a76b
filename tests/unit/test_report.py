"""A run, shown: the tree in a terminal, the page, the Chrome trace, and the numbers."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

import lmprog
from lmprog import ScriptedBackend, assistant, function, gen, select, system, user
from lmprog.backends.base import Usage
from lmprog.record import Record
from lmprog.report import render_html, render_tree, totals, trace_events
from lmprog.report.reuse import cached_characters
from lmprog.report.text import width

HOSTILE = "\x1b[2J\x07\u202e<script>alert('x')</script>&amp;\n\ttab\\"
WIDE = "日本語テキスト" * 20


@function
def judge(s, essay):
    s += system("You grade essays.") + user(essay)
    with s.fork(["clarity", "depth"]) as branches:
        for name, branch in branches.items():
            branch += user(f"Judge the {name}.") + assistant(gen("note", max_tokens=80))
    s += user(" ".join(branch["note"] for branch in branches))
    s += assistant(select("verdict", ["good", "bad"]) + gen("why", n=2, temperature=1.0) + gen("end"))


@function
def failing(s):
    s += user("one") + assistant(gen("fine"))
    for branch in s.fork(2):
        branch += user("two") + assistant(gen("broken"))


def judged(essay="The sea is wide."):
    return judge.run(essay=essay, backend=ScriptedBackend("well written", scores={"good": -1.0, "bad": -3.0})).record


def failed():
    return failing.run(backend=ScriptedBackend("yes", errors={3: RuntimeError("the model fell over")})).record


def call(prompt, cached, written=0, **more):
    return Record("gen", text="g", status="done", usage=Usage(prompt, cached, written), **more)


def text(characters):
    return Record("text", text="x" * characters, status="done")


def program(*children):
    return Record("program", "p", status="done", children=children)


# -- what was cached ------------------------------------------------------------------------------------------------


def test_text_before_a_cold_call_was_read_by_it():
    first, second = text(10), text(30)
    assert cached_characters(program(first, second, call(8, 0, 2))) == {first: 0, second: 0}


def test_text_before_a_warm_call_came_from_the_cache():
    first, second = text(10), text(30)
    assert cached_characters(program(first, second, call(8, 8))) == {first: 10, second: 30}


def test_the_border_in_between_is_placed_by_the_counts():
    first, second = text(10), text(30)
    assert cached_characters(program(first, second, call(8, 4))) == {first: 10, second: 10}


def test_what_a_call_wrote_is_no_cached_text_of_the_next():
    first, second = text(10), text(10)
    found = cached_characters(program(first, call(4, 0, 3), second, call(10, 7)))
    assert found == {first: 0, second: 0}


def test_a_stop_string_that_left_the_stream_does_not_make_the_text_after_it_cached():
    newline = text(1)  # five tokens were written, the stop among them; four stay, and the newline is read
    assert cached_characters(program(text(10), call(10, 0, 5), newline, call(15, 13)))[newline] == 0


def test_the_first_branch_reads_what_its_parent_wrote():
    shared, own, other = text(10), text(10), text(10)
    branches = [
        Record("branch", "a", children=[own, call(8, 0)]),
        Record("branch", "b", children=[other, call(8, 6)]),
    ]
    found = cached_characters(program(shared, Record("fork", children=branches)))
    assert found == {shared: 0, own: 0, other: 5}


def test_a_run_that_was_called_has_its_own_stream():
    inner = text(10)
    called = Record("program", "q", children=[inner, call(5, 5)])
    assert cached_characters(program(text(20), call(9, 0, 1), called))[inner] == 10


def test_a_scope_repeats_what_is_inside_and_a_lone_choice_is_text():
    scope, only = Record("scope", "v", text="x" * 9, status="done"), Record("select", "c", text="yes", status="done")
    assert cached_characters(program(scope, only, call(2, 2))) == {only: 3}


def test_samples_all_start_from_the_same_place():
    first, after = text(10), text(10)
    samples = [Record("branch", str(i), children=[call(5, cached, 2)]) for i, cached in enumerate((0, 5))]
    found = cached_characters(program(first, Record("gen", "v", text="g", children=samples), after, call(12, 7)))
    assert found == {first: 0, after: 0}


def test_a_choice_that_was_scored_is_known_to_the_next_call():
    chosen = Record(
        "select",
        "c",
        text="yes",
        status="done",
        usage=Usage(4, 0),
        meta={"choices": ("no", "yes"), "logprobs": ((-1.0,), (-1.0, -1.0))},
    )
    after = text(10)
    assert cached_characters(program(text(8), chosen, after, call(8, 7)))[after] == 5


# -- terminal -------------------------------------------------------------------------------------------------------


def test_the_tree_has_states_turns_steps_and_numbers():
    lines = render_tree(judged(), width=120).splitlines()
    labels = [re.split(r" {2,}", line.lstrip("|` -"))[0] for line in lines[1:-2]]
    assert labels == [
        *("judge", "system", "user", "fork of 2", "clarity", "user", "gen note", "depth", "user", "gen note"),
        *("user", "select verdict", "gen why", "sample 0", "sample 1", "gen end"),
    ]
    assert lines[0].split() == ["prompt", "cached", "sampled", "forced", "ms"]
    assert lines[-1].startswith("6 model calls: ")
    assert lines[7].split("well written")[1].split()[:4] == ["14", "0", "2", "0"]


@pytest.mark.parametrize("columns", [80, 100, 160])
@pytest.mark.parametrize("essay", ["short", HOSTILE * 9, WIDE, "e\u0301" * 300, "\ud800"])
def test_no_line_is_wider_than_the_terminal(columns, essay):
    for line in render_tree(judged(essay), width=columns, ascii=False).splitlines():
        assert width(line) <= columns
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202e\ud800]", line)


def test_columns_stand_below_each_other():
    lines = [
        line
        for line in render_tree(judged(WIDE), width=120).splitlines()[:-2]
        if "fork" not in line and re.search(r"\d$", line)
    ]
    assert {width(line) for line in lines} == {120}


def test_colours_say_where_text_came_from():
    forced = call(5, 5, 3, meta={"segments": (("generated", "ab"), ("forced", "cd"))})
    forced.text = "abcd"
    page = render_tree(program(text(4), forced), width=100, colour=True)
    assert "\x1b[2mxxxx\x1b[0m" in page
    assert "\x1b[32mab\x1b[0m\x1b[36mcd\x1b[0m" in page
    assert "\x1b[36mforced by the constraint\x1b[0m" in page


def test_plain_where_there_is_no_terminal(capsys):
    page = render_tree(judged())
    assert page.isascii()
    assert "\x1b" not in page


def test_a_terminal_gets_colour_and_lines_unless_it_asks_not_to(monkeypatch):
    class Terminal:
        encoding = "utf-8"

        def isatty(self):
            return True

    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in render_tree(judged())
    assert "└─ " in render_tree(judged())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in render_tree(judged())
    monkeypatch.setattr(Terminal, "encoding", "latin-1")
    assert "`- " in render_tree(judged())


def test_an_error_stands_once_at_its_step():
    page = render_tree(failed(), width=120)
    assert page.count("RuntimeError: the model fell over") == 1
    assert re.search(r"gen broken +RuntimeError", page)
    assert "1 failed" in page.splitlines()[-1]


def test_a_run_that_is_still_going_on():
    waiting = Record("gen", "later")
    running = Record("gen", "now", status="running", started=1.0)
    page = render_tree(Record("program", "p", status="running", started=1.0, children=[running, waiting]), width=100)
    assert re.search(r"gen now +running", page)
    assert re.search(r"gen later +waiting", page)
    assert "waiting" in render_html(program(waiting))


# -- page -----------------------------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Checks that tags are balanced, and collects the text by class."""

    def __init__(self, page):
        super().__init__()
        self.open, self.classes, self.text, self.tags = [], [], {}, set()
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag != "meta":
            self.open.append((tag, dict(attributes).get("class") or ""))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        key = self.open[-1][1] if self.open else ""
        self.text[key] = self.text.get(key, "") + data


def test_the_page_is_whole_and_has_no_scripts():
    page = render_html(judged())
    reader = Reader(page)
    assert page.startswith("<!doctype html>")
    assert not reader.tags & {"script", "link", "img", "iframe"}
    assert not re.search(r"https?://", page)
    assert reader.text["generated"].count("well written") == 6
    assert "You grade essays." in reader.text["prompt"]
    assert reader.text["chosen"] == "good"


def test_what_models_write_cannot_leave_its_place():
    record = program(Record("text", text=HOSTILE, status="done"), call(3, 0, name="<i>"))
    reader = Reader(render_html(record))
    assert "script" not in reader.tags
    assert "<script>alert('x')</script>&amp;\n\ttab\\" in reader.text["prompt"]
    assert not re.search(r"[\x1b\x07\u202e]", render_html(record))


def test_for_notebooks_only_the_content():
    assert render_html(judged(), as_page=False).startswith('<div class="lmprog-run">')
    Reader(render_html(judged(), as_page=False))


def test_long_texts_are_cut_in_the_middle():
    page = render_html(program(text(100_000), call(9, 0)))
    assert len(page) < 15_000
    assert "… of 100,000 characters …" in page


def test_of_many_choices_the_best_are_shown():
    meta = {"choices": tuple(f"c{i}" for i in range(500)), "scores": tuple(-float(i) for i in range(500))}
    page = render_html(program(Record("select", "v", text="c0", status="done", usage=Usage(5), meta=meta)))
    assert "c11<" in page
    assert "c12<" not in page
    assert "and 488 more" in page


def test_bars_are_of_the_call():
    page = render_html(program(text(10), call(80, 60, 20)))
    assert (
        'title="60 read before, from the cache, 20 read by the model, 20 generated, 0 forced by the constraint"' in page
    )
    assert "width:60.00%;background:var(--cached)" in page


def test_the_error_page():
    reader = Reader(render_html(failed()))
    assert reader.text["bad"].count("RuntimeError: the model fell over") == 1


# -- trace ----------------------------------------------------------------------------------------------------------


def test_each_state_has_a_row_of_its_own():
    events = trace_events(judged())
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert list(names.values()) == [
        *("judge", "judge / clarity", "judge / depth", "judge / 0", "judge / 1"),
    ]
    rows = {event["tid"] for event in events if event["cat" if event["ph"] == "X" else "ph"] == "gen"}
    assert rows == {0, 1, 2, 3, 4}


def test_events_are_json_and_lie_inside_the_run():
    events = json.loads(json.dumps(trace_events(judged())))
    complete = [event for event in events if event["ph"] == "X"]
    end = complete[0]["dur"]
    assert all(e["ts"] >= 0 for e in complete)
    assert all(e["ts"] + e["dur"] <= end + 1 for e in complete)
    notes = [event for event in complete if event["name"] == "gen note"]
    assert [event["args"]["prompt_tokens"] for event in notes] == [14, 14]
    assert notes[0]["args"]["text"] == "well written"
    assert "test_report.py" in notes[0]["args"]["location"]


def test_the_time_inside_a_call():
    timed = call(5, 0, 2, started=10.0, ended=13.0, timing={"queue": 0.5, "first_token": 1.5, "total": 2.0})
    root = Record("program", "p", started=9.0, ended=14.0, children=[timed])
    phases = {e["name"]: (e["ts"], e["dur"]) for e in trace_events(root) if e.get("cat") == "phase"}
    assert phases == {"queue": (2e6, 5e5), "prefill": (2.5e6, 1e6), "decode": (3.5e6, 5e5)}


def test_errors_in_the_trace():
    broken = [e for e in trace_events(failed()) if e["ph"] == "X" and e["args"].get("error")]
    assert "RuntimeError: the model fell over" in {event["args"]["error"] for event in broken}


# -- numbers --------------------------------------------------------------------------------------------------------


def test_totals():
    found = totals(judged())
    assert (found.calls, found.failed) == (6, 0)
    assert found.usage.completion_tokens == 10
    assert found.computed == found.usage.prompt_tokens - found.usage.cached_tokens + 10
    assert totals(failed()).failed == 1
    assert totals(Record("program")).seconds == 0


def test_states_show_themselves() -> None:
    state = lmprog.function(lambda s: s.__iadd__("2+2=" + lmprog.gen("x"))).run(backend=lmprog.ScriptedBackend("4"))
    state.sync()
    assert state._repr_html_() == lmprog.render_html(state.record, as_page=False)
    assert state.trace_events() == lmprog.trace_events(state.record)
    assert state.tree() == lmprog.render_tree(state.record)
    assert lmprog.totals(state.record).calls == 1
