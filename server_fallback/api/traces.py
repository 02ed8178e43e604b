"""Traces: an OpenTelemetry span for each request, if the environment names an endpoint. Otherwise OpenTelemetry is not
imported.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nearfar.compiler.runtime.errors import ToolError

from ..schema.pipeline import StepTime

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
# W3C Trace Context; passed on unchanged if no spans are made here.
CONTEXT_HEADERS = ("traceparent", "tracestate")
# The field's name in the log line -> its name in OpenTelemetry's conventions for generative AI.
ATTRIBUTES = {
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "error": "error.type",
    "request_id": "nearfar.request_id",
}


def open_traces(environment: Mapping[str, str]) -> Traces | None:
    """None if no endpoint is set. Raises ToolError if the library is missing."""
    if not any(environment.get(name) for name in ENDPOINTS):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ToolError(
            f"{ENDPOINTS[0]} is set, but OpenTelemetry is not installed: pip install 'nearfar[otel]'"
        ) from error
    # The exporter reads its endpoint, headers and timeouts from the environment itself.
    resource = Resource.create({SERVICE_NAME: environment.get("OTEL_SERVICE_NAME", "nearfar")})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Traces(provider)


def context_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: headers[name] for name in CONTEXT_HEADERS if name in headers}


class Traces:
    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("nearfar.server")

    def begin(self, method: str, headers: Mapping[str, str]) -> tuple[Span, dict[str, str]]:
        """A child span of the caller's span, and the headers that make the next server's span a child of it."""
        from opentelemetry.trace import SpanKind, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        propagator = TraceContextTextMapPropagator()
        span = self._tracer.start_span(method, context=propagator.extract(dict(headers)), kind=SpanKind.SERVER)
        passed_on: dict[str, str] = {}
        propagator.inject(passed_on, context=set_span_in_context(span))
        return span, passed_on

    def end(
        self,
        span: Span,
        method: str,
        route: str,
        status: int,
        log: Mapping[str, object],
        steps: Sequence[tuple[StepTime, float]] = (),
    ) -> None:
        """``steps`` of a pipeline, with their starts, become child spans."""
        from opentelemetry.trace import StatusCode, set_span_in_context

        # From the clock of starts to the time of day.
        offset = time.time() - time.monotonic()
        for step, began in steps:
            context, start = set_span_in_context(span), int((began + offset) * 1e9)
            child = self._tracer.start_span(f"{step.kind} {step.name}", context=context, start_time=start)
            child.set_attributes({"nearfar.step.kind": step.kind, "gen_ai.request.model": step.model or ""})
            child.end(end_time=start + int(step.ms * 1e6))
        span.update_name(f"{method} {route}")
        span.set_attributes({"http.request.method": method, "http.route": route, "http.response.status_code": status})
        for name, attribute in ATTRIBUTES.items():
            value = log.get(name)
            if isinstance(value, str | int):
                span.set_attribute(attribute, value)
        if status >= 500:
            span.set_status(StatusCode.ERROR)
        span.end()

    def close(self) -> None:
        """Send the remaining spans. Waits for the network, so call it from a thread."""
        self._provider.shutdown()
