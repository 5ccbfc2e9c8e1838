"""Changes of the ledger after a cursor, grouped by table and day."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple

from penstock.client import Client

_MOST_EVENTS = 20_000  # of one type in one evaluation


class Followed(StrEnum):
    """The event types that the sensor follows."""

    PUBLISHED = "PartitionPublished"  # readers see a new run
    HIDDEN = "PartitionHidden"  # the rows of a demoted partition are gone
    FINISHED = "TaskFinished"  # an attempt has a verdict; only rejected ones are followed


class TableDay(NamedTuple):
    """The days of the tables are the partitions that Dagster knows."""

    day: str
    table: str


@dataclass(frozen=True, slots=True)
class LedgerCursor:
    """The position after the last event of each followed type. It survives restarts as the cursor of the sensor."""

    positions: Mapping[str, int]

    @classmethod
    def parse(cls, text: str | None, begin: int = 0) -> LedgerCursor:
        """Read the cursor that the sensor stored; without one, begin after a position of the ledger."""
        stored: dict[str, int] = json.loads(text) if text else {}
        return cls({kind: stored.get(kind, begin) for kind in Followed})

    def __str__(self) -> str:
        return json.dumps(dict(self.positions), sort_keys=True)


@dataclass(slots=True)
class Publication:
    """The publications of one table and day since the cursor."""

    rows_by_partition: dict[str, int] = field(default_factory=dict)  # of the last publication of each
    run_ids: set[str] = field(default_factory=set)
    last_event: str = ""

    def add(self, event: Mapping[str, Any]) -> None:
        payload = event["payload"]
        self.rows_by_partition[payload["partition_key"]] = payload["record_count"]
        self.run_ids.add(event["run_id"])
        self.last_event = event["event_id"]

    @property
    def rows(self) -> int:
        return sum(self.rows_by_partition.values())


@dataclass(frozen=True, slots=True)
class Changes:
    """Everything that changed between two cursors."""

    published: dict[TableDay, Publication]
    hidden: set[TableDay]
    rejected: set[TableDay]
    cursor: LedgerCursor

    @property
    def days(self) -> list[TableDay]:
        """Every changed table and day, in the order of days."""
        return sorted(self.published.keys() | self.hidden | self.rejected)


def read_changes(client: Client, cursor: LedgerCursor, tables: Collection[str], most_days: int) -> Changes:
    """The changes of these tables after a cursor. Reads at most `most_days` days of each event type, and at most 20,000
    events of it; the new cursor then is before the rest."""
    found = Changes({}, set(), set(), cursor)
    positions = {}
    for kind in Followed:
        seen: set[TableDay] = set()
        positions[kind.value] = cursor.positions[kind]
        for event in islice(client.events(after=cursor.positions[kind], kind=kind.value), _MOST_EVENTS):
            day = _table_day(event)
            if day.table in tables and _is_followed(kind, event):
                if day not in seen and len(seen) >= most_days:
                    break
                seen.add(day)
                _add(found, kind, day, event)
            positions[kind.value] = event["position"]
    return Changes(found.published, found.hidden, found.rejected, LedgerCursor(positions))


def _add(found: Changes, kind: Followed, day: TableDay, event: Mapping[str, Any]) -> None:
    match kind:
        case Followed.PUBLISHED:
            found.published.setdefault(day, Publication()).add(event)
        case Followed.HIDDEN:
            found.hidden.add(day)
        case Followed.FINISHED:
            found.rejected.add(day)


def _is_followed(kind: Followed, event: Mapping[str, Any]) -> bool:
    return kind is not Followed.FINISHED or event["payload"]["outcome"] == "FAILED"


def _table_day(event: Mapping[str, Any]) -> TableDay:
    source, _, query, day = event["payload"]["partition_key"].split("/")
    return TableDay(day, f"{source}.{query}")
