"""The columns that the specifications name, in the state database and in the projections: names, types and keys."""

from __future__ import annotations

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from penstock.db import schema
from penstock.projections.rows import DEP_SATISFACTION
from penstock.projections.status_file import FILE

PARTITION_STATE = {
    "source": "TEXT",
    "customer_id": "TEXT",
    "query_name": "TEXT",
    "logical_date": "DATE",
    "status": "TEXT",
    "current_run_id": "TEXT",
    "schema_version": "TEXT",
    "record_count": "BIGINT",
    "updated_at": "TIMESTAMP WITH TIME ZONE",
    "error_message": "TEXT",
    "attempt_count": "INTEGER",
}
KEY = ("source", "customer_id", "query_name", "logical_date")

EDGES = {
    "tenant_id": "string",
    "workspace_id": "string",
    "run_id": "string",
    "upstream_task_key": "string",
    "downstream_task_key": "string",
    "satisfied": "bool",
    "resolution": "string",
    "satisfied_at": "timestamp",
    "satisfying_attempt": "int32",
    "row_version": "string",
}

STATUS = {
    "tenant_id": "string",
    "workspace_id": "string",
    "asset_key": "string",
    "partition_key": "string",
    "last_materialization_run_id": "string",
    "last_materialization_at": "timestamp",
    "last_materialization_code_version": "string",
    "last_attempt_run_id": "string",
    "last_attempt_at": "timestamp",
    "last_attempt_outcome": "string",
    "stale_since": "timestamp",
    "stale_reason_code": "string",
    "partition_values": "map<string, string>",
    "row_version": "string",
}


def test_partition_state_has_the_columns_of_the_contract_and_one_more() -> None:
    """`authority_version` orders changes of authority. Nothing else is kept there: no payload, figure or schedule."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    found = {column.name: column.type.compile(dialect=dialect) for column in schema.partition_state.columns}
    assert found == {**PARTITION_STATE, "authority_version": "INTEGER"}
    assert tuple(schema.partition_state.primary_key.columns.keys()) == KEY


def test_retries_and_marks_are_kept_beside_partition_state() -> None:
    assert {"next_run_at", "strategy", "failures", "terminal_at", "paused_at", "held_at"} <= set(
        schema.partition_control.columns.keys()
    )


@pytest.mark.parametrize(("found", "wanted"), [(DEP_SATISFACTION, EDGES), (FILE, STATUS)], ids=["edges", "status"])
def test_projections_have_the_columns_of_their_decisions(found: pa.Schema, wanted: dict[str, str]) -> None:
    types = {field.name: str(field.type).replace(" ('data')", "") for field in found if field.name in wanted}
    assert {name: kind.partition("[")[0] for name, kind in types.items()} == wanted
    moments = [field.type for field in found if field.name in wanted and wanted[field.name] == "timestamp"]
    assert {moment.tz for moment in moments} == {"UTC"}


def test_the_key_of_a_partition_is_the_same_in_every_table() -> None:
    tables = [table for table in schema.metadata.tables.values() if "logical_date" in table.columns]
    assert {tuple(column.name for column in table.columns if column.name in KEY) for table in tables} == {KEY}
    assert len(tables) >= 8
    assert all(isinstance(table.columns["logical_date"].type, sa.Date) for table in tables)
