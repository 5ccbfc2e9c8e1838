"""Loading and replacing accepted partitions, compared with Spark's dynamic partition overwrite and delta-rs' predicate.

All sides read the same raw files. The others have no authority, and readers lose the replaced rows in between; ours
checks every payload against its verdict, and moves pointers, load records and events besides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from bench.filling import Deliveries, keys_of, publish
from bench.measure import timed
from bench.workload import ASSET, CONTRACT, Workload
from penstock.app import Workspace
from penstock.config.checks import Field
from penstock.contract.schema import arrow_schema
from penstock.partition import PartitionKey

_FIELDS = arrow_schema([Field(**field) for field in CONTRACT["fields"]])
_ROWS = pa.schema([("customer_id", pa.string()), ("logical_date", pa.date32()), *_FIELDS])
_PATHS = pa.schema([("customer_id", pa.string()), ("logical_date", pa.date32()), ("path", pa.string())])

Sides = dict[str, float]


class Compared:
    """One table of ours, one of plain Spark, one of delta-rs; each is filled and changed in the same way."""

    def __init__(self, workspace: Workspace, spark: Any, folder: Path, rows: int) -> None:
        self.workspace, self.spark = workspace, spark
        self._deliveries = Deliveries(workspace, rows)
        self._folder, self._rows = folder, rows

    def change(self, customers: Sequence[str], dates: Sequence[date]) -> Sides:
        """Seconds of each side to write or replace these partitions; afterwards all tables are equal."""
        keys = keys_of(customers, dates)
        paths = self._deliveries.deliver(keys)
        self.workspace.context.lake.sync()
        sides = {
            "penstock": timed(publish, self.workspace, self.spark),
            "spark overwrite": timed(self._overwrite_with_spark, keys, paths),
            "delta-rs predicate": timed(self._overwrite_with_delta_rs, keys, paths, customers, dates),
        }
        self._refuse_differences()
        return sides

    def _items(self, keys: Sequence[PartitionKey], paths: Sequence[str]) -> pa.Table:
        root = self.workspace.context.lake.url
        columns = [
            [key.customer_id for key in keys],
            [key.logical_date for key in keys],
            [f"{root}/{p}" for p in paths],
        ]
        return pa.table(columns, schema=_PATHS)

    def _overwrite_with_spark(self, keys: Sequence[PartitionKey], paths: Sequence[str]) -> None:
        """Overwrite whole days: the other customers of a day are read and written back."""
        from pyspark.sql import functions as F
        from pyspark.sql.pandas.types import from_arrow_schema

        place = str(self._folder / "plain-spark")
        items = self.spark.createDataFrame(self._items(keys, paths)).repartition(4)
        rows = items.mapInArrow(_parsed, from_arrow_schema(_ROWS))
        if Path(place).exists():
            touched = sorted({key.logical_date for key in keys})
            gone = self.spark.createDataFrame(self._items(keys, paths).select(["customer_id", "logical_date"]))
            old = self.spark.read.schema(from_arrow_schema(_ROWS)).parquet(place)
            old = old.where(F.col("logical_date").isin(touched))
            kept = old.join(F.broadcast(gone), ["customer_id", "logical_date"], "left_anti")
            rows = rows.unionByName(kept)
        rows = rows.repartition(4, "logical_date").sortWithinPartitions("logical_date", "customer_id")
        writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        writer.partitionBy("logical_date").parquet(place)

    def _overwrite_with_delta_rs(
        self, keys: Sequence[PartitionKey], paths: Sequence[str], customers: Sequence[str], dates: Sequence[date]
    ) -> None:
        rows = pa.Table.from_batches(_parsed(iter(self._items(keys, paths).to_batches())), schema=_ROWS)
        place = str(self._folder / "delta-rs")
        rows = rows.append_column("month", pc.strftime(rows.column("logical_date"), "%Y-%m"))
        if not Path(place).exists():
            deltalake.write_deltalake(place, rows, partition_by=["month"])
            return
        named = ", ".join(f"'{customer}'" for customer in customers)
        predicate = f"logical_date >= '{dates[0]}' AND logical_date <= '{dates[-1]}' AND customer_id IN ({named})"
        deltalake.write_deltalake(place, rows, mode="overwrite", predicate=predicate)

    def _refuse_differences(self) -> None:
        """Sides with different tables did not do the same work."""
        from pyspark.sql import functions as F

        ours = self.workspace.data.vouched(ASSET, columns=["clicks"]).arrow()
        spark = self.spark.read.parquet(str(self._folder / "plain-spark")).agg(F.count("*"), F.sum("clicks")).first()
        delta = deltalake.DeltaTable(str(self._folder / "delta-rs")).to_pyarrow_table(columns=["clicks"])
        held = [(t.num_rows, pc.sum(t.column("clicks")).as_py()) for t in (ours, delta)] + [tuple(spark)]
        if len(set(held)) != 1:
            raise SystemExit(f"the sides do not hold the same rows and clicks: {held}")


def measure_loading(compared: Compared, workload: Workload) -> Iterator[dict[str, object]]:
    yield _fact("load", workload.partitions, compared.change(workload.customers, workload.dates))


def measure_replacing(compared: Compared, workload: Workload) -> Iterator[dict[str, object]]:
    """Rectangles of customers and days: 1, 100 and 10,000 partitions, as far as the table has them."""
    for side in (1, 10, 100):
        if side <= min(len(workload.customers), len(workload.dates)):
            dates = workload.dates[:side] if side > 1 else workload.dates[-1:]
            seconds = compared.change(workload.customers[:side], dates)
            yield _fact("replace", side * side, seconds) | {"in_a_table_of": workload.partitions}


def _fact(what: str, partitions: int, sides: Sides) -> dict[str, object]:
    ours = sides["penstock"]
    ratios = {f"in {name}": round(ours / theirs, 2) for name, theirs in sides.items() if name != "penstock"}
    return {"what": what, "partitions": partitions, "seconds": {n: round(s, 2) for n, s in sides.items()}, **ratios}


def _parsed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of the payloads with their keys, some hundred payloads at a time."""
    options = pa.json.ParseOptions(explicit_schema=_FIELDS)
    for batch in batches:
        for at in range(0, batch.num_rows, 500):
            tables = []
            for item in batch.slice(at, 500).to_pylist():
                rows = pa.json.read_json(item["path"], pa.json.ReadOptions(use_threads=False), options)
                customer = pa.repeat(pa.scalar(item["customer_id"], pa.string()), rows.num_rows)
                day = pa.repeat(pa.scalar(item["logical_date"], pa.date32()), rows.num_rows)
                columns = [customer, day, *(rows.column(name) for name in _FIELDS.names)]
                tables.append(pa.table(columns, schema=_ROWS))
            yield from pa.concat_tables(tables).combine_chunks().to_batches()
