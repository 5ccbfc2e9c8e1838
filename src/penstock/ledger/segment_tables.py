"""Events as Arrow tables: the content of exported segments."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
import pyarrow as pa

from penstock.projections.fact import Fact

EVENTS = pa.schema(
    [
        ("position", pa.int64()),
        ("event_id", pa.string()),
        ("type", pa.string()),
        ("version", pa.int32()),
        ("occurred_at", pa.timestamp("us", tz="UTC")),
        ("run_id", pa.string()),
        ("payload", pa.string()),
    ]
)


def to_table(facts: Sequence[Fact]) -> pa.Table:
    columns = list(zip(*[(*fact[:6], orjson.dumps(fact.payload).decode()) for fact in facts], strict=True))
    columns = columns or [()] * len(EVENTS)
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, EVENTS, strict=True)], schema=EVENTS)


def from_table(table: pa.Table | pa.RecordBatch) -> list[Fact]:
    columns = [table.column(name).to_pylist() for name in EVENTS.names]
    columns[-1] = [orjson.loads(text) for text in columns[-1]]
    return [Fact._make(row) for row in zip(*columns, strict=True)]
