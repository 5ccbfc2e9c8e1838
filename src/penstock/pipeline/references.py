"""Values that must exist in another table: looked for by one join for a whole batch of slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from penstock.config.checks import References
from penstock.contract.complaint import Complaint
from penstock.contract.contract import Contract
from penstock.contract.rules import said
from penstock.partition import AttemptKey, PartitionKey
from penstock.pipeline.parse_slices import Examiner
from penstock.pipeline.work import collected, mapped
from penstock.warehouse.layout import SortKey
from penstock.warehouse.version_union import VersionsConflict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.warehouse.reader import Vouched  # workers import this module, and need no database

NOT_VOUCHED = "not_vouched"  # the check's name in complaints about a slice that cannot be looked into yet
_MOST_CUSTOMERS = 500  # beyond this, naming them costs more than it saves


@dataclass(frozen=True, slots=True)
class Referenced:
    """The vouched slices of a table that others refer to, at one moment."""

    slices: frozenset[SortKey]
    rows: Vouched


OpenReference = Callable[[str, date, date, Sequence[str]], Referenced]  # table, first and last day, customers


@dataclass(frozen=True, slots=True)
class Dangling:
    """Rows of one slice that refer to nothing: how many, and the first line."""

    check: References
    count: int
    line: int

    def complaint(self, example: str | None) -> Complaint:
        check = self.check
        words = f"{said(check.fields)} is not in {check.to} ({', '.join(check.their_fields)}) of this customer and day"
        return Complaint(reference_name(check), words, self.count, self.line, example, check.severity)


@dataclass(frozen=True, slots=True)
class Found:
    """What looking into the other tables brought, by item."""

    dangling: Mapping[int, Sequence[Dangling]]
    waiting: Mapping[int, Sequence[Complaint]]


def reference_name(check: References) -> str:
    return check.name or f"references({', '.join(check.fields)})"


def look_up(
    spark: SparkSession,
    lake: str,
    contract: Contract,
    slices: DataFrame,
    attempts: Sequence[AttemptKey],
    open_reference: OpenReference,
) -> Found:
    """Hold every slice against what its contract refers to; `slices` are the work items, numbered like `attempts`."""
    dangling: dict[int, list[Dangling]] = {}
    waiting: dict[int, list[Complaint]] = {}
    keys = [attempt.partition for attempt in attempts]
    days, customers = [key.logical_date for key in keys], sorted({key.customer_id for key in keys})
    for check in (check for check in contract.checks if isinstance(check, References)):
        other = open_reference(check.to, min(days), max(days), customers if len(customers) <= _MOST_CUSTOMERS else ())
        absent = {n for n, key in enumerate(keys) if (key.logical_date, key.customer_id) not in other.slices}
        for item in absent:
            waiting.setdefault(item, []).append(_waits(check, keys[item]))
        if len(absent) == len(keys):
            continue
        for row in collected(_missing(spark, lake, contract, slices, check, other)).to_pylist():
            if row["_item"] not in absent:
                dangling.setdefault(row["_item"], []).append(Dangling(check, row["count"], row["line"]))
    return Found(dangling, waiting)


def _waits(check: References, key: PartitionKey) -> Complaint:
    source, _, query = check.to.partition(".")
    other = PartitionKey(source, key.customer_id, query, key.logical_date)
    words = f"{reference_name(check)} cannot be judged: {other} is not vouched for yet"
    return Complaint(NOT_VOUCHED, words, 1, severity=check.severity)


def _missing(
    spark: SparkSession, lake: str, contract: Contract, slices: DataFrame, check: References, other: Referenced
) -> DataFrame:
    """Item, number of rows and first line for each slice with values that the other table does not have."""
    from pyspark.sql import functions as F

    examine = Examiner(lake, contract, also=check.fields)
    names = [f"_key{number}" for number in range(len(check.fields))]
    rows = mapped(slices, examine, examine.ddl).where("_header IS NULL").dropna(subset=list(check.fields))
    mine = rows.select("_item", "_line", *(F.col(f).alias(n) for f, n in zip(check.fields, names, strict=True)))
    placed = mine.join(F.broadcast(slices.select(F.col("item").alias("_item"), "customer_id", "logical_date")), "_item")
    tables = _known(spark, check, other)
    if len(tables) > 1:  # the versions have types that do not fit: all are compared as text
        placed = placed.withColumns({name: F.col(name).cast("string") for name in names})
    for rows in tables:
        theirs = [F.col(f).alias(n) for f, n in zip(check.their_fields, names, strict=True)]
        if len(tables) > 1:
            theirs = [column.cast("string").alias(n) for column, n in zip(theirs, names, strict=True)]
        known = rows.select("customer_id", "logical_date", *theirs)
        placed = placed.join(known, ["customer_id", "logical_date", *names], "left_anti")
    return placed.groupBy("_item").agg(F.count("*").alias("count"), F.min("_line").alias("line"))


def _known(spark: SparkSession, check: References, other: Referenced) -> list[DataFrame]:
    """The rows that a check refers to; one frame for each schema version if they do not fit into one."""
    rows = other.rows.only("customer_id", "logical_date", *check.their_fields)
    try:
        return [rows.spark(spark)]
    except VersionsConflict:
        return [version.spark(spark) for version in rows.versions.values()]
