"""`partition_status`, folded: two groups of facts with a version each, so that a newer failure never hides an older
success.

What one batch of events says about a partition is a row like any other, with gaps. Joining rows of the same partition
takes, group by group, the one of the highest version; the order of joining makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from penstock.projections.fact import Fact, understood

_MOMENT = pa.timestamp("us", tz="UTC")

# Group by group: the version first, then what belongs to it.
GROUPS: dict[str, tuple[str, ...]] = {
    "attempt_no": ("last_attempt_run_id", "last_attempt_at", "last_attempt_outcome"),
    "authority_version": ("available",),
    "materialized_version": (
        "last_materialization_run_id",
        "last_materialization_at",
        "last_materialization_code_version",
        "content_digest",
    ),
    "published_version": ("published_run_id", "published_at"),
    "row_position": ("row_version",),
}

PARTIAL = pa.schema(
    [
        pa.field("source", pa.string(), False),
        pa.field("customer_id", pa.string(), False),
        pa.field("query_name", pa.string(), False),
        pa.field("logical_date", pa.date32(), False),
        pa.field("attempt_no", pa.int32()),
        pa.field("last_attempt_run_id", pa.string()),
        pa.field("last_attempt_at", _MOMENT),
        pa.field("last_attempt_outcome", pa.string()),
        pa.field("authority_version", pa.int32()),
        pa.field("available", pa.bool_()),
        pa.field("materialized_version", pa.int32()),
        pa.field("last_materialization_run_id", pa.string()),
        pa.field("last_materialization_at", _MOMENT),
        pa.field("last_materialization_code_version", pa.string()),
        pa.field("content_digest", pa.string()),
        pa.field("published_version", pa.int64()),
        pa.field("published_run_id", pa.string()),
        pa.field("published_at", _MOMENT),
        pa.field("row_position", pa.int64(), False),
        pa.field("row_version", pa.string(), False),
    ]
)

_KEY = ("source", "customer_id", "query_name", "logical_date")
# Asset first: whoever asks for one asset, a few customers or a stretch of days reads few row groups.
ORDER = "source, query_name, customer_id, logical_date"
_WITHDRAWALS = ("demote", "re-check")

Row = dict[str, Any]


def partials(facts: Iterable[Fact]) -> pa.Table:
    """What each fact says about its partition, one row per fact."""
    rows = []
    for fact in facts:
        read = _READERS.get(fact.type)
        if read is None or not understood(fact):
            continue
        source, customer_id, query_name, logical_date = fact.payload["partition_key"].split("/")
        rows.append(
            {
                "source": source,
                "customer_id": customer_id,
                "query_name": query_name,
                "logical_date": logical_date,
                "row_position": fact.position,
                "row_version": fact.event_id,
                **read(fact),
            }
        )
    columns = []
    for field in PARTIAL:
        values = [row.get(field.name) for row in rows]
        kind = pa.string() if field.name == "logical_date" else field.type
        column = pa.array(values, kind)
        columns.append(column.cast(field.type) if kind != field.type else column)
    return pa.Table.from_arrays(columns, schema=PARTIAL)


def _finished(fact: Fact) -> Row:
    """A closed attempt: by verdict or cancelled. Never the materialization, which only authority moves."""
    return {
        "attempt_no": fact.payload["attempt_no"],
        "last_attempt_run_id": fact.run_id,
        "last_attempt_at": fact.occurred_at,
        "last_attempt_outcome": fact.payload["outcome"],
    }


def _authority(fact: Fact) -> Row:
    version = fact.payload["authority_version"]
    if fact.payload["act"] in _WITHDRAWALS:
        return {"authority_version": version, "available": False}
    return {
        "authority_version": version,
        "available": True,
        "materialized_version": version,
        "last_materialization_run_id": fact.run_id,
        "last_materialization_at": fact.occurred_at,
        "last_materialization_code_version": fact.payload["code_version"] or "",
        "content_digest": fact.payload["content_digest"] or "",
    }


def _published(fact: Fact) -> Row:
    return {"published_version": fact.position, "published_run_id": fact.run_id, "published_at": fact.occurred_at}


def _hidden(fact: Fact) -> Row:
    return {"published_version": fact.position, "published_run_id": "", "published_at": fact.occurred_at}


_READERS: dict[str, Callable[[Fact], Row]] = {
    "TaskFinished": _finished,
    "AuthorityChanged": _authority,
    "PartitionPublished": _published,
    "PartitionHidden": _hidden,
}


def join_sql(rows: str) -> str:
    """The statement that joins rows of the same partition. DuckDB and Spark understand it alike."""
    columns = []
    for version, values in GROUPS.items():
        columns.append(f"max({version}) AS {version}")
        columns += [f"max_by({value}, {version}) AS {value}" for value in values]
    key = ", ".join(_KEY)
    return f"SELECT {key}, {', '.join(columns)} FROM {rows} GROUP BY {key}"


def joined(rows: pa.Table) -> pa.Table:
    """The rows of each partition joined into one, by key."""
    import duckdb

    with duckdb.connect() as connection:
        connection.register("rows", rows)
        found = connection.sql(f"{join_sql('rows')} ORDER BY {ORDER}").to_arrow_table()
    return found.select(PARTIAL.names).cast(PARTIAL)
