"""The number of requests of a publication on object storage: a new request costs a round trip at every publication."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from bench.memory_s3 import TIMELINE
from bench.round_trips import Timed, round_trips
from support import builders
from support.harness import Harness
from support.servers import s3, s3_environment


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[Timed]]]:
    """Object storage; yields the function that returns its requests since the last call."""
    with s3("-m", "bench.memory_s3") as endpoint:
        for name, value in s3_environment(endpoint).items():
            monkeypatch.setenv(name, value)

        def post(path: str) -> bytes:
            with urlopen(Request(f"{endpoint}{path}", data=b"", method="POST"), timeout=30) as answer:
                return bytes(answer.read())

        yield lambda: [(began, ended, kind, path) for began, ended, kind, path in json.loads(post(TIMELINE))]


@pytest.fixture
def house() -> Iterator[Callable[..., Harness]]:
    with builders.quick_folder() as folder:
        made: list[Harness] = []

        def make(*queries: str) -> Harness:
            made.append(Harness(Path(folder), queries, lake="s3://bench/publish"))
            return made[-1]

        yield make
        for one in made:
            one.workspace.context.database.close()


def of_tables(requests: list[Timed]) -> list[Timed]:
    return [request for request in requests if "/raw/" not in request[3]]


def test_a_publication_sends_few_requests(storage: Callable[[], list[Timed]], house: Callable[..., Harness]) -> None:
    one = house("campaign_daily")
    for clicks, most in enumerate((12, 17, 21)):
        one.deliver({builders.key(1): clicks})
        storage()
        one.publish()
        found = of_tables(storage())
        # Later publications: open the table (4), the head (1), fence (2), old file (3), new file (1), commit (2). The
        # first one creates the table instead. delta-rs reads all entries since the last checkpoint twice.
        assert len(found) <= most, found
        assert one.clicks() == {builders.key(1): {clicks}}


def test_requests_that_overlap_are_one_round_trip() -> None:
    def timed(*spans: tuple[float, float]) -> list[Timed]:
        return [(began, ended, "GET", "x") for began, ended in spans]

    assert round_trips(timed()) == 0
    assert round_trips(timed((0, 1), (0.5, 1.5), (0.9, 2))) == 1
    assert round_trips(timed((0, 1), (1, 2), (2, 3))) == 3
    assert round_trips(timed((0, 9), (1, 2), (3, 4))) == 2
