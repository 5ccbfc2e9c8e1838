"""What the values of a field come to in a slice, and the checks that look at that instead of at single rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from penstock.config.checks import Compare, NotNullShare, Recent
from penstock.config.values import spelled
from penstock.contract.complaint import Complaint
from penstock.contract.contract import Contract
from penstock.plural import counted

Measures = Mapping[str, float | None]  # by what was worked out: {"sum(clicks)": 12.0}

_ROUNDING = 1e-9  # 0.07 of 100 rows are 7, whatever floats say
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)  # floats near it may lie beyond


@dataclass(frozen=True, slots=True)
class Figures:
    """How many values a field has in a slice, their sum, the least and the most. Times count as microseconds."""

    count: int = 0
    total: float = 0.0
    least: float = math.inf
    most: float = -math.inf

    def answer(self, function: str) -> float | None:
        """One of sum, count, avg, min and max; None where there is no number to name."""
        if function == "count" or not self.count:
            return float(self.count) if function in ("count", "sum") else None
        found = {"sum": self.total, "avg": self.total / self.count, "min": self.least, "max": self.most}[function]
        return found if math.isfinite(found) else None


@dataclass(frozen=True, slots=True)
class Worked:
    """A slice as these checks see it; `previous` is what was measured of the run that is trusted now."""

    day: date | None  # None when it is not known to which day the rows belong
    rows: int
    figures: Mapping[str, Figures]
    previous: Measures | None = None


def figured_fields(contract: Contract) -> list[str]:
    """The fields of which some check wants figures, each once."""
    asking = (check for check in contract.checks if isinstance(check, NotNullShare | Recent | Compare))
    return list(dict.fromkeys(name for check in asking for name in check.named_fields))


def as_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Numbers and times as floating point, which is exact enough for shares and bounds; of others only whether they
    are there."""
    kind = column.type
    if kinds.is_timestamp(kind):
        column = column.cast(pa.int64())
    elif not (kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind)):
        column = pc.if_else(column.is_valid(), pa.scalar(1.0), pa.scalar(None, pa.float64()))
    return column.cast(pa.float64(), safe=False)


def measures(contract: Contract, slice_of: Worked) -> dict[str, float | None]:
    """What a later run will be compared with."""
    return {check.figure: _now(check, slice_of) for check in contract.checks if isinstance(check, Compare)}


def figure_complaints(contract: Contract, slice_of: Worked) -> list[Complaint]:
    return [
        Complaint(check.name or figure_name(check), words, count, severity=check.severity)
        for check in contract.checks
        if isinstance(check, NotNullShare | Recent | Compare)
        for count, words in _problems(check, slice_of)
    ]


def figure_name(check: NotNullShare | Recent | Compare) -> str:
    return f"compare({check.figure})" if isinstance(check, Compare) else f"{check.kind}({check.field})"


def _problems(check: NotNullShare | Recent | Compare, slice_of: Worked) -> Iterator[tuple[int, str]]:
    match check:
        case NotNullShare():
            return _thin(check, slice_of)
        case Recent():
            return _old(check, slice_of)
        case Compare():
            return _changed(check, slice_of)


def _thin(check: NotNullShare, slice_of: Worked) -> Iterator[tuple[int, str]]:
    rows, there = slice_of.rows, slice_of.figures[check.field].count
    if there < rows * check.min - _ROUNDING:
        yield (
            rows - there,
            f"{check.field} has a value in {there / rows:.1%} of {counted(rows, 'row')},"
            f" at least {check.min:.1%} expected",
        )


def _old(check: Recent, slice_of: Worked) -> Iterator[tuple[int, str]]:
    if slice_of.day is None or not slice_of.rows:
        return
    end = datetime.combine(slice_of.day, time(), UTC) + timedelta(days=1)
    newest = slice_of.figures[check.field].answer("max")
    if newest is None:
        yield slice_of.rows, f"{check.field} has no value in any row, so nothing says how fresh the slice is"
        return
    found = _EPOCH + timedelta(microseconds=min(newest, _LATEST))
    if end - found > check.max_lag:
        yield (
            slice_of.rows,
            f"the newest {check.field} is {found:%Y-%m-%d %H:%M:%S} UTC, older than {spelled(check.max_lag)} at the"
            f" end of {slice_of.day}",
        )


def _changed(check: Compare, slice_of: Worked) -> Iterator[tuple[int, str]]:
    before = (slice_of.previous or {}).get(check.figure)
    if before is None:  # no run is trusted, or nothing was measured of it
        return
    now = _now(check, slice_of)
    if now is None:
        yield slice_of.rows, f"{check.figure} has no value where the trusted run has {before:,.6g}"
    elif abs(now - before) > check.max_change * abs(before):
        change = f"a change of {abs(now - before) / abs(before):.0%}" if before else "a change from nothing"
        yield (
            slice_of.rows,
            f"{check.figure} is {now:,.6g} where the trusted run has {before:,.6g}: {change}, at most"
            f" {check.max_change:.0%} is allowed",
        )


def _now(check: Compare, slice_of: Worked) -> float | None:
    if check.field is None:
        return float(slice_of.rows)
    return slice_of.figures[check.field].answer(check.function)


def gathered(fields: Sequence[str], numbers: Sequence[float]) -> dict[str, Figures]:
    """Figures by field, from four numbers for each."""
    parts = (numbers[at : at + 4] for at in range(0, len(numbers), 4))
    return {
        name: Figures(int(count), total, least, most)
        for name, (count, total, least, most) in zip(fields, parts, strict=True)
    }
