"""The verdicts of a table by day, from the grid: one request for all partitions of many days."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from penstock.client import Client, GridBytes
from penstock.errors import UsageError

_UNAVAILABLE, _NEVER = "unavailable", "never_materialized"


@dataclass(frozen=True, slots=True)
class DayVerdict:
    """The partitions of one table and day. A failed partition is one whose last attempt failed, or whose trusted run
    was demoted, as `penstock failed` lists them."""

    expected: int
    failed: tuple[str, ...] = ()
    unreadable: int = 0  # of the failed ones: those without rows of an earlier run


def day_verdicts(client: Client, table: str, since: str | None, until: str | None) -> dict[str, DayVerdict]:
    """The verdict of each day on which a partition is expected, in the order of days."""
    source, _, query = table.partition(".")
    try:
        grid = client.grid(query, since=since, until=until)
    except UsageError:  # nothing is expected on these days
        return {}
    first = date.fromisoformat(grid.labels["first"])
    days = [(first + timedelta(days=column)).isoformat() for column in range(grid.columns)]
    found = {day: _verdict(grid, column, source, query, day) for column, day in enumerate(days)}
    return {day: verdict for day, verdict in found.items() if verdict.expected}


def _verdict(grid: GridBytes, column: int, source: str, query: str, day: str) -> DayVerdict:
    meaning = {one["code"]: one for one in grid.labels["codes"]}
    cells = [(row["customer_id"], meaning[grid.code(at, column)]) for at, row in enumerate(grid.labels["rows"])]
    expected = [(customer, cell) for customer, cell in cells if cell["display_status"] is not None]
    failed = [
        (customer, cell)
        for customer, cell in expected
        if cell["last_attempt_failed"] or cell["display_status"] == _UNAVAILABLE
    ]
    return DayVerdict(
        len(expected),
        tuple(f"{source}/{customer}/{query}/{day}" for customer, _ in failed),
        sum(cell["display_status"] in (_UNAVAILABLE, _NEVER) for _, cell in failed),
    )


def complaint_of(client: Client, key: str) -> tuple[str, Sequence[dict[str, Any]]]:
    """Why a failed partition failed: a sentence, and the complaints of its last failed or demoted attempt."""
    for attempt in client.attempts(key):
        if attempt["demoted_at"] is not None:
            return f"its run {attempt['run_id']} was demoted", attempt["complaints"]
        if attempt["outcome"] == "FAILED":
            return attempt["error_message"] or f"{attempt['stage']} failed", attempt["complaints"]
    return "no attempt is recorded", ()
