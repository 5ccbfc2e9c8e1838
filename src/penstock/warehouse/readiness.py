"""Whether a slice of a table is ready to be read. Pointers are asked, not state: only what is published counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from math import ceil

import sqlalchemy as sa

from penstock.db import schema
from penstock.db.engine import Database
from penstock.errors import UsageError
from penstock.expected import ExpectedRange
from penstock.partition import PartitionKey
from penstock.warehouse.withdrawn import not_ready

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Coverage:
    """One day of a table: how many partitions are expected, and which of them are not ready."""

    table: str
    day: date
    expected: int
    absent: tuple[PartitionKey, ...]
    withdrawn_inputs: tuple[PartitionKey, ...] = ()  # those of `absent` that were made from a demoted run

    @property
    def available(self) -> int:
        return self.expected - len(self.absent)


@dataclass(frozen=True, slots=True)
class Rule:
    """How much of each day must be there: `all`, `any`, a number, or a share such as `95%`."""

    text: str

    def __post_init__(self) -> None:
        self.needed(100)

    def needed(self, expected: int) -> int:
        if self.text == "all":
            return expected
        if self.text == "any":
            return 1
        amount = self.text.removesuffix("%")
        if not amount.isdigit() or (self.text.endswith("%") and not 0 < int(amount) <= 100) or int(amount) < 1:
            raise UsageError(f"--require {self.text!r} is unknown: use all, any, a number, or a share such as 95%")
        return ceil(int(amount) * expected / 100) if self.text.endswith("%") else int(amount)

    def holds(self, day: Coverage) -> bool:
        return day.available >= self.needed(day.expected)


def coverage(database: Database, ranges: Sequence[ExpectedRange]) -> list[Coverage]:
    """Every expected day of the ranges, table by table, with what of it is not ready: partitions that cannot be read,
    and derived partitions that were made from a run that was demoted since."""
    expected: dict[tuple[str, date], list[PartitionKey]] = {}
    for span in ranges:
        for number in range(len(span)):
            key = PartitionKey(span.source, span.customer_id, span.query_name, span.first + number * _DAY)
            expected.setdefault((key.asset, key.logical_date), []).append(key)
    with database.snapshot() as connection:
        there, withdrawn = _readable(connection, ranges), not_ready(connection, ranges)
    return [
        Coverage(
            table,
            day,
            len(keys),
            tuple(key for key in sorted(keys) if key not in there or key in withdrawn),
            tuple(key for key in sorted(keys) if key in withdrawn),
        )
        for (table, day), keys in sorted(expected.items())
    ]


def wait_for(
    ask: Callable[[], list[Coverage]],
    rule: Rule,
    patience: timedelta,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> list[Coverage]:
    """Ask until every day satisfies the rule, or patience ends; the last answer."""
    deadline, pause = clock() + patience.total_seconds(), 0.5
    while True:
        found = ask()
        left = deadline - clock()
        if all(rule.holds(day) for day in found) or left <= 0:
            return found
        sleep(min(pause, left))
        pause = min(pause * 1.5, 10.0)


def usable(database: Database, ranges: Sequence[ExpectedRange]) -> set[PartitionKey]:
    """The partitions around the ranges that a model may be made from: readers see the run that has authority, and no
    demoted run went into it."""
    with database.snapshot() as connection:
        return _readable(connection, ranges, current=True) - not_ready(connection, ranges)


def _readable(
    connection: sa.Connection, ranges: Sequence[ExpectedRange], *, current: bool = False
) -> set[PartitionKey]:
    """The partitions around the ranges that readers see: the pointer is available, and authority still says so. With
    `current`, only those whose authoritative run is published."""
    p, s = schema.warehouse_pointer.c, schema.partition_state.c
    found: set[PartitionKey] = set()
    for source, query_name in sorted({(r.source, r.query_name) for r in ranges}):
        mine = [r for r in ranges if (r.source, r.query_name) == (source, query_name)]
        statement = (
            sa.select(p.source, p.customer_id, p.query_name, p.logical_date)
            .join(schema.partition_state, sa.and_(*(s[name] == p[name] for name in schema.KEY)))
            .where(p.source == source, p.query_name == query_name, p.available, s.status == "success")
            .where(p.logical_date.between(min(r.first for r in mine), max(r.last for r in mine)))
        )
        if current:
            statement = statement.where(s.current_run_id == p.run_id)
        found |= {PartitionKey(*row) for row in connection.execute(statement)}
    return found
