"""How our processes use memory: very many small objects and next to no cycles of them, and blocks of a few megabytes
that come and go with every group of slices."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEW_OBJECTS = 50_000  # so many more than before, and the collector looks for cycles; Python's own measure is 700

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # what glibc's mallopt calls them
_LARGEST_BLOCK = 32 * 1024 * 1024  # the most that glibc allows
_MOST_UNUSED = 64 * 1024 * 1024


def settle() -> None:
    """For a worker, before its first task: what it has imported by now is never looked at again, and memory that it
    gives back is kept for the next block.

    PySpark has a worker collect everything after each task; with our imports that takes as long as a few hundred small
    slices do. And glibc returns a block to the kernel, which has to clear the same pages for the next one.
    """
    if gc.get_threshold()[0] == _NEW_OBJECTS:
        return
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS)
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):  # other C libraries have none
        mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)
        mallopt(_TRIM_THRESHOLD, _MOST_UNUSED)


@contextmanager
def seldom() -> Iterator[None]:
    """For a process that is not ours alone: collect less often while this lasts."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _NEW_OBJECTS) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
