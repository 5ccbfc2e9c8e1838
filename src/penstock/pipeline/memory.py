"""How our processes use memory: very many small objects and next to no cycles of them, and blocks of a few megabytes
that come and go with every group of slices."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_NEW_OBJECTS = 50_000  # after so many the collector looks for cycles; by itself it does after 700 or 2,000

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # what glibc's mallopt calls them
_LARGEST_BLOCK = 32 * 1024 * 1024  # the most that glibc allows
_MOST_UNUSED = 64 * 1024 * 1024


def freeze_imports() -> None:
    """For a worker: what it has imported until its first task of ours is never looked at again.

    PySpark has a worker collect everything after each task; with our imports that takes as long as a few hundred small
    slices do. Whoever shares the worker with us is collected less often, too.
    """
    if gc.get_threshold()[0] != _NEW_OBJECTS:
        gc.freeze()
        gc.set_threshold(_NEW_OBJECTS)


def keep_freed_memory() -> None:
    """For a process that is ours: a block that is freed is kept for the next one. By itself glibc returns it to the
    kernel, which has to clear the same pages again."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):  # other C libraries have none
        mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)
        mallopt(_TRIM_THRESHOLD, _MOST_UNUSED)


def limit_malloc_arenas() -> None:
    """For a driver: its threads share two arenas. By itself glibc gives every thread of a lane its own, and what one
    run has left there in pieces the threads of the next do not find."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_ARENA_MAX, 2)


def release_memory() -> None:
    """Hand what was freed back to the system: both allocators keep it for whoever asks next, but what follows a run has
    other sizes, and would come on top."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # only glibc has it
        trim(0)


class _ReducedGc:
    """How many ask for it, and what to go back to after the last of them."""

    lock = Lock()
    asking = 0
    before = gc.get_threshold()


@contextmanager
def reduced_gc() -> Iterator[None]:
    """For a process that is not ours alone: collect less often while this lasts."""
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
