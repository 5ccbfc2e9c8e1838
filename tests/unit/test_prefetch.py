"""Reading ahead on storage with latency."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from penstock.lake.local import LocalLake
from penstock.pipeline.prefetch import prefetched


class DistantLake(LocalLake):
    """A lake whose requests wait for a network."""

    __slots__ = ()

    @property
    def requests_in_flight(self) -> int:
        return 8


def test_items_keep_their_order_and_their_results(tmp_path: Path) -> None:
    for lake in (LocalLake(str(tmp_path)), DistantLake(str(tmp_path))):
        assert list(prefetched(lake, range(7), lambda item: item * item)) == [(n, n * n) for n in range(7)]
        assert list(prefetched(lake, [], lambda item: item)) == []


def test_the_next_items_are_read_while_the_first_is_used(tmp_path: Path) -> None:
    third = threading.Event()

    def read(item: int) -> int:
        if item == 2:
            third.set()
        return item

    found = prefetched(DistantLake(str(tmp_path)), range(9), read)
    assert next(found) == (0, 0)
    assert third.wait(10)
    assert [item for item, _ in found] == list(range(1, 9))


def test_no_more_than_two_items_are_held_ahead(tmp_path: Path) -> None:
    asked: list[int] = []
    found = prefetched(DistantLake(str(tmp_path)), range(9), lambda item: asked.append(item))
    next(found)
    found.close()
    assert max(asked) <= 2


def test_on_a_local_disk_nothing_is_read_ahead(tmp_path: Path) -> None:
    asked: list[int] = []
    found = prefetched(LocalLake(str(tmp_path)), range(9), lambda item: asked.append(item))
    next(found)
    assert asked == [0]


def test_an_error_is_raised_at_its_item(tmp_path: Path) -> None:
    def read(item: int) -> int:
        if item == 2:
            raise ValueError("the third")
        return item

    found = prefetched(DistantLake(str(tmp_path)), range(9), read)
    assert [next(found)[0], next(found)[0]] == [0, 1]
    with pytest.raises(ValueError, match="the third"):
        next(found)
