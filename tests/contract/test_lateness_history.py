"""History of lateness: when each day was complete, as a projection of the ledger, and what is expected from it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.control.lateness import Punctuality
from penstock.control.lateness_history import DayCompletion, table_history
from penstock.partition import new_ulid
from support import builders
from support.late_harness import BY_NINE, TABLE, LateHarness
from support.workspaces import key


def at(day: int, hour: float) -> datetime:
    return datetime(2024, 6, day, tzinfo=UTC) + timedelta(hours=hour)


@pytest.fixture(params=builders.BACKENDS)
def house(request: pytest.FixtureRequest) -> Iterator[LateHarness]:
    """Three customers, of whom two make a day complete. 2024-06-06 is in time, 2024-06-07 two hours late, 2024-06-08
    has one partition only, and 2024-06-09 is in time."""
    with builders.quick_folder() as folder:
        backend = {}
        if request.param != "sqlite":
            backend = {"state": request.getfixturevalue("postgres_url"), "schema": f"t_{new_ulid().lower()}"}
        query = {"start_date": "2024-04-01", "freshness": {**BY_NINE, "require": "60%"}}
        made = LateHarness(Path(folder), customers=3, query=query, **backend)
        for moment, partitions in (
            (at(7, 5), [key(1, "2024-06-06")]),
            (at(7, 6), [key(2, "2024-06-06")]),
            (at(8, 5), [key(1, "2024-06-07"), key(3, "2024-06-06"), key(1, "2024-04-02")]),
            (at(8, 9), [key(2, "2024-06-07"), key(1, "2024-06-06")]),
            (at(9, 5), [key(1, "2024-06-08")]),
            (at(10, 4), [key(1, "2024-06-09"), key(2, "2024-06-09")]),
        ):
            made.clock.now = moment
            made.deliver(dict.fromkeys(partitions, 1))
            made.publish()
            made.workspace.status.advance()
        made.clock.now = at(11, 12)
        yield made
        made.workspace.context.database.close()


def expected_days() -> list[DayCompletion]:
    completed = {6: at(7, 6), 7: at(8, 9), 9: at(10, 4)}
    return [DayCompletion(TABLE, date(2024, 6, day), 3, 2, at(day + 1, 7), completed.get(day)) for day in range(6, 11)]


def test_the_history_has_the_first_moment_at_which_the_rule_held(house: LateHarness) -> None:
    """A partition that is published again counts once, with its first time; a backfill of old days is no history."""
    days = house.workspace.lateness.history()
    assert days == expected_days()
    assert [day.late_seconds for day in days] == [0, 2 * 3600, None, 0, None]
    figures = table_history(TABLE, days, house.now())
    assert (figures.days, figures.late, figures.never_complete) == (5, 3, 2)
    assert (figures.median_late, figures.worst_late) == (timedelta(hours=2), timedelta(hours=2))
    assert figures.worst_day == date(2024, 6, 7)
    assert house.workspace.lateness.history(since=date(2024, 6, 9)) == expected_days()[3:]


def test_the_history_is_a_table_in_sql_and_the_same_after_a_rebuild(house: LateHarness) -> None:
    def rows() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (
            house.workspace.sql("SELECT * FROM system.lateness ORDER BY logical_date").read_all().to_pylist()
        )
        return found

    before = rows()
    assert [row["late_seconds"] for row in before] == [0, 7200, None, 0, None]
    assert before[1] == {
        "tenant_id": "acme",
        "workspace_id": "ads",
        "table_name": TABLE,
        "logical_date": date(2024, 6, 7),
        "expected": 3,
        "required": 2,
        "deadline": at(8, 7),
        "completed_at": at(8, 9),
        "late_seconds": 7200,
    }
    projector = house.workspace.status.projector
    projector.rebuild()
    assert rows() == before
    _, manifest = projector.head.read()
    assert [file.rows for file in manifest.publications] == [8], "one row for each partition that counts"


def test_the_history_gives_the_expected_time_of_a_day(house: LateHarness) -> None:
    """Complete days took 6, 9 and 4 hours after the end of the day in UTC; the end in Berlin is two hours earlier."""
    house.clock.now = at(11, 5)
    found = house.report()
    assert (found.expected_at, found.punctuality) == (at(11, 6), Punctuality.ON_TRACK)
    house.clock.now = at(11, 6.5)  # only one day took longer
    found = house.report()
    assert (found.expected_at, found.punctuality) == (at(11, 9), Punctuality.AT_RISK)
    house.deliver_day([1, 2])
    assert house.report().punctuality is Punctuality.READY


def test_a_lost_history_does_not_hide_the_report(house: LateHarness) -> None:
    for path in (house.folder / "lake" / "projections").glob("publications/*.parquet"):
        path.unlink()
    house.clock.now = at(11, 5)
    found = house.report()
    assert (found.expected_at, found.punctuality) == (None, Punctuality.ON_TRACK)
    house.workspace.status.projector.rebuild()
