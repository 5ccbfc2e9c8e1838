"""The memory of the requests of one worker task: rows of days that are not complete."""

from __future__ import annotations

from threading import Condition

MOST_BYTES = 256 * 1024 * 1024


class HeldRows:
    """Bounds the bytes that all requests of a task hold. A request that would exceed the bound waits until others have
    completed days; the oldest one never waits, so there is always one that goes on. Thread-safe."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._changed = Condition()
        self._requests: dict[int, int] = {}  # held bytes by request, oldest first
        self._begun = 0

    def begin(self) -> int:
        """Add a request, and return its number."""
        with self._changed:
            self._begun += 1
            self._requests[self._begun] = 0
            return self._begun

    def hold(self, request: int, size: int) -> None:
        """State the bytes that a request holds now, and wait while it is too early for more."""
        with self._changed:
            self._requests[request] = size
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._may_continue(request))

    def _may_continue(self, request: int) -> bool:
        return sum(self._requests.values()) <= self._most_bytes or request == next(iter(self._requests))

    def end(self, request: int) -> None:
        """Remove a request that received its last row."""
        with self._changed:
            del self._requests[request]
            self._changed.notify_all()
