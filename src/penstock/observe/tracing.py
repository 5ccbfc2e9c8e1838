"""Reports runs as OpenTelemetry spans. Uses the API only: the process, or `opentelemetry-instrument`, chooses the SDK.

Without a configured provider nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.flow.trace import NO_TRACES, Tracer, TraceSpan
from penstock.redaction import SECRETS

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.context import Context

_API = "opentelemetry.trace"
_PROVIDER = "OTEL_PYTHON_TRACER_PROVIDER"  # the API loads the provider that this variable names
_PARENT = "TRACEPARENT"  # the span of the process that started this one


def tracer() -> Tracer:
    """The tracer of this process. Reports nothing if the API is not installed or no provider is configured."""
    if _API not in sys.modules and not (os.environ.get(_PROVIDER) and find_spec("opentelemetry")):
        return NO_TRACES  # no code of this process has configured a provider
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return NO_TRACES
    return OpenTelemetryTracer(provider)


def flush() -> None:
    """Send the spans that the provider holds back, before the process ends. Waits as long as the provider allows."""
    from opentelemetry import trace

    if send := getattr(trace.get_tracer_provider(), "force_flush", None):  # of the SDK; the API has none
        send()


class OpenTelemetryTracer:
    """Opens spans of a provider. The text of an error has no secrets."""

    def __init__(self, provider: trace.TracerProvider) -> None:
        self._tracer = provider.get_tracer("penstock", __version__)

    @contextmanager
    def span(self, name: str, attributes: Mapping[str, str | int], link: str | None = None) -> Iterator[TraceSpan]:
        from opentelemetry import trace

        linked = trace.get_current_span(_context_of(link)).get_span_context() if link else None
        links = [trace.Link(linked)] if linked is not None and linked.is_valid else []
        has_parent = trace.get_current_span().get_span_context().is_valid
        context = None if has_parent else _context_of(os.environ.get(_PARENT))
        with self._tracer.start_as_current_span(
            name,
            context,
            attributes=dict(attributes),
            links=links,
            record_exception=False,  # it would record the text and the stack with their secrets
            set_status_on_exception=False,
        ) as opened:
            try:
                yield _OpenSpan(opened)
            except BaseException as error:
                text = SECRETS.hide(f"{type(error).__name__}: {error}")
                opened.set_status(trace.Status(trace.StatusCode.ERROR, text))
                raise


class _OpenSpan:
    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def traceparent(self) -> str | None:
        found = self._span.get_span_context()
        return f"00-{found.trace_id:032x}-{found.span_id:016x}-{int(found.trace_flags):02x}" if found.is_valid else None

    def annotate(self, attributes: Mapping[str, str | int]) -> None:
        self._span.set_attributes(dict(attributes))


def _context_of(traceparent: str | None) -> Context | None:
    """The context of a span of another process; None if there is none."""
    if not traceparent:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": traceparent})
