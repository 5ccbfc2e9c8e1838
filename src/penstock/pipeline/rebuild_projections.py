"""Rebuilding the projections of a long ledger on Spark.

Spark's engine joins the partitions; each run is folded by one worker, with the same pure folds as elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.lake import open_lake
from penstock.ledger.segment_tables import EVENTS, from_table, to_table
from penstock.partition import new_ulid
from penstock.pipeline.spark_jobs import Work, collected, evenly, mapped, spread
from penstock.projections import files
from penstock.projections.event_page import count_unknown_events
from penstock.projections.fact import OF_A_RUN, Fact
from penstock.projections.manifest import FOLDER, Manifest, RowsFile, edges_path, new_path, tasks_path
from penstock.projections.projector import Maker, Pieces, Projector, added
from penstock.projections.publications import publications
from penstock.projections.rows import edge_rows, task_rows
from penstock.projections.runs import RUNS, FoldedRun, run_row
from penstock.projections.status import PARTIAL, partials
from penstock.projections.status_columns import ORDER, join_sql
from penstock.projections.status_file import with_spec_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DDL = {
    pa.string(): "string",
    pa.date32(): "date",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.bool_(): "boolean",
    pa.timestamp("us", tz="UTC"): "timestamp",
}
_FOLDED = pa.schema([("run_id", pa.string()), ("part", pa.string()), ("row", pa.string())])


def _ddl(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {_DDL[field.type]}" for field in schema)


def spark_maker(spark: SparkSession, lake: str) -> Maker:
    """Return the function that builds projections on Spark, for `Projector.rebuild`."""

    def make(projector: Projector, pages: Pieces) -> tuple[Manifest, int]:
        folder, done = f"{FOLDER}/rebuild/{new_ulid()}", 0
        paths: list[str] = []
        finished: list[Fact] = []
        published: list[pa.Table] = []
        manifest = Manifest()
        try:
            for page, cursor in pages:
                path = f"{folder}/{len(paths)}.parquet"
                files.write(projector.lake, path, to_table(page))
                paths.append(path)
                done += len(page)
                published.append(publications(page))
                finished += [f for f in page if f.type == "TaskFinished" and f.payload.get("consumed")]
                manifest = replace(manifest, cursor=cursor, unknown=added(manifest.unknown, count_unknown_events(page)))
            if paths:
                manifest = _build(spark, lake, projector, paths, manifest)
        finally:
            projector.lake.delete(paths)
        consumed = [projector.inputs(finished)] if finished else []
        return projector.with_publications(projector.with_consumed(manifest, consumed), published), done

    return make


def _build(spark: SparkSession, lake: str, projector: Projector, paths: list[str], manifest: Manifest) -> Manifest:
    named = spread(spark, pa.table({"path": pa.array(paths)}), evenly(len(paths), len(paths)))
    status = _status(spark, mapped(named, _partial_reader(lake), _ddl(PARTIAL)))
    if len(status):
        manifest = replace(manifest, status_base=new_path("partition_status"))
        files.write(projector.lake, str(manifest.status_base), with_spec_columns(status, projector.owner))
    events = mapped(named, _event_reader(lake), _ddl(EVENTS))
    folded = collected(events.groupBy("run_id").applyInArrow(_folder(lake, projector.owner), _ddl(_FOLDED)))
    if not len(folded):
        return manifest
    runs: list[str] = folded["run_id"].to_pylist()
    parts: dict[str, tuple[str, ...]] = {
        run: (str(part),) for run, part in zip(runs, folded["part"].to_pylist(), strict=True)
    }
    rows = {run: orjson.loads(row) for run, row in zip(runs, folded["row"].to_pylist(), strict=True)}
    table = pa.Table.from_pylist([_typed(rows[run]) for run in sorted(rows)], schema=RUNS)
    path = new_path("runs")
    files.write(projector.lake, path, table)
    return replace(manifest, runs=(RowsFile(path, len(table)),), parts=parts)


def _status(spark: SparkSession, status_rows: DataFrame) -> pa.Table:
    view = f"status_rows_{new_ulid().lower()}"
    status_rows.createOrReplaceTempView(view)
    try:
        found = collected(spark.sql(f"{join_sql(view)} ORDER BY {ORDER}"))
    finally:
        spark.catalog.dropTempView(view)
    return found.select(PARTIAL.names).cast(PARTIAL)


def _read(lake: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    storage = open_lake(lake)
    for batch in batches:
        for path in batch.column("path").to_pylist():
            yield pq.read_table(pa.BufferReader(storage.read(path)))


def _partial_reader(lake: str) -> Work:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in _read(lake, batches):
            yield from partials(from_table(table)).to_batches(max_chunksize=50_000)

    return work


def _event_reader(lake: str) -> Work:
    """Read the events about runs."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in _read(lake, batches):
            of_a_run = pc.is_in(table["type"], value_set=pa.array(sorted(OF_A_RUN)))
            kept = table.filter(pc.and_(of_a_run, pc.is_valid(table["run_id"])))
            yield from kept.to_batches(max_chunksize=50_000)

    return work


def _folder(lake: str, owner: tuple[str, str]) -> Callable[[pa.Table], pa.Table]:
    """Fold one run, write its files, and return one row."""

    def work(events: pa.Table) -> pa.Table:
        facts = from_table(events.select(EVENTS.names))
        run_id, part, storage = str(facts[0].run_id), new_ulid(), open_lake(lake)
        run = FoldedRun.of(facts)
        files.write_sorted(storage, tasks_path(run_id, part), task_rows(run_id, run.fold, owner))
        files.write_sorted(storage, edges_path(run_id, part), edge_rows(run_id, run.fold, owner))
        row = orjson.dumps(run_row(run_id, run, owner)).decode()
        return pa.table({"run_id": [run_id], "part": [part], "row": [row]}, schema=_FOLDED)

    return work


def _typed(row: dict[str, object]) -> dict[str, object]:
    """Restore the types of a row of `runs` after its way through JSON."""
    return {name: datetime.fromisoformat(str(v)) if name.endswith("_at") and v else v for name, v in row.items()}
