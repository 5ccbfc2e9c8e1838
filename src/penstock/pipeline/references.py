"""Reference checks: values that must exist in another table, looked up by one join for a whole batch of slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from penstock.contract.checks.references import ReferencesCheck
from penstock.contract.complaint import Complaint
from penstock.contract.contract import Contract
from penstock.contract.evaluation import reference_checks
from penstock.partition import AttemptKey, PartitionKey
from penstock.pipeline.parse_slices import SliceParser
from penstock.pipeline.spark_jobs import collected, mapped
from penstock.warehouse.layout import SortKey
from penstock.warehouse.version_union import VersionsConflict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.warehouse.reader import Vouched  # workers import this module, and need no database

NOT_TRUSTED_YET = "not_vouched"  # stored name of the complaint about a reference without a trusted run; must not change
_MOST_CUSTOMERS = 500  # beyond this, a filter by customer costs more than it saves


@dataclass(frozen=True, slots=True)
class Referenced:
    """The trusted partitions of a referenced table, at one moment."""

    slices: frozenset[SortKey]
    rows: Vouched


OpenReference = Callable[[str, date, date, Sequence[str]], Referenced]  # table, first and last day, customers


@dataclass(frozen=True, slots=True)
class MissingReferences:
    """Rows of one slice with missing references: their number, and the first line."""

    check: ReferencesCheck
    count: int
    line: int

    def complaint(self, example: str | None) -> Complaint:
        check = self.check
        return Complaint(check.name, check.message, self.count, self.line, example, check.severity)


@dataclass(frozen=True, slots=True)
class ReferenceResults:
    """The results of the look-ups, by item."""

    dangling: Mapping[int, Sequence[MissingReferences]]
    waiting: Mapping[int, Sequence[Complaint]]


def look_up(
    spark: SparkSession,
    lake: str,
    contract: Contract,
    slices: DataFrame,
    attempts: Sequence[AttemptKey],
    open_reference: OpenReference,
) -> ReferenceResults:
    """Check the references of every slice; `slices` are the work items, numbered like `attempts`."""
    dangling: dict[int, list[MissingReferences]] = {}
    waiting: dict[int, list[Complaint]] = {}
    keys = [attempt.partition for attempt in attempts]
    days, customers = [key.logical_date for key in keys], sorted({key.customer_id for key in keys})
    for check in reference_checks(contract):
        other = open_reference(
            check.declared.to, min(days), max(days), customers if len(customers) <= _MOST_CUSTOMERS else ()
        )
        absent = {n for n, key in enumerate(keys) if (key.logical_date, key.customer_id) not in other.slices}
        for item in absent:
            waiting.setdefault(item, []).append(_waits(check, keys[item]))
        if len(absent) == len(keys):
            continue
        for row in collected(_missing(spark, lake, contract, slices, check, other)).to_pylist():
            if row["_item"] not in absent:
                dangling.setdefault(row["_item"], []).append(MissingReferences(check, row["count"], row["line"]))
    return ReferenceResults(dangling, waiting)


def _waits(check: ReferencesCheck, key: PartitionKey) -> Complaint:
    source, _, query = check.declared.to.partition(".")
    other = PartitionKey(source, key.customer_id, query, key.logical_date)
    message = f"{check.name} cannot be evaluated: {other} has no trusted run yet"
    return Complaint(NOT_TRUSTED_YET, message, 1, severity=check.severity)


def _missing(
    spark: SparkSession, lake: str, contract: Contract, slices: DataFrame, check: ReferencesCheck, other: Referenced
) -> DataFrame:
    """Return item, number of rows and first line for each slice with values that the other table does not have."""
    from pyspark.sql import functions as F

    examine = SliceParser(lake, contract, also=check.declared.fields)
    rows = mapped(slices, examine, examine.ddl).where("_header IS NULL")
    items = slices.select(F.col("item").alias("_item"), "customer_id", "logical_date")
    placed = rows.select("_item", "_line", *check.declared.fields).join(F.broadcast(items), "_item")
    missing = check.spark_missing(placed, _known(spark, check, other))
    return missing.groupBy("_item").agg(F.count("*").alias("count"), F.min("_line").alias("line"))


def _known(spark: SparkSession, check: ReferencesCheck, other: Referenced) -> list[DataFrame]:
    """The referenced rows of a check; one frame for each schema version if their types are incompatible."""
    rows = other.rows.only("customer_id", "logical_date", *check.declared.referenced_fields)
    try:
        return [rows.spark(spark)]
    except VersionsConflict:
        return [version.spark(spark) for version in rows.versions.values()]
