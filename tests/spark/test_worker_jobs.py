"""Jobs of Python workers: as an RDD on a local master, and as a query elsewhere, with the same results and errors."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ConfigError, PenstockError, SparkFailed
from penstock.pipeline import worker_jobs
from penstock.pipeline.spark_jobs import evenly, parallelism
from penstock.pipeline.worker_jobs import run_in_workers, start_workers

DDL = "task int, item long, name string"


@pytest.fixture(params=["rdd", "query"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the jobs in one of the two ways; the session is that of a local master."""
    if request.param == "query":
        monkeypatch.setattr(worker_jobs, "is_local", lambda spark: False)
    return str(request.param)


def items_of(count: int) -> pa.Table:
    """Items in several chunks, with a value that is missing."""
    numbers, names = range(count), [None if at == 1 else f"näme {at}" for at in range(count)]
    table = pa.table({"item": pa.array(numbers, pa.int64()), "name": pa.array(names, pa.string())})
    return pa.concat_tables([table.slice(0, 2), table.slice(2)])


@pytest.mark.parametrize(("count", "tasks"), [(1, 1), (5, 1), (5, 5), (50, 7)])
@pytest.mark.usefixtures("way")
def test_each_task_gets_its_items_in_the_given_order(spark: Any, count: int, tasks: int) -> None:
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # nested: workers do not have this module
        """One result batch for each item, and none for item 3."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            for row in batch.to_pylist():
                if row["item"] != 3:
                    yield pa.record_batch(
                        {
                            "task": pa.array([context.partitionId()], pa.int32()),
                            "item": pa.array([row["item"]], pa.int64()),
                            "name": pa.array([row["name"]], pa.string()),
                        }
                    )

    numbers = evenly(count, tasks)
    found = [row for batch in run_in_workers(spark, items_of(count), numbers, look, DDL) for row in _rows(batch)]
    assert found == [{"task": numbers[row["item"]], **row} for row in items_of(count).to_pylist() if row["item"] != 3]


def test_spark_plans_no_query_on_a_local_master(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(worker_jobs, "spread")
    [answer] = run_in_workers(spark, items_of(1), [0], lambda batches: batches, "item long, name string")
    assert answer.to_pylist() == [{"item": 0, "name": "näme 0"}]


def test_workers_are_started_by_a_job_with_a_task_for_each_core(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, found, original = Event(), [], worker_jobs._run_as_rdd

    def watched(*arguments: Any) -> list[pa.RecordBatch]:
        found.extend(original(*arguments))
        ended.set()
        return found

    monkeypatch.setattr(worker_jobs, "_run_as_rdd", watched)
    start_workers(spark)
    assert ended.wait(60)
    assert [row["task"] for batch in found for row in _rows(batch)] == list(range(parallelism(spark)))


@pytest.mark.usefixtures("way")
def test_a_job_may_have_no_results(spark: Any) -> None:
    def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (batch for batch in batches if batch.num_rows < 0)

    assert [
        row for batch in run_in_workers(spark, items_of(4), [0, 0, 1, 1], nothing, DDL) for row in _rows(batch)
    ] == []


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        ("ConfigError", ConfigError, "^the source has no such option$"),
        ("ValueError", SparkFailed, "^a Spark job broke: ValueError: the source has no such option$"),
    ],
)
@pytest.mark.usefixtures("way")
def test_an_error_of_a_worker_is_shown_by_its_innermost_cause(
    spark: Any, raised: str, kind: type[PenstockError], message: str
) -> None:
    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from penstock import errors

        yield from batches
        raise getattr(errors, raised, ValueError)("the source has no such option")

    with pytest.raises(kind, match=message):
        run_in_workers(spark, items_of(2), [0, 1], fail, "item long, name string")


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    return list(batch.to_pylist())


def test_the_end_of_the_jvm_prints_nothing_and_other_errors_of_accumulators_do(
    spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    server = spark.sparkContext._accumulatorServer
    for error, is_printed in ((EOFError(), False), (ConnectionResetError(), False), (ValueError("wrong"), True)):
        try:
            raise error
        except (EOFError, ConnectionError, ValueError):
            server.handle_error(None, None)
        assert ("Traceback" in capsys.readouterr().err) is is_printed
