"""Several objects of a lake are written at the same time, and all of them exist afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Barrier
from uuid import uuid4

import pytest

from penstock.lake import Lake, open_lake
from penstock.lake.concurrent_writes import ConcurrentWrites
from penstock.lake.local import LocalLake
from penstock.lake.protocol import LakeUnavailable
from support import builders


@pytest.fixture(params=["local", "s3"])
def lake(request: pytest.FixtureRequest) -> Iterator[Lake]:
    if request.param == "s3":
        yield open_lake(f"{request.getfixturevalue('s3_url')}/{uuid4().hex}")
        return
    with builders.quick_folder() as folder:
        yield open_lake(folder)


class Distant(LocalLake):
    """A local lake with the concurrency of a distant one."""

    @property
    def requests_in_flight(self) -> int:
        return 64


class Gathering(Distant):
    """Answers two writes when both have arrived."""

    barrier = Barrier(2)

    def create(self, path: str, data: bytes) -> bool:
        self.barrier.wait(30)
        return super().create(path, data)


class Failing(Distant):
    def create(self, path: str, data: bytes) -> bool:
        if path == "bad":
            raise LakeUnavailable("the storage does not answer")
        return super().create(path, data)


def test_every_object_exists_when_the_block_ends(lake: Lake) -> None:
    with ConcurrentWrites(lake) as writes:
        for number in range(30):
            writes.create(f"a/{number}", bytes([number]) * 100)
    assert lake.read_many([f"a/{number}" for number in range(30)]) == [bytes([n]) * 100 for n in range(30)]


def test_writes_do_not_wait_for_each_other() -> None:
    with builders.quick_folder() as folder:
        with ConcurrentWrites(Gathering(folder)) as writes:
            writes.create("a", b"1")
            writes.create("b", b"2")
        assert open_lake(folder).read_many(["a", "b"]) == [b"1", b"2"]


def write_all(lake: Lake, paths: Sequence[str]) -> None:
    with ConcurrentWrites(lake) as writes:
        for path in paths:
            writes.create(path, b"x")


@pytest.mark.parametrize("order", [("bad", "good"), ("good", "bad")])
def test_the_error_of_a_write_ends_the_block(order: tuple[str, str]) -> None:
    with builders.quick_folder() as folder, pytest.raises(LakeUnavailable, match="does not answer"):
        write_all(Failing(folder), order)


def test_waiting_objects_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.lake.concurrent_writes._MOST_BYTES", 100)
    with builders.quick_folder() as folder:
        lake = Distant(folder)
        with ConcurrentWrites(lake) as writes:
            for number in range(10):
                writes.create(str(number), b"x" * 60)
                assert lake.read_many([str(before) for before in range(number)]) == [b"x" * 60] * number
