"""Dates and times, which JSON writes as strings, as what they mean."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.field_types import ArrayOf, Kind, Simple, StructOf

# Beyond these Arrow knows moments, but nobody who reads the rows in Python does.
_FIRST, _LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)


def parse_temporal(column: pa.Array, kind: Kind) -> pa.Array:
    """The column with its dates and times read, wherever they stand inside; ArrowInvalid if one cannot be."""
    match kind:
        case Simple("date"):
            return _in_the_calendar(column.cast(pa.date32()))
        case Simple("timestamp"):
            try:
                return _in_the_calendar(column.cast(pa.timestamp("us", tz="UTC")))
            except pa.ArrowInvalid:  # times without an offset are UTC
                return _in_the_calendar(pc.assume_timezone(column.cast(pa.timestamp("us")), "UTC"))
        case ArrayOf(element):
            lengths = np.asarray(pc.list_value_length(column).fill_null(0))
            offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
            values = parse_temporal(column.flatten(), element)
            return pa.ListArray.from_arrays(offsets, values, mask=column.is_null()).cast(
                pa.list_(pa.field("element", values.type))
            )
        case StructOf(members):
            parts = [parse_temporal(part, kind) for part, (_, kind) in zip(column.flatten(), members, strict=True)]
            return pa.StructArray.from_arrays(parts, [name for name, _ in members], mask=column.is_null())
        case _:
            return column


def _in_the_calendar(column: pa.Array) -> pa.Array:
    bounds = [pa.scalar(bound, column.type) for bound in (_FIRST, _LAST)]
    outside = pc.or_(pc.less(column, bounds[0]), pc.greater(column, bounds[1]))
    if pc.any(outside).as_py():
        raise pa.ArrowInvalid("a date lies outside the years 1 to 9999")
    return column
