"""What a run reports to a tracing system: a span for the run, and spans for its batches, stages and publications."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

TRACEPARENT = "traceparent"  # the key of a span among the stored filters of its run


class TraceSpan(Protocol):
    """A span in progress."""

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context of the span, by which another process can refer to it. None without tracing."""

    def annotate(self, attributes: Mapping[str, str | int]) -> None:
        """Add attributes. Their number must not depend on the number of partitions."""


class Tracer(Protocol):
    """Opens spans. A span belongs to the span that is open in the present context."""

    def span(
        self, name: str, attributes: Mapping[str, str | int], link: str | None = None
    ) -> AbstractContextManager[TraceSpan]:
        """A span for the block, with a link to the span of a W3C trace context. Records an error of the block."""


class NoSpan:
    """A span that is reported nowhere."""

    traceparent: str | None = None

    def annotate(self, attributes: Mapping[str, str | int]) -> None:
        """Do nothing."""


class NoTracer:
    """Reports nothing: tracing is off."""

    def span(
        self, name: str, attributes: Mapping[str, str | int], link: str | None = None
    ) -> AbstractContextManager[TraceSpan]:
        return _NOTHING


_NOTHING: AbstractContextManager[TraceSpan] = nullcontext(NoSpan())
NO_TRACES = NoTracer()


def trace_id_of(traceparent: str | None) -> str | None:
    """The trace id in a W3C trace context (`00-<trace id>-<span id>-<flags>`)."""
    parts = (traceparent or "").split("-")
    return parts[1] if len(parts) == 4 else None
