"""Parses dates and times, which JSON writes as strings."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.field_types import ArrayOf, Kind, Simple, StructOf

# Arrow accepts times outside of these years, Python's datetime does not.
_FIRST, _LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)


def parse_temporal(column: pa.Array, kind: Kind) -> pa.Array:
    """Return the column with its dates and times parsed, also inside arrays and structs; ArrowInvalid if one is not
    valid."""
    match kind:
        case Simple("date"):
            return _checked_years(column.cast(pa.date32()))
        case Simple("timestamp"):
            try:
                return _checked_years(column.cast(pa.timestamp("us", tz="UTC")))
            except pa.ArrowInvalid:  # times without an offset are UTC
                return _checked_years(pc.assume_timezone(column.cast(pa.timestamp("us")), "UTC"))
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


def _checked_years(column: pa.Array) -> pa.Array:
    bounds = [pa.scalar(bound, column.type) for bound in (_FIRST, _LAST)]
    outside = pc.or_(pc.less(column, bounds[0]), pc.greater(column, bounds[1]))
    if pc.any(outside).as_py():
        raise pa.ArrowInvalid("a date lies outside the years 1 to 9999")
    return column
