"""The projections rebuilt on Spark are the same, row by row; and any Parquet reader can read their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow.dataset as ds
import pytest

from penstock.app import Workspace
from penstock.control.select import Selection
from penstock.projections.manifest import edges_path, tasks_path
from penstock.projections.system_tables import TABLES, system_table
from penstock.state.authority import AuthorityStore
from support.workspaces import Silent, customer_id, key, open_at, run, write_workspace


@pytest.fixture
def lived_in(tmp_path: Path, spark: Any) -> Workspace:
    """Two runs, a failure, a demotion, and one more partition than was planned at first."""
    faults = [{"fault": "wrong_type", "customer": customer_id(2), "date": "2024-06-09"}]
    ws = open_at(write_workspace(tmp_path, customers=3, faults=faults))
    run(ws, spark)
    AuthorityStore(ws.context.database, ws.context.now).demote(key(3), "wrong", _entry())
    ws.runs.start(Selection(keys=(key(1),)), listener=Silent(), reprocess=True, spark=spark)
    return ws


def _entry() -> Any:
    from support.builders import audit_entry

    return audit_entry()


def tables(ws: Workspace) -> dict[str, list[Any]]:
    current = ws.status.current()
    return {name: sorted(map(str, system_table(name, current).arrow().to_pylist())) for name in TABLES}


def test_a_rebuild_on_spark_agrees_row_by_row(lived_in: Workspace, spark: Any) -> None:
    served = tables(lived_in)
    embedded = lived_in.ledger.rebuild()
    assert tables(lived_in) == served
    assert lived_in.ledger.rebuild("spark", spark) == embedded
    assert tables(lived_in) == served
    assert not list(lived_in.context.lake.list("projections/rebuild"))
    run(lived_in, spark)  # and going on from there is going on
    after = tables(lived_in)
    lived_in.ledger.rebuild()
    assert tables(lived_in) == after


def test_the_files_are_read_by_duckdb_polars_and_spark(lived_in: Workspace, spark: Any) -> None:
    lived_in.ledger.rebuild()
    _, manifest = lived_in.status.projector.head.read()
    [first, *_] = sorted(manifest.parts)
    [part] = manifest.parts[first]
    paths = {
        "partition_status": manifest.status_base,
        "runs": manifest.runs[0].path,
        "tasks": tasks_path(first, part),
        "dep_satisfaction": edges_path(first, part),
    }
    for name, path in paths.items():
        where = lived_in.context.lake.uri(str(path))
        expected = ds.dataset(where).to_table().num_rows
        assert expected > 0
        assert duckdb.execute(f"SELECT count(*) FROM read_parquet('{where}')").fetchall() == [(expected,)]
        assert polars.read_parquet(where).height == expected
        assert spark.read.parquet(where).count() == expected, name
    keys = spark.read.parquet(lived_in.context.lake.uri(str(paths["dep_satisfaction"]))).select("downstream_task_key")
    found = [row[0] for row in keys.collect()]
    assert found == sorted(found), "clustered by the task that waits"
    values = (
        spark.read.parquet(lived_in.context.lake.uri(str(paths["partition_status"])))
        .select("partition_values")
        .first()[0]
    )
    assert set(values) == {"source", "customer_id", "query_name", "logical_date"}
