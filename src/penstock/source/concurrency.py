"""The number of requests that a run keeps in flight to a source."""

from __future__ import annotations

from threading import Lock

from penstock.config.settings import SourceSettings
from penstock.source.registry import hooks_of


def requests_in_flight(settings: SourceSettings) -> int | None:
    """The requests of a run that may be in flight to this source at the same time: `parallelism` of the workspace
    file, or the default of its kind. None: one for each core of Spark."""
    if settings.parallelism is not None:
        return settings.parallelism
    default = hooks_of(settings.kind).requests_in_flight
    return default(settings.options) if default is not None else None


def halved(requests: int) -> int:
    """The number of requests in flight after a quota error: half as many, at least one."""
    return max(1, requests // 2)


class RequestSlots:
    """The requests that the threads of one worker task may keep in flight. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._lock = Lock()
        self._halvings = 0
        self.limit = limit

    def begin(self) -> int:
        """Call it before a request; pass the result to `quota_exceeded` if the request meets a quota error."""
        return self._halvings

    def quota_exceeded(self, began: int) -> None:
        """Halve the limit. Errors of requests that were sent before the last halving do not halve it again."""
        with self._lock:
            if began == self._halvings:
                self._halvings += 1
                self.limit = halved(self.limit)
