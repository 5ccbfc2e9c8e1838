"""`partition_status` as other tools read it: the columns of ADR-026 beside those of our own joins."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.projections.status import PARTIAL

SPEC = pa.schema(
    [
        pa.field("tenant_id", pa.string(), False),
        pa.field("workspace_id", pa.string(), False),
        pa.field("asset_key", pa.string(), False),
        pa.field("partition_key", pa.string(), False),
        pa.field("partition_values", pa.map_(pa.string(), pa.string()), False),
        pa.field("stale_since", pa.timestamp("us", tz="UTC")),
        pa.field("stale_reason_code", pa.string()),
    ]
)
FILE = pa.schema([*SPEC, *PARTIAL])

_VALUES = ("source", "customer_id", "query_name", "logical_date")


def with_spec_columns(
    rows: pa.Table, owner: tuple[str, str], since: pa.Array | None = None, reason: pa.Array | None = None
) -> pa.Table:
    """Add the owner columns, the keys as text and as a map, and the stale marks of the last sweep."""
    count = len(rows)
    texts = [_whole(rows[name].cast(pa.string())) for name in _VALUES]
    source, customer_id, query_name, day = texts
    asset = pc.binary_join_element_wise(source, query_name, ".")
    key = pc.binary_join_element_wise(source, customer_id, query_name, day, "/")
    columns = [
        *(pa.repeat(pa.scalar(name, pa.string()), count) for name in owner),
        asset,
        key,
        _maps(texts, count),
        pa.nulls(count, pa.timestamp("us", tz="UTC")) if since is None else since,
        pa.nulls(count, pa.string()) if reason is None else reason,
    ]
    return pa.Table.from_arrays([*columns, *rows.columns], schema=FILE)


MARKS = ("materialized_version", "stale_since", "stale_reason_code")


def marked(rows: pa.Table, stale: pa.Table, owner: tuple[str, str]) -> pa.Table:
    """Add the stale marks of a sweep. A mark belongs to one materialization; a newer one has none."""
    keys = [*_VALUES, "materialized_version"]
    numbered = rows.select(keys).append_column("at", pa.array(np.arange(len(rows))))
    found = numbered.join(stale, keys, join_type="left outer").sort_by("at")
    since = _whole(found["stale_since"].cast(pa.timestamp("us", tz="UTC")))
    return with_spec_columns(rows, owner, since, _whole(found["stale_reason_code"]))


def marks(rows: pa.Table) -> pa.Table:
    """Return the stale marks in these rows."""
    found = rows.select([*_VALUES, *MARKS])
    return found.filter(pc.is_valid(found["stale_reason_code"]))


def _maps(texts: list[pa.Array], count: int) -> pa.Array:
    width = len(_VALUES)
    names = pa.array(_VALUES, pa.string()).take(np.tile(np.arange(width), count))
    order = (np.arange(count)[:, None] + np.arange(width)[None, :] * count).ravel()
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * width)
    return pa.MapArray.from_arrays(offsets, names, pa.concat_arrays(texts).take(order))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks)
