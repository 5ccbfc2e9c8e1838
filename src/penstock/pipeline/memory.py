"""Memory settings of our processes. They allocate very many small objects with almost no reference cycles, and blocks
of a few megabytes for every group of slices."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_NEW_OBJECTS = 50_000  # allocations between two garbage collections; the default is 700 or 2,000

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # parameters of glibc's mallopt
_LARGEST_BLOCK = 32 * 1024 * 1024  # the maximum that glibc allows
_MOST_UNUSED = 64 * 1024 * 1024


def freeze_imports() -> None:
    """For a worker: exclude everything imported before its first task of ours from garbage collection.

    PySpark runs a full collection after each task; with our imports that takes as long as a few hundred small slices.
    Other code in the same worker is collected less often, too.
    """
    if gc.get_threshold()[0] != _NEW_OBJECTS:
        gc.freeze()
        gc.set_threshold(_NEW_OBJECTS)


def keep_freed_memory() -> None:
    """For a process of our own: keep freed blocks for the next allocation. By default glibc returns them to the kernel,
    which has to clear the same pages again."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):  # other C libraries do not have it
        mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)
        mallopt(_TRIM_THRESHOLD, _MOST_UNUSED)


def limit_malloc_arenas() -> None:
    """For a driver: let all threads share two arenas. By default glibc gives every thread of a lane its own, and the
    threads of the next run cannot reuse memory that is free there."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_ARENA_MAX, 2)


def release_memory() -> None:
    """Return freed memory to the system. Both allocators keep it for later allocations, but those after a run have
    other sizes, and would need additional memory."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # only glibc has it
        trim(0)


class _ReducedGc:
    """The number of active `reduced_gc` blocks, and the thresholds to restore after the last."""

    lock = Lock()
    asking = 0
    before = gc.get_threshold()


@contextmanager
def reduced_gc() -> Iterator[None]:
    """For a process shared with other code: collect less often inside the block."""
    with _ReducedGc.lock:
        if not _ReducedGc.asking:
            _ReducedGc.before = gc.get_threshold()
            first, *others = _ReducedGc.before
            gc.set_threshold(max(first, _NEW_OBJECTS) if first else 0, *others)
        _ReducedGc.asking += 1
    try:
        yield
    finally:
        with _ReducedGc.lock:
            _ReducedGc.asking -= 1
            if not _ReducedGc.asking:
                gc.set_threshold(*_ReducedGc.before)
