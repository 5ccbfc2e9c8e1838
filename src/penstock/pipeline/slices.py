"""Raw slices in a worker: read in groups that fit in memory, large ones block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from penstock.partition import AttemptKey

GROUP_SLICES = 128
GROUP_BYTES = 8 * 1024 * 1024
LARGE_BYTES = 32 * 1024 * 1024  # beyond this a slice is never held in memory as a whole
BLOCK_BYTES = 8 * 1024 * 1024

T = TypeVar("T", bound="Slice")


@dataclass(frozen=True, slots=True)
class Slice:
    """One raw partition to read, and how large its payload is."""

    item: int
    attempt: AttemptKey
    payload_bytes: int

    @property
    def is_large(self) -> bool:
        return self.payload_bytes > LARGE_BYTES


def groups(slices: Sequence[T]) -> Iterator[list[T]]:
    """Group neighbouring slices that are together small enough to be parsed at once; a large one is its own group."""
    group: list[T] = []
    size = 0
    for piece in slices:
        if group and (len(group) >= GROUP_SLICES or size + piece.payload_bytes > GROUP_BYTES or piece.is_large):
            yield group
            group, size = [], 0
        group.append(piece)
        size += piece.payload_bytes
    if group:
        yield group


def coalesced(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Join blocks of whole lines to about BLOCK_BYTES, to amortise the cost of each parse call."""
    held: list[bytes] = []
    size = 0
    for block in blocks:
        held.append(block)
        size += len(block)
        if size >= BLOCK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)
