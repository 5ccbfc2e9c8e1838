"""Functions that differ between versions of Spark, and sessions that other programs configured."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark.sql.classic.dataframe
import pyspark.version
import pytest

from penstock.pipeline.spark_jobs import collected, mapped
from penstock.pipeline.spark_versions import in_tasks, key_with_hash
from support.workspaces import open_at, run, write_workspace

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


class Older:
    """A session that reports another version and has no more functions than `in_tasks` may use."""

    def __init__(self, spark: Any, version: str) -> None:
        self.version = version
        self.createDataFrame = spark.createDataFrame


def items_by_task(frame: Any) -> dict[int, list[int]]:
    """The items of each task, in the order in which it gets them; runs one job."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # nested: workers do not have this module
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        items = [item for batch in batches for item in batch.column("item").to_pylist()]
        numbers = pa.array([context.partitionId()], pa.int32())
        yield pa.record_batch({"task": numbers, "items": pa.array([items], pa.list_(pa.int64()))})

    rows = collected(mapped(frame, look, "task int, items array<long>")).to_pylist()
    return {row["task"]: row["items"] for row in rows}


@pytest.mark.parametrize("version", ["4.0.5", "4.1.0"])
@pytest.mark.parametrize(
    "tasks", [[0], [0, 0, 0], [2, 1, 0], [task * 7 % 23 for task in range(500)]], ids=["one", "same", "few", "many"]
)
def test_each_task_gets_its_items_in_the_given_order(spark: Any, version: str, tasks: list[int]) -> None:
    older: Any = Older(spark, version)
    size = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")  # several input partitions
    try:
        frame = in_tasks(older, pa.table({"item": pa.array(range(len(tasks)), pa.int64())}), tasks)
        assert frame.columns == ["item"]
        found = items_by_task(frame)
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", size)
    assert found == {
        number: [item for item, task in enumerate(tasks) if task == number] for number in range(max(tasks) + 1)
    }


@pytest.mark.parametrize(("server", "client"), [("4.0.5", "4.3.0"), ("4.2.1", "4.0.5")])
def test_the_older_of_client_and_server_decides(
    spark: Any, monkeypatch: pytest.MonkeyPatch, server: str, client: str
) -> None:
    monkeypatch.setattr(pyspark.version, "__version__", client)
    for kind in (pyspark.sql.DataFrame, pyspark.sql.classic.dataframe.DataFrame):
        monkeypatch.delattr(kind, "repartitionById")
    older: Any = Older(spark, server)
    assert items_by_task(in_tasks(older, pa.table({"item": [0, 1, 2]}), [1, 0, 1])) == {0: [1], 1: [0, 2]}


def test_items_keep_their_order_when_the_shuffle_does_not(spark: Any) -> None:
    """Rows that reach a task in another order than the given one are sorted."""

    class Reversed(Older):
        def __init__(self) -> None:
            super().__init__(spark, "4.0.5")
            self.createDataFrame = lambda table: spark.createDataFrame(table.take(list(range(99, -1, -1))))

    older: Any = Reversed()
    frame = in_tasks(older, pa.table({"item": pa.array(range(100), pa.int64())}), [item % 2 for item in range(100)])
    assert items_by_task(frame) == {0: list(range(0, 100, 2)), 1: list(range(1, 100, 2))}


def test_spark_hashes_each_key_to_the_value_that_it_was_made_for(spark: Any) -> None:
    chosen = random.Random(7)
    values = [*range(1000), -1, -(2**31), 2**31 - 1, *(chosen.randrange(-(2**31), 2**31) for _ in range(5000))]
    keys = pa.table({"key": pa.array([key_with_hash(value) for value in values], pa.int32())})
    hashes = spark.createDataFrame(keys).selectExpr("key", "hash(key) AS hash").toArrow().to_pylist()
    assert {row["key"]: row["hash"] for row in hashes} == {key_with_hash(value): value for value in values}


@pytest.fixture
def source(tmp_path: Path, spark: Any) -> Any:
    """The data source over a table with a file for each of two months."""
    run(open_at(write_workspace(tmp_path, customers=2, query={"start_date": "2024-05-31"})), spark)
    yield spark.read.format("penstock").option("workspace", str(tmp_path)).option("table", "demo.campaign_daily")
    spark.conf.set(PUSHDOWN, "true")


def test_filters_on_days_are_pushed_down(source: Any, spark: Any) -> None:
    assert source.load().rdd.getNumPartitions() == 2
    assert source.load().where("logical_date <= DATE '2024-05-31'").rdd.getNumPartitions() == 1


def test_the_data_source_works_in_a_session_without_filter_pushdown(source: Any, spark: Any) -> None:
    spark.conf.set(PUSHDOWN, "false")  # Spark's default
    assert source.load().count() == 2 * 5 * 11
    assert source.load().where("customer_id = '1000000002' AND logical_date < DATE '2024-06-01'").count() == 5
