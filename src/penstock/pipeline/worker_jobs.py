"""Runs a function of Python workers on work items, as one Spark job.

On a local master the job is an RDD of Arrow streams: the JVM passes bytes and plans no query. The analysis, planning
and code generation of the same job as a query takes the JVM seconds of processor time in a short process. Elsewhere it
is a query: a Connect session has no RDDs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.pipeline.memory import freeze_imports
from penstock.pipeline.spark_jobs import Work, collected, is_local, mapped, parallelism, spread, translated_errors

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


def run_in_workers(
    spark: SparkSession, items: pa.Table, tasks: Sequence[int], work: Work, ddl: str
) -> list[pa.RecordBatch]:
    """Return what `work` returns for the items. Task number `tasks[i]` gets item i, in the given order; the numbers
    never decrease, and none is left out. `ddl` names the columns of the result. Raises the errors of `collected`."""
    if is_local(spark):
        with translated_errors():
            return _run_as_rdd(spark.sparkContext, items, tasks, work)
    found: list[pa.RecordBatch] = collected(mapped(spread(spark, items, tasks), work, ddl)).to_batches()
    return found


def start_workers(spark: SparkSession) -> None:
    """Start the Python workers of a local master in the background: they import their modules while the driver records
    and issues the work of the first job. Does nothing elsewhere, where other jobs may need the executors."""
    if is_local(spark):
        Thread(target=_start_workers, args=(spark,), daemon=True).start()


def _start_workers(spark: SparkSession) -> None:
    with suppress(Exception):  # the first job reports what is wrong
        tasks = list(range(parallelism(spark)))
        _run_as_rdd(spark.sparkContext, pa.table({"task": tasks}), tasks, _nothing)


def _nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def _run_as_rdd(context: SparkContext, items: pa.Table, tasks: Sequence[int], work: Work) -> list[pa.RecordBatch]:
    def work_on_streams(streams: Iterable[bytes]) -> Iterable[bytes]:
        freeze_imports()
        for batch in work(batch for stream in streams for batch in _batches(stream)):
            yield _stream([batch], batch.schema)

    parts = [_stream(part.to_batches(), part.schema) for part in _parts(items, tasks)]
    found = context.parallelize(parts, len(parts)).mapPartitions(work_on_streams).collect()
    return [batch for stream in found for batch in _batches(stream)]


def _parts(items: pa.Table, tasks: Sequence[int]) -> Iterator[pa.Table]:
    """The items of each task. They are neighbours."""
    start = 0
    for end in range(1, len(tasks) + 1):
        if end == len(tasks) or tasks[end] != tasks[start]:
            yield items.slice(start, end - start)
            start = end


def _stream(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def _batches(stream: bytes) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_stream(stream) as reader:
        yield from reader
