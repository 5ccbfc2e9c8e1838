"""Counts and pages of partitions, compared with the view of all expected partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import pytest

from penstock.db import expected_days
from penstock.db.engine import Database
from penstock.expected import ExpectedRange
from penstock.lifecycle import PartitionStatus
from penstock.partition import PartitionKey
from support import builders
from support.builders import Actors, key

CUSTOMERS = ("1000000001", "1000000002", "1000000003", "1000000004")
RANGES = [
    ExpectedRange("demo", customer, "campaign_daily", date(2024, 6, 1), date(2024, 6, 9)) for customer in CUSTOMERS
]


@pytest.fixture(params=["sqlite", "postgresql"])
def actors(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Actors]:
    server: Callable[[], str] = lambda: request.getfixturevalue("postgres_url")  # noqa: E731
    database: Database = builders.open_database(request.param, str(tmp_path), server)
    yield Actors.on(builders.migrated(database))
    database.close()


def fill(actors: Actors) -> None:
    """Accepted, failed and requeued partitions, open attempts with and without a state; some are not expected."""
    for customer in CUSTOMERS[:3]:
        for day in (1, 2, 5, 20):
            actors.accept(key(day, customer))
    for day in (2, 3, 4):
        actors.reject(key(day, CUSTOMERS[1]))
    actors.control.requeue([key(3, CUSTOMERS[1])], builders.audit_entry())
    actors.issue(key(1, CUSTOMERS[0]), key(4, CUSTOMERS[3]), key(21, CUSTOMERS[3]))


def test_counts_and_pages_are_those_of_the_whole_view(actors: Actors, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(actors)
    monkeypatch.setattr(expected_days, "_SMALLEST_PART", 1)
    monkeypatch.setattr(expected_days, "_GROWTH", 2)
    reader = actors.reader
    seen = set()
    for ranges in (RANGES, RANGES[::-1], RANGES[1:2], []):
        for explicit in (False, True):
            for status in (None, *PartitionStatus):
                whole = reader.views(ranges, status=status, explicit=explicit)
                assert reader.count(ranges, status=status, explicit=explicit) == len(whole)
                seen.add((explicit, status, bool(whole)))
                found: list[PartitionKey] = []
                after = None
                while page := reader.views(ranges, status=status, explicit=explicit, after=after, limit=2):
                    assert len(page) == 2 or len(found) + len(page) == len(whole)
                    found += [view.key for view in page]
                    after = found[-1]
                assert found == [view.key for view in whole]
    assert {(explicit, status, True) for explicit in (False, True) for status in (None, *PartitionStatus)} <= seen
