"""The simulation of `bench.scale` takes every partition through the stores of a run, and measures each part."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from rich.console import Console

from bench.counting_s3 import request_kind
from bench.databases import place
from bench.measure import Stopwatch
from bench.scale_simulation import days_of, new_workspace, simulate, sizes_up_to
from bench.simulated_run import PARTS, SimulatedRuns
from penstock.flow.heartbeat import Heartbeat

PARTITIONS = 400
LARGE_TABLES = {"partition_state", "partition_attempt", "warehouse_pointer", "load_record", "event"}


def test_a_simulation_measures_every_part_of_a_run(tmp_path: Path) -> None:
    progress = io.StringIO()
    with place("sqlite", tmp_path) as here:
        facts = {fact["what"]: fact for fact in simulate(here, PARTITIONS, Console(file=progress, width=200))}
    assert all(facts[part]["seconds"] > 0 for part in PARTS)
    assert facts["all parts"]["seconds"] == pytest.approx(sum(facts[part]["seconds"] for part in PARTS), abs=0.01)
    rejected = -(-PARTITIONS // 100)
    of_run = 6  # a plan, three batches of tasks, the extracted partitions, the end
    per_partition = 3 * (PARTITIONS - rejected) + rejected  # verdict, authority, publication; or a verdict alone
    assert facts["events"]["rows"] == per_partition + of_run
    assert facts["table partition_attempt"]["bytes"] > 100 * PARTITIONS
    assert facts["projection partition_status"]["files"] == 1
    assert facts["Delta log"]["files"] == 3  # the new table, the fence, the publication
    assert {"plan, nothing stored", "plan, all stored", "status", "ready"} <= set(facts)
    assert "400 of 400 partitions" in progress.getvalue()


def test_no_statement_of_a_run_reads_a_whole_table(tmp_path: Path) -> None:
    """Tables with a row for each partition are read by key, so that a batch costs the same in a large workspace."""
    scans: set[str] = set()

    def explain(connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        if not many and statement.lstrip().startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")):
            plan = connection.connection.dbapi_connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            scans.update(f"{detail}: {statement}" for *_, detail in plan if _reads_all(detail, statement))

    with place("sqlite", tmp_path) as here:
        workspace = new_workspace(here, customers=20, days=20)
        with Heartbeat(workspace.context.workers) as heart:
            runs = SimulatedRuns(workspace, heart.token, Stopwatch())
            sa.event.listen(workspace.context.database.engine, "before_cursor_execute", explain)
            runs.run(workspace.plans.preview().items)
        workspace.context.database.close()
    assert sorted(scans) == []


def _reads_all(detail: str, statement: str) -> bool:
    """Whether a step of a query plan reads a table that has a row for each partition without a key: all its rows, or
    all rows of a status."""
    found = re.match(r"(?:SCAN|SEARCH) (\w+)", detail)
    if found is None or re.search(r"logical_date=\?|run_id=\?|rowid[=>]\?", detail):
        return False
    tables = re.findall(rf"(\w+) (?:AS )?{found[1]}\b", statement)  # if the plan names an alias
    return bool({found[1], *tables} & LARGE_TABLES)


def test_the_sizes_of_a_simulation_are_powers_of_ten_and_the_size_itself() -> None:
    assert sizes_up_to(3_000_000) == [10_000, 100_000, 1_000_000, 3_000_000]
    assert sizes_up_to(10_000) == [10_000]
    assert [days_of(size) for size in (10_000, 1_000_000, 10_000_000)] == [100, 1000, 1000]


@pytest.mark.parametrize(
    ("method", "path", "query", "kind"),
    [
        ("PUT", "/b/raw/demo/run_id=1/metadata.json", "", "PUT seals"),
        ("GET", "/b/raw/demo/run_id=1/payload-1.jsonl", "", "GET payloads"),
        ("PUT", "/b/warehouse/demo/v1/_delta_log/1.json", "", "PUT Delta log"),
        ("GET", "/b", "list-type=2&prefix=warehouse%2F", "LIST"),
        ("PUT", "/b/penstock.json", "", "PUT others"),
    ],
)
def test_a_request_is_counted_by_method_and_kind_of_object(method: str, path: str, query: str, kind: str) -> None:
    assert request_kind(method, path, query) == kind
