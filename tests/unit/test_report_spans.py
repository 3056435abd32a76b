"""Runs as OpenTelemetry spans."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import lmprog
from lmprog import function, gen, select
from tests.support.language import PROGRAMS, counting

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode


def spans_of(record: lmprog.Record, **options: Any) -> tuple[ReadableSpan, ...]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("request"):
        lmprog.export_spans(record, tracer, **options)
    provider.shutdown()
    return tuple(exporter.get_finished_spans())


@function
def judge(s: Any) -> None:
    s += "Essay. "
    with s.fork(["clarity", "depth"]) as branches:
        branches += gen("note")
    s += select("grade", ["good", "bad"])


def names_below(spans: Sequence[ReadableSpan], parent: ReadableSpan) -> list[str]:
    assert parent.context is not None
    return [s.name for s in spans if s.parent is not None and s.parent.span_id == parent.context.span_id]


def test_the_tree_of_spans_is_the_tree_of_the_run() -> None:
    spans = spans_of(judge.run(backend=counting()).record)
    by_name = {span.name: span for span in spans}
    assert names_below(spans, by_name["request"]) == ["program judge"]
    assert names_below(spans, by_name["program judge"]) == ["fork", "select grade"]
    assert names_below(spans, by_name["fork"]) == ["branch clarity", "branch depth"]
    assert names_below(spans, by_name["branch depth"]) == ["gen note"]
    assert len({span.context.trace_id for span in spans if span.context}) == 1


def test_calls_have_their_numbers_and_no_text_unless_asked() -> None:
    state = judge.run(backend=counting())
    call = next(span for span in spans_of(state.record) if span.name == "select grade")
    usage = state._executor.record.children[-1].usage
    assert call.attributes is not None
    assert call.attributes["gen_ai.usage.input_tokens"] == usage.prompt_tokens > 0
    assert call.attributes["lmprog.usage.cached_tokens"] == usage.cached_tokens
    assert str(call.attributes["code.file.path"]).endswith("test_report_spans.py")
    assert "lmprog.text" not in call.attributes
    shown = next(span for span in spans_of(state.record, with_text=True) if span.name == "select grade")
    assert shown.attributes is not None
    assert shown.attributes["lmprog.text"] == "good"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_spans_lie_inside_their_parents(program: Any) -> None:
    spans = spans_of(program.run(backend=counting(delay=0.001)).record)
    known = {span.context.span_id: span for span in spans if span.context and span.name != "request"}
    assert len(spans) > 4
    for span in spans:
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time <= span.end_time
        above = known.get(span.parent.span_id) if span.parent else None
        if above is not None:
            assert above.start_time is not None
            assert above.end_time is not None
            assert above.start_time <= span.start_time
            assert span.end_time <= above.end_time, f"{span.name} in {above.name}"


def test_errors_are_where_they_happened() -> None:
    state = judge.run(backend=counting(errors={1: RuntimeError("boom")}))
    failed = {span.name: span for span in spans_of(state.record) if span.status.status_code is StatusCode.ERROR}
    assert {"gen note"} <= set(failed)
    assert failed["gen note"].status.description == "RuntimeError: boom"
    assert "program judge" not in failed


def test_without_the_package() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None; import lmprog\n"
        "try: lmprog.export_spans(lmprog.Record('program'))\n"
        "except lmprog.MissingDependency as error: print(error)"
    )
    root = Path(__file__).parents[2]
    out = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert "lmprog[otel]" in out.stdout
