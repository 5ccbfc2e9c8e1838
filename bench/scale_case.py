"""One measured case of `bench.scale`, and the fills that several of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from bench.workload import ASSET, QUERY, SOURCE, Workload
from penstock.app import Workspace
from penstock.clock import iso
from penstock.control.select import Selection
from penstock.db import schema
from penstock.db.expected_days import EXPECTED_DAYS, ranges_json
from penstock.partition import new_run_id

Fill = Callable[[Workspace, Workload], None]


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement, in a workspace that `fill` filled. The act raises SystemExit when its result is wrong."""

    name: str
    fill: Fill
    act: Callable[[Workspace], object]


_TABLE = f"{ASSET}.v1"


def insert_partitions(connection: Connection, workspace: Workspace, table: str, columns: Mapping[str, str]) -> None:
    """Rows for every expected partition, except those of each hundredth customer: one statement, no Python objects.
    `columns` are SQL expressions by the names of the columns beside the key."""
    key = ", ".join(schema.KEY)
    ranges = ranges_json(workspace.context.ranges(Selection()))
    days = f"WITH RECURSIVE {EXPECTED_DAYS[workspace.context.database.dialect]}"
    made = f"SELECT {key}, {', '.join(columns.values())} FROM expected WHERE CAST(customer_id AS BIGINT) % 100 <> 1"  # noqa: S608
    statement = f"INSERT INTO {table} ({key}, {', '.join(columns)}) {days} {made}"
    connection.execute(sa.text(statement), {"ranges": ranges})


def published(workspace: Workspace, _workload: Workload) -> None:
    """State and pointers as if everything were published, except for each hundredth customer; there is no data."""
    run_id, now = new_run_id(), iso(workspace.context.now())
    moment = (
        f"CAST('{now}' AS TIMESTAMP WITH TIME ZONE)"
        if workspace.context.database.dialect == "postgresql"
        else f"'{now}'"
    )
    inserts = {
        "partition_state": {
            "status": "'success'",
            "current_run_id": f"'{run_id}'",
            "schema_version": "'v1'",
            "record_count": "1",
            "updated_at": moment,
            "attempt_count": "1",
            "authority_version": "1",
        },
        "warehouse_pointer": {
            "run_id": f"'{run_id}'",
            "schema_version": "'v1'",
            "table_name": f"'{_TABLE}'",
            "table_version": "1",
            "available": "true",
            "record_count": "1",
            "loaded_at": moment,
        },
    }

    def work(connection: Connection) -> None:
        connection.execute(
            sa.insert(schema.warehouse_table),
            {
                "table_name": _TABLE,
                "source": SOURCE,
                "query_name": QUERY,
                "schema_version": "v1",
                "location": f"warehouse/{SOURCE}/{QUERY}/v1",
                "version": 1,
            },
        )
        for table, columns in inserts.items():
            insert_partitions(connection, workspace, table, columns)

    workspace.context.database.transact(work)
