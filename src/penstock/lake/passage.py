"""Between Arrow, which writes to files, and a lake, which takes blocks."""

from __future__ import annotations

from collections.abc import Callable


class Passage:
    """What Arrow writes, handed on as it comes."""

    closed = False

    def __init__(self, put: Callable[[bytes], None]) -> None:
        self.put = put

    def write(self, data: bytes) -> int:
        block = bytes(data)
        self.put(block)
        return len(block)

    def flush(self) -> None:
        """Nothing is held back here."""

    def close(self) -> None:
        self.closed = True
