"""Finds derived partitions with demoted inputs, starting from the demoted attempts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import date, datetime
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db.bulk import KEY_COLUMNS, same_key
from penstock.db.engine import Database
from penstock.db.types import UtcTimestamp
from penstock.expected import ExpectedRange
from penstock.partition import AssetKind, PartitionKey, RunId, asset_kind

_CONSUMED = " AND ".join(f"i.input_{name} = {{0}}.{name}" for name in KEY_COLUMNS) + " AND i.input_run_id = {0}.run_id"
_DERIVED = ", ".join(f"i.{name}" for name in (*KEY_COLUMNS, "run_id"))
_INPUT = ", ".join(f"i.input_{name} AS {name}" for name in (*KEY_COLUMNS, "run_id"))

# There are few demoted attempts and many recorded inputs: CROSS JOIN makes SQLite start with the former. UNION ends the
# recursion and keeps one row for each derived run and demotion.
_WITHDRAWN = f"""
WITH RECURSIVE withdrawn AS (
    SELECT {_DERIVED}, d.demoted_at FROM partition_attempt d CROSS JOIN attempt_input i
    WHERE d.demoted_at IS NOT NULL AND {_CONSUMED.format("d")}
    UNION
    SELECT {_DERIVED}, w.demoted_at FROM withdrawn w CROSS JOIN attempt_input i WHERE {_CONSUMED.format("w")}
)
SELECT w.source, w.customer_id, w.query_name, w.logical_date, w.run_id, MIN(w.demoted_at) AS first_demoted_at,
    MAX(w.demoted_at) AS last_demoted_at, MAX(r.loaded_at) AS loaded_at,
    MAX(CASE WHEN p.run_id = w.run_id AND p.available THEN p.table_name END) AS served_in,
    MAX(CASE WHEN s.status = 'success' AND s.current_run_id = w.run_id THEN 1 ELSE 0 END) AS trusted
FROM withdrawn w
LEFT JOIN warehouse_pointer p ON {same_key("p", "w")}
LEFT JOIN partition_state s ON {same_key("s", "w")}
LEFT JOIN load_record r ON {same_key("r", "w")} AND r.run_id = w.run_id
WHERE CAST(:query_name AS TEXT) IS NULL OR w.query_name = :query_name
GROUP BY w.source, w.customer_id, w.query_name, w.logical_date, w.run_id
"""
_ROOTS = f"""
WITH RECURSIVE used AS (
    SELECT {_INPUT} FROM attempt_input i
    WHERE {" AND ".join(f"i.{name} = :{name}" for name in (*KEY_COLUMNS, "run_id"))}
    UNION
    SELECT {_INPUT} FROM used u JOIN attempt_input i ON {same_key("i", "u")} AND i.run_id = u.run_id
)
SELECT d.source, d.customer_id, d.query_name, d.logical_date, d.run_id, d.demoted_at
FROM used u JOIN partition_attempt d ON {same_key("d", "u")} AND d.run_id = u.run_id
WHERE d.demoted_at IS NOT NULL
ORDER BY d.demoted_at, d.source, d.customer_id, d.query_name, d.logical_date
"""


class WithdrawnInput(NamedTuple):
    """A run of a derived partition that consumed a demoted run, directly or through other derived runs."""

    key: PartitionKey
    run_id: RunId
    first_demoted_at: datetime
    last_demoted_at: datetime
    loaded_at: datetime | None
    served_in: str | None  # the table from which readers get the rows of this run
    trusted: bool  # whether this run is authoritative


class DemotedRun(NamedTuple):
    """A demoted run and the time of its demotion."""

    key: PartitionKey
    run_id: RunId
    demoted_at: datetime

    def __str__(self) -> str:
        return f"run {self.run_id} of {self.key}, which was demoted at {self.demoted_at:%Y-%m-%d %H:%M} UTC"


def withdrawn_inputs(connection: Connection, query_name: str | None = None) -> list[WithdrawnInput]:
    """Every run of a model (or of all models) that was derived from a demoted run, also if it is no longer served."""
    statement = (
        sa.text(_WITHDRAWN)
        .bindparams(sa.bindparam("query_name", type_=sa.Text()))
        .columns(
            logical_date=sa.Date(),
            first_demoted_at=UtcTimestamp(),
            last_demoted_at=UtcTimestamp(),
            loaded_at=UtcTimestamp(),
            trusted=sa.Boolean(),
        )
    )
    rows = connection.execute(statement, {"query_name": query_name})
    return [WithdrawnInput(PartitionKey(*row[:4]), RunId(row[4]), *row[5:]) for row in rows]


def demoted_inputs(connection: Connection, key: PartitionKey, run_id: str) -> list[DemotedRun]:
    """The demoted inputs of one run of a derived partition, direct and indirect, oldest demotion first."""
    typed = [sa.bindparam("logical_date", type_=sa.Date())]
    statement = sa.text(_ROOTS).bindparams(*typed).columns(logical_date=sa.Date(), demoted_at=UtcTimestamp())
    rows = connection.execute(statement, {**key._asdict(), "run_id": run_id})
    return [DemotedRun(PartitionKey(*row[:4]), RunId(row[4]), row[5]) for row in rows]


def not_ready(connection: Connection, ranges: Sequence[ExpectedRange]) -> set[PartitionKey]:
    """The derived partitions of these assets that serve, or are about to serve, rows with a demoted input."""
    names = {span.query_name for span in ranges if span.kind is AssetKind.DERIVED}
    if not names:
        return set()
    only = next(iter(names)) if len(names) == 1 else None
    return {
        one.key
        for one in withdrawn_inputs(connection, only)
        if one.key.query_name in names and (one.trusted or one.served_in)
    }


def keys_by_table(connection: Connection, source: str, query_name: str) -> dict[str, set[tuple[date, str]]]:
    """Day and customer of the served partitions of an asset with a demoted input, by table."""
    found: dict[str, set[tuple[date, str]]] = {}
    if asset_kind(source) is AssetKind.DERIVED:
        for one in withdrawn_inputs(connection, query_name):
            if one.served_in is not None:
                found.setdefault(one.served_in, set()).add((one.key.logical_date, one.key.customer_id))
    return found


def trusted_inputs(database: Database) -> Collection[WithdrawnInput]:
    """The derived partitions whose authoritative run has a demoted input."""
    with database.snapshot() as connection:
        return [one for one in withdrawn_inputs(connection) if one.trusted]
