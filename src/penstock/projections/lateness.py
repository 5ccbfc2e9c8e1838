"""`lateness`: one row for each day of a table with a deadline.

It is computed from first publications when it is read, because deadlines and expected days are settings, not events.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.projections.rows import MOMENT, OWNER

NAME = "lateness"
LATENESS = pa.schema(
    [
        *OWNER,
        pa.field("table_name", pa.string(), False),
        pa.field("logical_date", pa.date32(), False),
        pa.field("expected", pa.int32(), False),
        pa.field("required", pa.int32(), False),
        pa.field("deadline", MOMENT, False),
        pa.field("completed_at", MOMENT),
        pa.field("late_seconds", pa.int64()),
    ]
)
