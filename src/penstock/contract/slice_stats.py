"""Statistics of the fields of a partition, for the checks that evaluate a partition as a whole."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

Measures = Mapping[str, float | None]  # aggregates by name: {"sum(clicks)": 12.0}


@dataclass(frozen=True, slots=True)
class FieldStats:
    """Number of values, sum, minimum and maximum of a field. Times are microseconds since 1970."""

    count: int = 0
    total: float = 0.0
    least: float = math.inf
    most: float = -math.inf

    def aggregate(self, function: str) -> float | None:
        """Return sum, count, avg, min or max; None if there is no value or no finite result."""
        if function == "count" or not self.count:
            return float(self.count) if function in ("count", "sum") else None
        found = {"sum": self.total, "avg": self.total / self.count, "min": self.least, "max": self.most}[function]
        return found if math.isfinite(found) else None


@dataclass(frozen=True, slots=True)
class SliceStats:
    """Statistics of one partition. `previous` holds the measures of the trusted run, if there is one."""

    day: date | None  # None if the logical date of the rows is unknown
    rows: int
    fields: Mapping[str, FieldStats]
    previous: Measures | None = None


def as_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return numbers and times as doubles, which are exact enough for shares and bounds. Values of other types become
    1.0, so that they can be counted."""
    kind = column.type
    if kinds.is_timestamp(kind):
        column = column.cast(pa.int64())
    elif not (kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind)):
        column = pc.if_else(column.is_valid(), pa.scalar(1.0), pa.scalar(None, pa.float64()))
    return column.cast(pa.float64(), safe=False)


def stats_by_field(fields: Sequence[str], numbers: Sequence[float]) -> dict[str, FieldStats]:
    """Return the statistics by field, from four numbers for each field: count, sum, minimum and maximum."""
    parts = (numbers[at : at + 4] for at in range(0, len(numbers), 4))
    return {
        name: FieldStats(int(count), total, least, most)
        for name, (count, total, least, most) in zip(fields, parts, strict=True)
    }
