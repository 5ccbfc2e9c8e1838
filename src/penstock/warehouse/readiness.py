"""Readiness of tables by day. It depends on pointers, not on state: only published partitions count.

A pointer is available only while its partition has authority: a trigger clears it when the partition leaves success.
The database counts partitions; only partitions that are not ready become keys in Python.
"""

from __future__ import annotations

import re
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
from penstock.html import fragment, table
from penstock.partition import PartitionKey
from penstock.warehouse.withdrawn import not_ready

_AMOUNT = re.compile("[0-9]{1,18}")


class Counted(Protocol):
    """The input of a rule: the numbers of expected and ready partitions of a day."""

    @property
    def expected(self) -> int: ...

    @property
    def available(self) -> int: ...


@dataclass(frozen=True, slots=True)
class DayCount:
    """The numbers of expected and ready partitions of one day of a table."""

    table: str
    day: date
    expected: int
    available: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """One day of a table: the number of expected partitions, and those that are not ready."""

    table: str
    day: date
    expected: int
    absent: tuple[PartitionKey, ...]
    withdrawn_inputs: tuple[PartitionKey, ...] = ()  # the partitions of `absent` that were derived from a demoted run
    not_over: int = 0  # the number of `absent` partitions whose day has not ended in the account's time zone

    @property
    def available(self) -> int:
        return self.expected - len(self.absent)


class CoverageDays(list[Coverage]):
    """Days of tables. A notebook shows them as a table."""

    def _repr_html_(self) -> str:
        rows = ((day.table, day.day, day.expected, day.available, _few(day.absent)) for day in self)
        return fragment("coverage by day", table(("table", "day", "expected", "ready", "not ready"), rows))


def _few(keys: Sequence[PartitionKey]) -> str:
    return ", ".join(map(str, keys[:3])) + (f" and {len(keys) - 3:,} more" if len(keys) > 3 else "")


@dataclass(frozen=True, slots=True)
class Rule:
    """The required part of each day: `all`, `any`, a number, or a share such as `95%`. Raises UsageError for others."""

    text: str

    def __post_init__(self) -> None:
        self.needed(100)

    def needed(self, expected: int) -> int:
        if self.text == "all":
            return expected
        if self.text == "any":
            return 1
        amount, is_share = self.text.removesuffix("%"), self.text.endswith("%")
        if not _AMOUNT.fullmatch(amount) or int(amount) < 1 or (is_share and int(amount) > 100):
            raise UsageError(f"--require {self.text!r} is unknown: use all, any, a number, or a share such as 95%")
        return ceil(int(amount) * expected / 100) if is_share else int(amount)

    def holds(self, day: Counted) -> bool:
        return day.available >= self.needed(day.expected)


# The available pointers of the ranges. CROSS JOIN makes SQLite start with the ranges: each is one range of the primary
# key.
_SERVED = """
FROM ranges r CROSS JOIN warehouse_pointer p
WHERE p.source = r.source AND p.customer_id = r.customer_id AND p.query_name = r.query_name
    AND p.logical_date BETWEEN r.first_day AND r.last_day AND p.available{without}
"""
WITHDRAWN = {
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
    """The numbers of every expected day of the ranges, table by table. See `coverage`."""
    expected = expected_by_day(ranges)
    with database.snapshot() as connection:
        withdrawn = not_ready(connection, ranges)
        select = "SELECT p.source, p.query_name, p.logical_date, COUNT(*) AS n {served} GROUP BY 1, 2, 3"
        rows = _served_rows(connection, select, ranges, withdrawn)
    ready = {(f"{row.source}.{row.query_name}", row.logical_date): row.n for row in rows}
    return [DayCount(table, day, n, ready.get((table, day), 0)) for (table, day), n in expected.items()]


def coverage(
    database: Database, ranges: Sequence[ExpectedRange], due: Sequence[ExpectedRange] | None = None
) -> list[Coverage]:
    """Every expected day of the ranges, table by table, with the partitions that are not ready: those that cannot be
    read, and derived partitions with a demoted input. `due` are the ranges without days that have not ended yet; by
    default all ranges."""
    expected, over = expected_by_day(ranges), expected_by_day(ranges if due is None else due)
    with database.snapshot() as connection:
        withdrawn = not_ready(connection, ranges)
        absent = _absent(connection, ranges, withdrawn)
    by_day: dict[tuple[str, date], list[PartitionKey]] = {}
    for key in absent:
        by_day.setdefault((key.asset, key.logical_date), []).append(key)
    return CoverageDays(
        Coverage(
            name,
            day,
            count,
            tuple(sorted(by_day.get((name, day), ()))),
            tuple(sorted(key for key in by_day.get((name, day), ()) if key in withdrawn)),
            count - over.get((name, day), 0),
        )
        for (name, day), count in expected.items()
    )


def _absent(
    connection: sa.Connection, ranges: Sequence[ExpectedRange], withdrawn: Collection[PartitionKey]
) -> list[PartitionKey]:
    """The expected partitions that are not ready. Only incomplete ranges are expanded into days."""
    select = "SELECT p.source, p.customer_id, p.query_name, r.first_day, COUNT(*) AS n {served} GROUP BY 1, 2, 3, 4"
    rows = _served_rows(connection, select, ranges, withdrawn, first_day=sa.Date())
    ready = {(row.source, row.customer_id, row.query_name, row.first_day): row.n for row in rows}
    incomplete = [r for r in ranges if ready.get((r.source, r.customer_id, r.query_name, r.first), 0) < len(r)]
    if not incomplete:
        return []
    dialect = connection.dialect.name
    key = ", ".join(f"e.{name}" for name in schema.KEY)
    without = _NOT_WITHDRAWN if withdrawn else ""
    statement = (
        f"WITH RECURSIVE {EXPECTED_DAYS[dialect]}, {WITHDRAWN[dialect]} SELECT {key} FROM expected e"
        f" WHERE NOT EXISTS (SELECT 1 FROM warehouse_pointer p WHERE {same_key('p', 'e')} AND p.available{without})"
    )
    parameters = {"ranges": ranges_json(incomplete), "withdrawn": keys_json(withdrawn)}
    found = connection.execute(sa.text(statement).columns(logical_date=sa.Date()), parameters)
    return [PartitionKey(*row) for row in found]


def _served_rows(
    connection: sa.Connection,
    select: str,
    ranges: Sequence[ExpectedRange],
    withdrawn: Collection[PartitionKey],
    **types: Any,
) -> Sequence[sa.Row[Any]]:
    dialect = connection.dialect.name
    served = _SERVED.format(without=_NOT_WITHDRAWN if withdrawn else "")
    statement = f"WITH {EXPECTED_RANGES[dialect]}, {WITHDRAWN[dialect]} {select.format(served=served)}"
    parameters = {"ranges": ranges_json(ranges), "withdrawn": keys_json(withdrawn)}
    return connection.execute(sa.text(statement).columns(logical_date=sa.Date(), **types), parameters).all()


def keys_json(keys: Iterable[PartitionKey]) -> str:
    """The value of the parameter `:withdrawn`."""
    return orjson.dumps([tuple(key) for key in keys]).decode()


def wait_for(
    ask: Callable[[], list[Coverage]],
    rule: Rule,
    patience: timedelta,
    sleep: Callable[[float], None] = lambda seconds: time.sleep(seconds),
    clock: Callable[[], float] = lambda: time.monotonic(),
    glance: Callable[[], Iterable[Counted]] | None = None,
) -> list[Coverage]:
    """Poll `ask` until every day satisfies the rule or the patience ends. Returns the last coverage. With `glance`, a
    cheaper query, `ask` runs only after `glance` satisfies the rule."""
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
    """The partitions of all customers on the days of the ranges that a model may read: their authoritative run is
    published, and it was not derived from a demoted run."""
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
    """The first and last day of the ranges of each table."""
    found: dict[tuple[str, str], tuple[date, date]] = {}
    for span in ranges:
        first, last = found.get((span.source, span.query_name), (span.first, span.last))
        found[span.source, span.query_name] = (min(first, span.first), max(last, span.last))
    return dict(sorted(found.items()))
