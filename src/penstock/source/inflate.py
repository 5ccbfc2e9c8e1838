"""Reads gzip in bounded memory, with limits against decompression bombs."""

from __future__ import annotations

import gzip
import io
from typing import Any, BinaryIO, Protocol

from penstock.errors import DataError

# The ratio is not checked below this size: a short file of equal lines has a high ratio and is harmless.
RATIO_COUNTS_FROM = 64 * 1024 * 1024


class Readable(Protocol):
    """A stream that returns what it has."""

    def read1(self, size: int, /) -> bytes: ...


class Inflated(io.RawIOBase):
    """The decompressed bytes of a gzip stream, or of `inside`, a compressed member of `file`. Raises DataError after
    more than `most_bytes` bytes, or more than `most_ratio` times the compressed bytes that were read so far."""

    def __init__(
        self, file: BinaryIO, name: str, most_bytes: int, most_ratio: int, inside: Readable | None = None
    ) -> None:
        self._file = file
        self._inside: Readable = inside or gzip.GzipFile(fileobj=file)
        self._name = name
        self._most_bytes = most_bytes
        self._most_ratio = most_ratio
        self._inflated = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self._inside.read1(len(buffer))
        self._inflated += len(data)
        if self._inflated > self._most_bytes:
            raise DataError(
                f"{self._name}: inflates to more than {self._most_bytes:,} bytes,"
                " the most that max_inflated_bytes allows"
            )
        if self._inflated > RATIO_COUNTS_FROM and self._inflated > self._most_ratio * self._file.tell():
            raise DataError(
                f"{self._name}: inflates to more than {self._most_ratio} times its size,"
                " the most that max_inflate_ratio allows"
            )
        memoryview(buffer)[: len(data)] = data
        return len(data)
