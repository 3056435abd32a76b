"""A run as OpenTelemetry spans: one for the program, and below it one for each branch, called run and model call.

Needs the extra `otel`. Attributes of calls follow the semantic conventions for generative AI (`gen_ai.*`) where those
have a name, else begin with `lmprog.`. Prompts and outputs are left out unless asked for.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lmprog.errors import MissingDependency
from lmprog.record import Record
from lmprog.report.totals import is_call

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_OPERATIONS = {"gen": "text_completion", "select": "score"}
_SHOWN = ("program", "branch", "gen", "select", "fork", "join")


def export_spans(record: Record, tracer: Tracer | None = None, *, with_text: bool = False) -> None:
    """Report a run that is over as spans, with the times that its steps had, below the span that is current here.

    tracer: of the provider that is set for the process when left out. with_text: also what was written.
    Raises MissingDependency without the package `opentelemetry-api`.
    """
    try:
        from opentelemetry import trace
    except ImportError as error:
        hint = "Run: pip install 'lmprog[otel]'"
        raise MissingDependency("Spans need opentelemetry, which is not installed.", hint=hint) from error
    _Exporter(tracer or trace.get_tracer("lmprog"), with_text).export(record, None)


class _Exporter:
    def __init__(self, tracer: Tracer, with_text: bool) -> None:
        self._tracer, self._with_text = tracer, with_text
        self._since_epoch = time.time_ns() - time.perf_counter_ns()  # records have times of perf_counter

    def export(self, record: Record, context: Any) -> None:
        if record.started and record.kind in _SHOWN:
            context = self._span(record, context)
        for child in tuple(record.children):
            self.export(child, context)

    def _span(self, record: Record, context: Any) -> Any:
        """The context for what is below it."""
        from opentelemetry.trace import set_span_in_context

        name, attributes = f"{record.kind} {record.name}".strip(), _attributes(record)
        if self._with_text and record.text:
            attributes["lmprog.text"] = record.text
        start = self._nanoseconds(record.started)
        span = self._tracer.start_span(name, context, attributes=attributes, start_time=start)
        if record.error is not None:
            _mark_failed(span, record.error)
        span.end(self._nanoseconds(_end_of(record)))
        return set_span_in_context(span, context)

    def _nanoseconds(self, seconds: float) -> int:
        return int(seconds * 1e9) + self._since_epoch


def _end_of(record: Record) -> float:
    """Of a fork: that of the last branch, for the step itself is over at once."""
    last = max((_end_of(child) for child in record.children), default=0.0)
    return max(record.ended or record.started, last)


def _attributes(record: Record) -> dict[str, Any]:
    found: dict[str, Any] = {"lmprog.kind": record.kind, "lmprog.name": record.name, "lmprog.status": record.status}
    if record.location:
        path, _, line = record.location.rpartition(":")
        found |= {"code.file.path": path, "code.line.number": int(line)}
    return {**found, **_of_call(record)} if is_call(record) else found


def _of_call(record: Record) -> Mapping[str, Any]:
    usage = record.usage
    found: dict[str, Any] = {
        "gen_ai.operation.name": _OPERATIONS.get(record.kind, record.kind),
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "lmprog.usage.cached_tokens": usage.cached_tokens,
        "lmprog.usage.forced_tokens": usage.forced_tokens,
    }
    if "finish_reason" in record.meta:
        found["gen_ai.response.finish_reasons"] = (record.meta["finish_reason"],)
    return found


def _mark_failed(span: Span, error: BaseException) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
    span.set_attribute("error.type", type(error).__name__)
