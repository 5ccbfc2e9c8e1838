"""The fold of `partition_status`: two groups of columns with a version each, so that a newer failure never hides an
older success.

The rows of one batch of events have gaps. Joining rows of the same partition takes, group by group, the one with the
highest version; the order of joins has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from penstock.projections.fact import Fact, understood
from penstock.projections.status_columns import KEY, ORDER, join_sql

_MOMENT = pa.timestamp("us", tz="UTC")

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
        pa.field("attempt_position", pa.int64()),
        pa.field("authority_version", pa.int32()),
        pa.field("available", pa.bool_()),
        pa.field("authority_at", _MOMENT),
        pa.field("materialized_version", pa.int32()),
        pa.field("last_materialization_run_id", pa.string()),
        pa.field("last_materialization_at", _MOMENT),
        pa.field("last_materialization_code_version", pa.string()),
        pa.field("content_digest", pa.string()),
        pa.field("materialized_position", pa.int64()),
        pa.field("published_version", pa.int64()),
        pa.field("published_run_id", pa.string()),
        pa.field("published_at", _MOMENT),
        pa.field("row_position", pa.int64(), False),
        pa.field("row_version", pa.string(), False),
    ]
)

_WITHDRAWALS = ("demote", "re-check")
_CHUNK = 50_000

Columns = dict[str, list[Any]]


def partials(facts: Iterable[Fact]) -> pa.Table:
    """Return one row per fact about its partition, with nulls in the columns that the fact does not set."""
    by_kind: dict[str, list[Fact]] = {}
    for fact in facts:
        if fact.type in _READERS and understood(fact):
            by_kind.setdefault(fact.type, []).append(fact)
    parts = [PARTIAL.empty_table()]
    for kind, facts_of_kind in by_kind.items():
        parts += [
            _table(facts_of_kind[at : at + _CHUNK], _READERS[kind]) for at in range(0, len(facts_of_kind), _CHUNK)
        ]
    return pa.concat_tables(parts)


def _table(facts: Sequence[Fact], read: Callable[[Sequence[Fact]], Columns]) -> pa.Table:
    keys = zip(*(fact.payload["partition_key"].split("/") for fact in facts), strict=True)
    columns: dict[str, Any] = dict(zip(KEY, keys, strict=True)) | read(facts)
    columns["row_position"] = [fact.position for fact in facts]
    columns["row_version"] = [fact.event_id for fact in facts]
    arrays = []
    for field in PARTIAL:
        values = columns.get(field.name)
        if values is None:
            arrays.append(pa.nulls(len(facts), field.type))
        elif field.name == "logical_date":
            arrays.append(pa.array(values, pa.string()).cast(field.type))
        else:
            arrays.append(pa.array(values, field.type))
    return pa.Table.from_arrays(arrays, schema=PARTIAL)


def _finished(facts: Sequence[Fact]) -> Columns:
    """Closed attempts: by verdict or cancelled. Never the materialization, which only a change of authority moves."""
    return {
        "attempt_no": [fact.payload["attempt_no"] for fact in facts],
        "last_attempt_run_id": [fact.run_id for fact in facts],
        "last_attempt_at": [fact.occurred_at for fact in facts],
        "last_attempt_outcome": [fact.payload["outcome"] for fact in facts],
        "attempt_position": [fact.position for fact in facts],
    }


def _authority(facts: Sequence[Fact]) -> Columns:
    versions = [fact.payload["authority_version"] for fact in facts]
    trusted = [fact.payload["act"] not in _WITHDRAWALS for fact in facts]

    def only_trusted(values: Iterable[Any]) -> list[Any]:
        return [value if given else None for value, given in zip(values, trusted, strict=True)]

    return {
        "authority_version": versions,
        "available": trusted,
        "authority_at": [fact.occurred_at for fact in facts],
        "materialized_version": only_trusted(versions),
        "last_materialization_run_id": only_trusted(fact.run_id for fact in facts),
        "last_materialization_at": only_trusted(fact.occurred_at for fact in facts),
        "last_materialization_code_version": only_trusted(fact.payload.get("code_version") or "" for fact in facts),
        "content_digest": only_trusted(fact.payload.get("content_digest") or "" for fact in facts),
        "materialized_position": only_trusted(fact.position for fact in facts),
    }


def _published(facts: Sequence[Fact]) -> Columns:
    """The run that readers see; none after the partition was hidden."""
    return {
        "published_version": [fact.position for fact in facts],
        "published_run_id": [fact.run_id or "" if fact.type == "PartitionPublished" else "" for fact in facts],
        "published_at": [fact.occurred_at for fact in facts],
    }


_READERS: dict[str, Callable[[Sequence[Fact]], Columns]] = {
    "TaskFinished": _finished,
    "AuthorityChanged": _authority,
    "PartitionPublished": _published,
    "PartitionHidden": _published,
}


def joined(rows: pa.Table) -> pa.Table:
    """Join the rows of each partition into one, by key."""
    import duckdb

    with duckdb.connect() as connection:
        connection.register("rows", rows)
        found = connection.sql(f"{join_sql('rows')} ORDER BY {ORDER}").to_arrow_table()
    return found.select(PARTIAL.names).cast(PARTIAL)
