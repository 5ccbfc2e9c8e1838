"""Each function of Penstock that uses Spark, once, on the Spark of this environment.

pytest does not collect this file by its name: `scripts/test-spark-versions` runs it in one environment per version.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from penstock.app import Workspace
from penstock.config.settings import SparkSettings
from penstock.control.select import Selection
from penstock.pipeline import load
from penstock.pipeline.contract_trial import try_contract
from penstock.pipeline.session import start_session
from penstock.pipeline.spark_jobs import collected, mapped, spread
from penstock.pipeline.spark_versions import key_with_hash
from support import servers
from support.cli import answer
from support.workspaces import CAMPAIGNS, key, open_at, rows_by_partition, run, write_workspace

TABLE = "demo.campaign_daily"
DAYS = ("2024-06-09", "2024-06-10")
BAD = key(2, "2024-06-10")
GOOD = [key(number, day) for number in (1, 2, 3) for day in DAYS if key(number, day) != BAD]
REFERS = {"references": {"field": "campaign_id", "to": TABLE}, "severity": "warn"}
ONLY_SPARK = {"expression": "soundex(campaign_name) IS NOT NULL"}  # a check that only Spark evaluates
IN_SQL = f"SELECT logical_date, count(*) AS found FROM {TABLE} GROUP BY logical_date"
IN_PYTHON = f"""
def model(inputs, partitions):
    rows = inputs["{TABLE}"].join(partitions.select("logical_date"), "logical_date")
    return rows.groupBy("logical_date").count().withColumnRenamed("count", "found")
"""
SUM_OF_CLICKS = f"SELECT logical_date, sum(clicks) AS clicks FROM {TABLE} GROUP BY ALL ORDER BY ALL"


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    session = start_session(SparkSettings(master="local[2]", config={"spark.sql.shuffle.partitions": "2"}))
    yield session
    session.stop()


def written(folder: Path, **settings: Any) -> Path:
    """A workspace with a bad partition, a check against another table, a check that only Spark evaluates, and a model
    in SQL and one in Python."""
    models = {"in_sql": IN_SQL, "in_python": IN_PYTHON}
    write_workspace(
        folder,
        customers=3,
        faults=[{"customer": BAD.customer_id, "date": str(BAD.logical_date), "fault": "duplicate_key"}],
        queries={"campaign_daily": CAMPAIGNS, "referring": {**CAMPAIGNS, "checks": [REFERS, ONLY_SPARK]}},
        models={name: {"code": code, "depends_on": [TABLE], "require": "any"} for name, code in models.items()},
    )
    file = folder / "penstock.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **settings}, sort_keys=False))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("workspace"))


@pytest.fixture(scope="module")
def ws(folder: Path) -> Workspace:
    """The workspace after its first run, by the command line."""
    answer("db", "migrate", workspace=folder)
    ran = answer("run", "--since", DAYS[0], "--until", DAYS[1], workspace=folder, code=1)
    assert [failure["key"] for failure in ran["failures"]] == [str(BAD)]
    return open_at(folder)


def in_order(table: pa.Table) -> list[str]:
    return sorted(map(str, table.select(sorted(table.column_names)).to_pylist()))


def test_the_session_runs_on_the_version_under_test(spark: Any) -> None:
    assert spark.version.startswith(os.environ.get("PENSTOCK_SPARK_VERSION", ""))


def test_a_run_publishes_good_partitions_and_models(ws: Workspace) -> None:
    assert {partition: len(rows) for partition, rows in rows_by_partition(ws).items()} == dict.fromkeys(GOOD, 5)
    for model in ("models.in_sql", "models.in_python"):
        found = ws.data.vouched(model).arrow().to_pylist()
        assert {str(row["logical_date"]): row["found"] for row in found} == {DAYS[0]: 15, DAYS[1]: 10}
    [attempt] = ws.context.state.attempts(BAD)
    assert [complaint["check"] for complaint in attempt.complaints or []] == ["unique(campaign_id)"]


def test_values_that_the_other_table_lacks_are_found(ws: Workspace) -> None:
    [attempt] = ws.context.state.attempts(key(1, query="referring"))
    assert [(found["check"], found["count"]) for found in attempt.complaints or []] == [("references(campaign_id)", 5)]


def test_partitions_are_processed_and_validated_again(
    ws: Workspace, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_LOCAL_BYTES", -1)  # load on Spark's workers, however little it is
    again = run(ws, spark, *GOOD[:2], reprocess=True)
    assert (again.accepted, again.loaded) == (2, 2)
    checked = ws.rechecks.run(Selection(keys=tuple(GOOD[:2])), actor="test", spark=spark)
    assert (checked.examined, checked.demoted, checked.unreadable) == (2, {}, {})
    assert ws.maintenance.verify(raw=True).wrong == {}


def test_every_reader_of_spark_returns_the_rows_of_the_others(ws: Workspace, folder: Path, spark: Any) -> None:
    rows = in_order(ws.read(TABLE).arrow())
    assert in_order(ws.read(TABLE, spark=spark).toArrow()) == rows
    assert in_order(ws.read(TABLE)._spark_through_lake(spark).toArrow()) == rows
    on_spark = ws.data.spark_sql(SUM_OF_CLICKS, spark).read_all().to_pylist()
    assert on_spark == ws.sql(SUM_OF_CLICKS).read_all().to_pylist()
    source = spark.read.format("penstock").option("workspace", str(folder)).option("table", TABLE)
    for pushed_down in ("true", "false"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed_down)
        assert in_order(source.load().toArrow()) == rows
        some = source.load().where(f"customer_id = '{BAD.customer_id}' AND logical_date <= DATE '2024-06-10'")
        assert some.count() == 5


def test_a_contract_is_tried_on_a_file(ws: Workspace, tmp_path: Path, spark: Any) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"campaign_id": 1}\n')
    contract = ws.context.contract_of("demo.referring")
    trial = try_contract(contract, file, None, lambda: spark)
    assert [complaint.check for complaint in trial.complaints] == [f"expression({ONLY_SPARK['expression']})"]


def test_projections_are_rebuilt(ws: Workspace, spark: Any) -> None:
    assert ws.ledger.rebuild("spark", spark) == ws.ledger.rebuild()


def test_each_task_gets_its_items_in_the_given_order(spark: Any) -> None:
    tasks = [(7 * item) % 13 for item in range(300)]

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        for batch in batches:
            numbers = pa.array([context.partitionId() if context else -1] * batch.num_rows, pa.int32())
            yield pa.record_batch({"item": batch.column("item"), "task": numbers})

    frame = spread(spark, pa.table({"item": pa.array(range(300), pa.int64())}), tasks)
    found = collected(mapped(frame, look, "item long, task int")).to_pylist()
    for task in range(13):
        assert [row["item"] for row in found if row["task"] == task] == [i for i in range(300) if tasks[i] == task]
    hashes = [0, 1, 12, 65_536, 2**31 - 1]
    keys = spark.createDataFrame([(key_with_hash(value),) for value in hashes], "key int")
    assert [row[0] for row in keys.selectExpr("hash(key)").collect()] == hashes


def test_the_command_line_runs_on_a_connect_server(tmp_path: Path) -> None:
    with servers.spark_connect() as address:
        remote = written(tmp_path, spark={"remote": address})
        answer("db", "migrate", workspace=remote)
        ran = answer("run", "--since", DAYS[0], "--until", DAYS[1], workspace=remote, code=1)
        assert [failure["key"] for failure in ran["failures"]] == [str(BAD)]
        found = answer("sql", "SELECT sum(found) AS found FROM models.in_python", "--spark", workspace=remote)["items"]
        assert found == [{"found": 25}]
