"""Python's garbage collector, told what to expect of us: very many small objects, and next to no cycles of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEW_OBJECTS = 50_000  # so many more than before, and the collector looks for cycles; Python's own measure is 700


def settle() -> None:
    """For a worker, before its first task: what it has imported by now is never looked at again.

    PySpark has a worker collect everything after each task. With our imports that takes as long as a few hundred small
    slices do.
    """
    if gc.get_threshold()[0] != _NEW_OBJECTS:
        gc.freeze()
        gc.set_threshold(_NEW_OBJECTS)


@contextmanager
def seldom() -> Iterator[None]:
    """For a process that is not ours alone: collect less often while this lasts."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _NEW_OBJECTS) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
