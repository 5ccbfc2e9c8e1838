"""Outcomes of checks: the verdicts of days, in numbers and with an example."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import dagster as dg
from penstock.client import Client
from penstock.errors import UsageError

from penstock_dagster.verdicts import DayVerdict, complaint_of, day_verdicts

_LISTED_DAYS = 100


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a check. It is an error if rows are missing, otherwise a warning."""

    passed: bool
    is_error: bool
    description: str
    metadata: dict[str, Any]


def day_outcome(client: Client, table: str, days: Collection[str], require: str | None = None) -> Outcome:
    """The outcome of one day, or of the days of one Dagster run."""
    verdicts = day_verdicts(client, table, min(days), max(days))
    if not verdicts:
        return Outcome(False, False, f"no partition of {table} is expected on {_range(days)}", {})
    return _judged(client, table, verdicts, require, min(days), max(days))


def table_outcome(client: Client, table: str, require: str | None = None, last_days: int | None = None) -> Outcome:
    """The outcome of all days of a table, or of the last ones."""
    today = datetime.now(UTC).date()
    since = None if last_days is None else (today - timedelta(days=last_days)).isoformat()
    verdicts = day_verdicts(client, table, since, None)
    if not verdicts:
        return Outcome(True, False, f"no partition of {table} is expected yet", {})
    return _judged(client, table, verdicts, require, since, None)


def _judged(
    client: Client,
    table: str,
    verdicts: Mapping[str, DayVerdict],
    require: str | None,
    since: str | None,
    until: str | None,
) -> Outcome:
    failed = {day: verdict for day, verdict in verdicts.items() if verdict.failed}
    description, metadata = _described(client, table, verdicts, failed)
    if require is None:
        return Outcome(not failed, any(verdict.unreadable for verdict in failed.values()), description, metadata)
    [covered] = client.ready(table, since=since, until=until, require=require)["tables"]
    waiting = [day["date"] for day in covered["days"] if not day["ready"]]
    text = f"{covered['available']} of {covered['expected']} partitions are published, {require} required on each day"
    if waiting:
        text += f", not so on {waiting[0]}" + (f" and {len(waiting) - 1} more days" if waiting[1:] else "")
    published = {"published": covered["available"], "days_not_ready": dg.MetadataValue.json(waiting[:_LISTED_DAYS])}
    return Outcome(covered["ready"], True, f"{text}; {description}", {**metadata, **published})


def _described(
    client: Client, table: str, verdicts: Mapping[str, DayVerdict], failed: Mapping[str, DayVerdict]
) -> tuple[str, dict[str, Any]]:
    """The failed partitions in a sentence, with the complaint of one of the newest day, and as metadata."""
    counts = {
        "failed": sum(len(verdict.failed) for verdict in failed.values()),
        "without_rows": sum(verdict.unreadable for verdict in failed.values()),
        "expected": sum(verdict.expected for verdict in verdicts.values()),
    }
    text = f"{counts['failed']} of {counts['expected']} partitions failed"
    if not failed:
        return text, counts
    if len(verdicts) > 1:
        text += f" on {len(failed)} of {len(verdicts)} days"
    day = max(failed)
    key = failed[day].failed[0]
    reason, complaints = complaint_of(client, key)
    newest = sorted(failed, reverse=True)[:_LISTED_DAYS]
    return f"{text}, for example {key}: {reason}", {
        **counts,
        "failed_days": dg.MetadataValue.json({day: len(failed[day].failed) for day in newest}),
        "example": dg.MetadataValue.url(f"{client.url}/partitions/{key}"),
        "complaints": dg.MetadataValue.json(list(complaints)),
        "partitions_of_day": dg.MetadataValue.url(_list_of(client.url, table, day)),
    }


def _list_of(url: str, table: str, day: str) -> str:
    source, _, query = table.partition(".")
    return f"{url}/partitions?{urlencode({'source': source, 'query': query, 'date': day})}"


def _range(days: Collection[str]) -> str:
    return min(days) if len(days) == 1 else f"{min(days)} to {max(days)}"


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many of the expected partitions of a day are published."""

    expected: int
    available: int


def coverage(client: Client, table: str, day: str) -> Coverage:
    """The coverage of one table and day. Nothing is covered on a day on which no partition is expected."""
    try:
        [found] = client.ready(table, date=day)["tables"]
    except UsageError:
        return Coverage(0, 0)
    return Coverage(found["expected"], found["available"])
