"""A file object for Arrow writers that passes the bytes on to a lake writer."""

from __future__ import annotations

from collections.abc import Callable


class ArrowSink:
    """Passes each block that Arrow writes to `put`."""

    closed = False

    def __init__(self, put: Callable[[bytes], None]) -> None:
        self.put = put

    def write(self, data: bytes) -> int:
        block = bytes(data)
        self.put(block)
        return len(block)

    def flush(self) -> None:
        """Does nothing: no bytes are buffered."""

    def close(self) -> None:
        self.closed = True
