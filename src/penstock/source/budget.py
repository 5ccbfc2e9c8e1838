"""Limits the requests per second to a source. All workers of a run share the rate of the workspace file."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock


class Budget:
    """The share of one worker. Thread-safe."""

    def __init__(
        self,
        per_second: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._gap = 0.0 if per_second is None else 1 / per_second
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()
        self._lock = Lock()

    def spend(self, requests: int = 1) -> None:
        """Wait until the next request may be sent. Unused capacity is not saved up: sources punish bursts."""
        if not self._gap:
            return
        with self._lock:
            now = self._clock()
            start = max(now, self._free_at)
            self._free_at = start + requests * self._gap
        if start > now:
            self._sleep(start - now)
