"""A workspace as if its partitions had been fetched and published: state, attempts, pointers and projections.

It has no rows of data. One partition in a hundred is missing, one in fifty failed last, one in ten has an older
contract: the same in the state database and in the projections.
"""

from __future__ import annotations

from pathlib import Path

import orjson
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from bench.standing import fill
from bench.workload import CONTRACT, QUERY, SOURCE, Workload
from penstock.app import Workspace
from penstock.clock import iso
from penstock.control.select import Selection
from penstock.db import schema
from penstock.db.expected_days import EXPECTED_DAYS, ranges_json
from penstock.partition import new_run_id, new_ulid
from penstock.warehouse.delta_log import log_path
from penstock.warehouse.layout import location

_TABLE = f"{SOURCE}.{QUERY}.v1"
_KEY = ", ".join(schema.KEY)


def filled_workspace(workload: Workload, folder: Path) -> None:
    """Write the workspace to a new folder."""
    query = {**CONTRACT, "start_date": workload.first_day, "restate": {"days": 3}, "freshness": {"max_lag": "36h"}}
    workspace = workload.workspace(folder, queries={QUERY: query})
    try:
        workspace.context.database.transact(lambda connection: _insert(connection, workspace, workload))
        for version in (0, 1):
            entry = orjson.dumps({"commitInfo": {"version": version}})
            workspace.context.lake.create(log_path(location(SOURCE, QUERY, "v1"), version), entry)
        fill(workspace, workload)
    finally:
        workspace.close()


def _insert(connection: Connection, workspace: Workspace, workload: Workload) -> None:
    now, worker, made, failed = iso(workspace.context.now()), new_ulid(), new_run_id(), new_run_id()
    contract = workspace.context.contracts[QUERY]
    connection.execute(
        sa.insert(schema.worker),
        {"token": worker, "host": "bench", "machine": "bench", "process": "1"}
        | dict.fromkeys(("started_at", "heartbeat_at", "stopped_at"), workspace.context.now()),
    )
    connection.execute(
        sa.insert(schema.contract),
        {
            "fingerprint": contract.fingerprint,
            "source": SOURCE,
            "query_name": QUERY,
            "schema_version": "v1",
            "body": contract.body(),
            "first_used_at": workspace.context.now(),
        },
    )
    connection.execute(
        sa.insert(schema.warehouse_table),
        {
            "table_name": _TABLE,
            "source": SOURCE,
            "query_name": QUERY,
            "schema_version": "v1",
            "location": location(SOURCE, QUERY, "v1"),
            "version": 1,
        },
    )
    attempt = {
        "reason": "missing",
        "contract_fingerprint": contract.fingerprint,
        "schema_version": "v1",
        "worker_token": worker,
        "lost_count": 0,
        "issued_at": now,
        "finished_at": now,
    }
    accepted = {
        **attempt,
        "run_id": made,
        "attempt_no": 1,
        "stage": "validate",
        "outcome": "SUCCEEDED",
        "record_count": 1,
        "payload_digest": "0" * 64,
        "payload_bytes": 100,
        "content_digest": "0" * 32,
    }
    rejected = {
        **attempt,
        "run_id": failed,
        "attempt_no": 2,
        "stage": "extract",
        "outcome": "FAILED",
        "error_class": "transient",
        "error_message": "the service did not answer",
    }
    state = {
        "status": "success",
        "current_run_id": made,
        "schema_version": "v1",
        "record_count": 1,
        "updated_at": now,
        "attempt_count": 1,
        "authority_version": 1,
    }
    pointer = {
        "run_id": made,
        "schema_version": "v1",
        "table_name": _TABLE,
        "table_version": 1,
        "available": 1,
        "record_count": 1,
        "loaded_at": now,
    }
    for table, condition, values in (
        ("partition_state", "true", state),
        ("partition_attempt", "true", accepted),
        ("partition_attempt", "number % 50 = 7", rejected),
        ("warehouse_pointer", "true", pointer),
    ):
        _insert_partitions(connection, workspace, workload, table, condition, values)


def _insert_partitions(
    connection: Connection,
    workspace: Workspace,
    workload: Workload,
    table: str,
    condition: str,
    values: dict[str, object],
) -> None:
    """One row for each partition but one in a hundred, by one statement; SQLite only."""
    number = (
        f"(CAST(customer_id AS INTEGER) - {workload.customers[0]}) * {workload.days}"
        f" + CAST(julianday(logical_date) - julianday('{workload.first_day}') AS INTEGER)"
    )
    statement = (
        f"INSERT INTO {table} ({_KEY}, {', '.join(values)}) WITH RECURSIVE {EXPECTED_DAYS['sqlite']}"  # noqa: S608
        f" SELECT {_KEY}, {', '.join(f':{name}' for name in values)} FROM (SELECT *, {number} AS number FROM expected)"
        f" WHERE number % 100 <> 0 AND {condition} ORDER BY {_KEY}"
    )
    connection.execute(sa.text(statement), {"ranges": ranges_json(workspace.context.ranges(Selection())), **values})
