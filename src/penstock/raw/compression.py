"""zstd for the payloads of sources. A payload is a sequence of frames, which the `zstd` program also reads."""

from __future__ import annotations

from functools import cache
from typing import Any, BinaryIO

import pyarrow as pa

_LEVEL = 1  # payloads are written once and read once or twice: speed matters more than the last tenth of the size


@cache
def _codec() -> Any:
    return pa.Codec("zstd", compression_level=_LEVEL)


def compress(block: bytes) -> bytes:
    """Return the block as one frame."""
    frame: bytes = _codec().compress(block, asbytes=True)
    return frame


def decompress(frames: bytes, size: int) -> bytes:
    """Return the `size` bytes of all frames. Raises ValueError if the frames are damaged or hold more bytes; fewer
    bytes are filled up, so the caller must compare a digest."""
    if not frames:
        return b""
    try:
        block: bytes = _codec().decompress(frames, decompressed_size=size, asbytes=True)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(str(error)) from error
    return block


def open_decompressed(file: BinaryIO) -> Any:
    """Return the lines of a compressed file as a stream."""
    return pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")
