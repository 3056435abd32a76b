"""One OpenTelemetry span per request, with an event for each phase of its generations, sent to a collector. A caller's
`traceparent` makes it part of the caller's trace. Needs the extra `otel`."""

from __future__ import annotations

import time

from lmprog_runtime.server.guard import Finished, Watcher


def exporter(endpoint: str, model_name: str) -> Watcher:
    """Sends a span for each finished request to an OTLP/HTTP endpoint, in the background.

    ImportError that names the pip command when the packages are not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError as error:
        raise ImportError("otlp_endpoint needs OpenTelemetry. Run: pip install 'lmprog[otel]'") from error
    provider = TracerProvider(resource=Resource.create({"service.name": "lmprog"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    tracer, parents = provider.get_tracer("lmprog.server"), TraceContextTextMapPropagator()

    def watch(done: Finished) -> None:
        end = time.time_ns()
        name = f"{done.method} {done.path}"
        start = end - int(done.seconds * 1e9)
        caller = parents.extract({"traceparent": done.traceparent})
        span = tracer.start_span(name, caller, start_time=start, attributes=attributes(done, model_name))
        for mark, seconds in done.marks:
            span.add_event(mark, timestamp=start + int(seconds * 1e9))
        span.end(end)

    return watch


def attributes(done: Finished, model_name: str) -> dict[str, str | int]:
    """Names of the OpenTelemetry conventions for generative models where they have one."""
    known = {"prompt_tokens": "gen_ai.usage.input_tokens", "completion_tokens": "gen_ai.usage.output_tokens"}
    usage = {known.get(name, f"lmprog.usage.{name}"): value for name, value in done.usage.items()}
    return {
        "gen_ai.request.model": model_name,
        "http.response.status_code": done.status,
        "lmprog.request_id": done.request_id,
        **usage,
    }
