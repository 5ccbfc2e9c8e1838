"""The source of kind demo, for examples, tests and benchmarks: generated rows and optional faults.

The same seed gives the same rows and the same faults on every machine and in every run, except for the fault
`unsteady`, which differs on each fetch.
"""

from __future__ import annotations

import datetime as dt
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any, ClassVar

import orjson
import pydantic

from penstock.config.assets import Query
from penstock.config.checks import Field
from penstock.config.settings import Customer
from penstock.config.values import KeyDoc
from penstock.errors import AuthFailed, QuotaExceeded, SourceUnavailable
from penstock.field_types import ArrayOf, DecimalOf, Kind, Simple, StructOf, kind_of
from penstock.source.options import Options, read_options
from penstock.source.protocol import COMPLETE, Row, RunContext


class Fault(StrEnum):
    """A fault of one partition."""

    TRANSIENT = "transient"  # the source does not respond for this day
    QUOTA = "quota"  # the source asks us to wait, for the rest of the span
    AUTH = "auth"  # the source refuses our credentials
    TRUNCATED = "truncated"  # the last row is cut off in the middle
    WRONG_TYPE = "wrong_type"  # a number is text
    DUPLICATE_KEY = "duplicate_key"  # the first row is repeated
    ZERO_ROWS = "zero_rows"  # there are no rows
    FEWER_ROWS = "fewer_rows"  # most rows are missing
    UNSTEADY = "unsteady"  # each fetch has another number of rows
    SLOW = "slow"  # correct, after a delay
    CRASH = "crash"  # the process that fetches it dies


_AT_RANDOM = (Fault.TRANSIENT, Fault.WRONG_TYPE, Fault.DUPLICATE_KEY, Fault.TRUNCATED)


class FaultRule(Options):
    """The partitions that have a fault: those that match every given filter."""

    fault: Fault
    customer: str | None = None
    query: str | None = None
    date: dt.date | None = None
    since: dt.date | None = None
    enabled: bool = True
    seconds: float = 1.0

    documentation: ClassVar = {
        "fault": KeyDoc("The fault.", "wrong_type"),
        "customer": KeyDoc("Only partitions of this customer.", '"1000000001"'),
        "query": KeyDoc("Only partitions of this query.", "campaign_daily"),
        "date": KeyDoc("Only partitions of this day.", "2024-06-01"),
        "since": KeyDoc("Only partitions of this day and later ones.", "2024-06-01"),
        "enabled": KeyDoc("Whether the fault happens; a variable switches it from outside.", "${FAULTS:-true}"),
        "seconds": KeyDoc("For `slow`: how many seconds the fetch takes longer.", "2.5"),
    }

    def matches(self, customer: str, query: str, day: dt.date) -> bool:
        return (
            self.enabled
            and self.customer in (None, customer)
            and self.query in (None, query)
            and self.date in (None, day)
            and (self.since is None or day >= self.since)
        )


class DemoOptions(Options):
    """Options of `sources.<name>` for kind demo."""

    seed: int = 7
    rows: int = pydantic.Field(default=20, ge=0)
    failure_rate: float = pydantic.Field(default=0.0, ge=0, le=1)
    faults: tuple[FaultRule, ...] = ()

    documentation: ClassVar = {
        "seed": KeyDoc("The same seed gives the same rows.", "7"),
        "rows": KeyDoc("The number of rows of a partition.", "20"),
        "failure_rate": KeyDoc("The share of partitions that get a random fault.", "0.05"),
        "faults": KeyDoc("Faults of chosen partitions; the first one that fits counts.", "[{fault: zero_rows}]"),
    }


@dataclass(frozen=True, slots=True)
class _Slice:
    customer: str
    query: str
    day: dt.date

    def random(self, seed: object) -> Random:
        return Random(f"{seed}/{self.customer}/{self.query}/{self.day.isoformat()}")


class DemoSource:
    """Implements the source protocol without a network."""

    in_date_order = True
    api_version = "demo-1"

    def __init__(self, options: Mapping[str, Any], context: RunContext) -> None:
        self._options = read_options(DemoOptions, options)
        self._run_id = context.run_id

    def extract(self, query: Query, customer: Customer, dates: Sequence[dt.date]) -> Iterator[tuple[dt.date, Row]]:
        make = _row_maker(query.fields)
        for day in dates:
            piece = _Slice(customer.id, query.name, day)
            for row in self._rows(piece, make):
                yield day, row
            yield day, COMPLETE

    def _rows(self, piece: _Slice, make: Callable[[Random, int], dict[str, Any]]) -> Iterator[Row]:
        rule = self._fault(piece)
        fault = rule.fault if rule else None
        match fault:
            case Fault.TRANSIENT:
                yield SourceUnavailable(f"the demo source did not respond for {piece.customer} on {piece.day}")
                return
            case Fault.QUOTA:
                raise QuotaExceeded("the demo source is out of quota", retry_after=30.0)
            case Fault.AUTH:
                raise AuthFailed("the demo source refuses these credentials: renew them, then run again")
            case Fault.CRASH:
                os.kill(os.getpid(), signal.SIGKILL)
            case Fault.SLOW:
                time.sleep(rule.seconds if rule else 0)
        random = piece.random(self._options.seed)
        count = self._count(piece, fault)
        first_id = 10_000_000 + random.randrange(1_000_000)
        rows = [make(random, first_id + index) for index in range(count)]
        yield from _with_fault(rows, fault)

    def _fault(self, piece: _Slice) -> FaultRule | None:
        for rule in self._options.faults:
            if rule.matches(piece.customer, piece.query, piece.day):
                return rule
        if self._options.failure_rate:
            random = piece.random(f"{self._options.seed}/fault")
            if random.random() < self._options.failure_rate:
                return FaultRule(fault=random.choice(_AT_RANDOM))
        return None

    def _count(self, piece: _Slice, fault: Fault | None) -> int:
        rows = self._options.rows
        match fault:
            case Fault.ZERO_ROWS:
                return 0
            case Fault.FEWER_ROWS:
                return rows // 5
            case Fault.UNSTEADY:
                return max(1, rows - piece.random(self._run_id).randrange(max(1, rows // 4)))
        return rows


def _with_fault(rows: list[dict[str, Any]], fault: Fault | None) -> Iterator[Row]:
    if fault is Fault.WRONG_TYPE and rows:
        number = next((name for name, value in rows[-1].items() if isinstance(value, int)), None)
        rows[-1] = {**rows[-1], **({number: "many"} if number else {})}
    if fault is Fault.TRUNCATED and rows:
        yield from rows[:-1]
        whole = orjson.dumps(rows[-1])
        yield whole[: len(whole) // 2]
        return
    yield from rows
    if fault is Fault.DUPLICATE_KEY and rows:
        yield rows[0]


def _row_maker(fields: Sequence[Field]) -> Callable[[Random, int], dict[str, Any]]:
    """Return a function that generates a row: plausible values for well-known names, otherwise values of the type."""
    columns = [(field.name, _maker(field)) for field in fields]

    def make(random: Random, number: int) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for name, maker in columns:
            row[name] = maker(random.random(), number, row)
        return row

    return make


_Maker = Callable[[float, int, dict[str, Any]], Any]

_NETWORKS = ("SEARCH", "CONTENT", "YOUTUBE_WATCH", "MIXED")

_KNOWN: dict[str, _Maker] = {
    "campaign_id": lambda _chance, number, _row: number,
    "ad_group_id": lambda _chance, number, _row: number * 10,
    "campaign_name": lambda _chance, number, _row: f"Campaign {number % 1000}",
    "ad_group_name": lambda _chance, number, _row: f"Ad group {number % 1000}",
    "network": lambda chance, _number, _row: _NETWORKS[int(chance * len(_NETWORKS))],
    "impressions": lambda chance, _number, _row: int(chance * chance * 20_000),
    "clicks": lambda chance, _number, row: int(chance * 0.1 * row.get("impressions", 5_000)),
    "cost_micros": lambda chance, _number, row: int((0.5 + chance) * 600_000) * row.get("clicks", 20),
    "conversions": lambda chance, _number, row: round(chance * 0.1 * row.get("clicks", 20), 2),
}

_BY_TYPE: dict[str, _Maker] = {
    "long": lambda chance, _number, _row: int(chance * 1_000_000),
    "double": lambda chance, _number, _row: round(chance * 1_000, 4),
    "string": lambda chance, _number, _row: f"text {int(chance * 1_000)}",
    "boolean": lambda chance, _number, _row: chance < 0.5,
    "date": lambda chance, _number, _row: dt.date(2024, 1, 1 + int(chance * 31)).isoformat(),
    "timestamp": lambda chance, _number, _row: f"2024-01-01T{int(chance * 24):02d}:00:00Z",
}


def _maker(field: Field) -> _Maker:
    known = _KNOWN.get(field.name)
    return known if known and field.type in ("long", "double", "string") else _maker_of(kind_of(field.type))


def _maker_of(kind: Kind) -> _Maker:
    match kind:
        case Simple(name):
            return _BY_TYPE[name]
        case DecimalOf():
            return lambda chance, _number, _row: f"{chance:.{kind.scale}f}"
        case ArrayOf(element):
            make = _maker_of(element)
            return lambda chance, number, row: [make(chance / (n + 1), number, row) for n in range(int(chance * 4))]
        case StructOf(members):
            makers = [(name, _maker_of(member)) for name, member in members]
            return lambda chance, number, row: {name: make(chance, number, row) for name, make in makers}
