"""Whether a slice of a table is ready to be read. Pointers are asked, not state: only what is published counts.

A pointer is available only while authority holds: the database itself takes it away from a partition that leaves
success. Partitions are counted by the database; keys are made only of those that are not ready.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from math import ceil
from typing import Any, Protocol

import orjson
import sqlalchemy as sa

from penstock.db import schema
from penstock.db.bulk import same_key
from penstock.db.engine import Database
from penstock.db.expected_days import EXPECTED_DAYS, EXPECTED_RANGES, ranges_json
from penstock.errors import UsageError
from penstock.expected import ExpectedRange, expected_by_day
from penstock.partition import PartitionKey
from penstock.warehouse.withdrawn import not_ready


class Counted(Protocol):
    """What a rule looks at: how many partitions of a day are expected, and how many are ready."""

    @property
    def expected(self) -> int: ...

    @property
    def available(self) -> int: ...


@dataclass(frozen=True, slots=True)
class DayCount:
    """One day of a table in numbers."""

    table: str
    day: date
    expected: int
    available: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """One day of a table: how many partitions are expected, and which of them are not ready."""

    table: str
    day: date
    expected: int
    absent: tuple[PartitionKey, ...]
    withdrawn_inputs: tuple[PartitionKey, ...] = ()  # those of `absent` that were made from a demoted run
    not_over: int = 0  # how many of `absent` belong to accounts where the day has not ended yet

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

    def holds(self, day: Counted) -> bool:
        return day.available >= self.needed(day.expected)


# The pointers of the ranges that readers see. CROSS JOIN makes SQLite begin with the ranges: each is one stretch of the
# primary key.
_SERVED = """
FROM ranges r CROSS JOIN warehouse_pointer p
WHERE p.source = r.source AND p.customer_id = r.customer_id AND p.query_name = r.query_name
    AND p.logical_date BETWEEN r.first_day AND r.last_day AND p.available{without}
"""
_WITHDRAWN = {
    "sqlite": """withdrawn AS MATERIALIZED (
        SELECT json_extract(value, '$[0]') AS source, json_extract(value, '$[1]') AS customer_id,
            json_extract(value, '$[2]') AS query_name, json_extract(value, '$[3]') AS logical_date
        FROM json_each(:withdrawn))""",
    "postgresql": """withdrawn AS MATERIALIZED (
        SELECT w ->> 0 AS source, w ->> 1 AS customer_id, w ->> 2 AS query_name, (w ->> 3)::date AS logical_date
        FROM jsonb_array_elements(CAST(:withdrawn AS jsonb)) w)""",
}
_NOT_WITHDRAWN = f" AND NOT EXISTS (SELECT 1 FROM withdrawn w WHERE {same_key('w', 'p')})"


def day_counts(database: Database, ranges: Sequence[ExpectedRange]) -> list[DayCount]:
    """Every expected day of the ranges, table by table, in numbers. See `coverage`."""
    expected = expected_by_day(ranges)
    with database.snapshot() as connection:
        withdrawn = not_ready(connection, ranges)
        select = "SELECT p.source, p.query_name, p.logical_date, COUNT(*) AS n {served} GROUP BY 1, 2, 3"
        rows = _asked(connection, select, ranges, withdrawn)
    ready = {(f"{row.source}.{row.query_name}", row.logical_date): row.n for row in rows}
    return [DayCount(table, day, n, ready.get((table, day), 0)) for (table, day), n in expected.items()]


def coverage(
    database: Database, ranges: Sequence[ExpectedRange], due: Sequence[ExpectedRange] | None = None
) -> list[Coverage]:
    """Every expected day of the ranges, table by table, with what of it is not ready: partitions that cannot be read,
    and derived partitions that were made from a run that was demoted since. `due` are the ranges without days that have
    not ended yet; all of them, if not given."""
    expected, over = expected_by_day(ranges), expected_by_day(ranges if due is None else due)
    with database.snapshot() as connection:
        withdrawn = not_ready(connection, ranges)
        absent = _absent(connection, ranges, withdrawn)
    by_day: dict[tuple[str, date], list[PartitionKey]] = {}
    for key in absent:
        by_day.setdefault((key.asset, key.logical_date), []).append(key)
    return [
        Coverage(
            table,
            day,
            count,
            tuple(sorted(by_day.get((table, day), ()))),
            tuple(sorted(key for key in by_day.get((table, day), ()) if key in withdrawn)),
            count - over.get((table, day), 0),
        )
        for (table, day), count in expected.items()
    ]


def _absent(
    connection: sa.Connection, ranges: Sequence[ExpectedRange], withdrawn: Collection[PartitionKey]
) -> list[PartitionKey]:
    """The expected partitions that are not ready. Days are unfolded only for ranges that lack something."""
    select = "SELECT p.source, p.customer_id, p.query_name, r.first_day, COUNT(*) AS n {served} GROUP BY 1, 2, 3, 4"
    rows = _asked(connection, select, ranges, withdrawn, first_day=sa.Date())
    ready = {(row.source, row.customer_id, row.query_name, row.first_day): row.n for row in rows}
    lacking = [r for r in ranges if ready.get((r.source, r.customer_id, r.query_name, r.first), 0) < len(r)]
    if not lacking:
        return []
    dialect = connection.dialect.name
    key = ", ".join(f"e.{name}" for name in schema.KEY)
    without = _NOT_WITHDRAWN if withdrawn else ""
    statement = (
        f"WITH RECURSIVE {EXPECTED_DAYS[dialect]}, {_WITHDRAWN[dialect]} SELECT {key} FROM expected e"
        f" WHERE NOT EXISTS (SELECT 1 FROM warehouse_pointer p WHERE {same_key('p', 'e')} AND p.available{without})"
    )
    parameters = {"ranges": ranges_json(lacking), "withdrawn": _keys_json(withdrawn)}
    found = connection.execute(sa.text(statement).columns(logical_date=sa.Date()), parameters)
    return [PartitionKey(*row) for row in found]


def _asked(
    connection: sa.Connection,
    select: str,
    ranges: Sequence[ExpectedRange],
    withdrawn: Collection[PartitionKey],
    **types: Any,
) -> Sequence[sa.Row[Any]]:
    dialect = connection.dialect.name
    served = _SERVED.format(without=_NOT_WITHDRAWN if withdrawn else "")
    statement = f"WITH {EXPECTED_RANGES[dialect]}, {_WITHDRAWN[dialect]} {select.format(served=served)}"
    parameters = {"ranges": ranges_json(ranges), "withdrawn": _keys_json(withdrawn)}
    return connection.execute(sa.text(statement).columns(logical_date=sa.Date(), **types), parameters).all()


def _keys_json(keys: Iterable[PartitionKey]) -> str:
    return orjson.dumps([tuple(key) for key in keys]).decode()


def wait_for(
    ask: Callable[[], list[Coverage]],
    rule: Rule,
    patience: timedelta,
    sleep: Callable[[float], None] = lambda seconds: time.sleep(seconds),
    clock: Callable[[], float] = lambda: time.monotonic(),
    glance: Callable[[], Iterable[Counted]] | None = None,
) -> list[Coverage]:
    """Ask until every day satisfies the rule, or patience ends; the last answer. With `glance`, which costs less, it is
    asked first, and the whole answer only when the glance satisfies the rule."""
    deadline, pause = clock() + patience.total_seconds(), 0.5
    while True:
        left = deadline - clock()
        if glance is None or left <= 0 or all(rule.holds(day) for day in glance()):
            found = ask()
            left = deadline - clock()
            if all(rule.holds(day) for day in found) or left <= 0:
                return found
        sleep(min(pause, max(left, 0.0)))
        pause = min(pause * 1.5, 10.0)


def usable(database: Database, ranges: Sequence[ExpectedRange]) -> set[PartitionKey]:
    """The partitions on the days of the ranges, of whichever customer, that a model may be made from: readers see the
    run that has authority, and no demoted run went into it."""
    p, s = schema.warehouse_pointer.c, schema.partition_state.c
    found: set[PartitionKey] = set()
    with database.snapshot() as connection:
        for (source, query_name), (first, last) in _days(ranges).items():
            statement = (
                sa.select(p.source, p.customer_id, p.query_name, p.logical_date)
                .join(schema.partition_state, sa.and_(*(s[name] == p[name] for name in schema.KEY)))
                .where(p.source == source, p.query_name == query_name, p.available, s.status == "success")
                .where(p.logical_date.between(first, last), s.current_run_id == p.run_id)
            )
            found |= {PartitionKey(*row) for row in connection.execute(statement)}
        return found - not_ready(connection, ranges)


def _days(ranges: Iterable[ExpectedRange]) -> Mapping[tuple[str, str], tuple[date, date]]:
    """From which to which day the ranges of each table reach."""
    found: dict[tuple[str, str], tuple[date, date]] = {}
    for span in ranges:
        first, last = found.get((span.source, span.query_name), (span.first, span.last))
        found[span.source, span.query_name] = (min(first, span.first), max(last, span.last))
    return dict(sorted(found.items()))
