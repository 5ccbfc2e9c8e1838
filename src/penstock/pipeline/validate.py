"""Validation: seal, digest, types and rules of thousands of slices in one Spark job per contract.

Workers read and parse the payloads and evaluate the plain rules; rows are passed to Spark's engine only for rules that
need it; workers add up the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from penstock.contract.checks.base import RowCheck
from penstock.contract.checks.unique import UniqueCheck
from penstock.contract.complaint import Complaint, rejections
from penstock.contract.content import content_digest
from penstock.contract.contract import Contract
from penstock.contract.evaluation import (
    count_complaints,
    measures,
    reference_checks,
    row_rules,
    stats_complaints,
    stats_fields,
    unique_checks,
)
from penstock.contract.schema import spark_ddl
from penstock.contract.slice_stats import Measures, SliceStats, stats_by_field
from penstock.errors import ConfigError, PenstockError
from penstock.partition import AttemptKey
from penstock.pipeline.complaint_lines import LINES_DDL, by_item, line_reader
from penstock.pipeline.parse_slices import SliceParser
from penstock.pipeline.parsed_cache import BlockRef, CacheBudget
from penstock.pipeline.references import NOT_TRUSTED_YET, OpenReference, ReferenceResults, look_up
from penstock.pipeline.slice_summary import SUMMARY_DDL, summariser
from penstock.pipeline.spark_jobs import Report, Work, collected, evenly, mapped, progress, refusal, spread, tasks_for
from penstock.pipeline.worker_jobs import run_in_workers
from penstock.plural import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CountedRule = RowCheck[Any] | UniqueCheck  # a summary counts the rows that break it

_ITEMS_PER_TASK = 1000
_ITEMS = pa.schema(
    [
        ("item", pa.int32()),
        ("customer_id", pa.string()),
        ("logical_date", pa.date32()),
        ("run_id", pa.string()),
        ("payload_bytes", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class ToValidate:
    """A sealed raw partition, and the facts about its history that the validator needs."""

    attempt: AttemptKey
    payload_bytes: int
    previous_record_count: int | None
    previous_measures: Measures | None = None


@dataclass(frozen=True, slots=True)
class Validated:
    """The result of the validation. The run is accepted if no complaint rejects it."""

    attempt: AttemptKey
    record_count: int
    payload_digest: str | None
    content_digest: str
    complaints: Sequence[Complaint]
    measures: Mapping[str, float | None] = field(default_factory=dict)
    block: BlockRef | None = None  # where the parsed rows are cached

    @property
    def is_acceptable(self) -> bool:
        return self.payload_digest is not None and not rejections(self.complaints)

    @property
    def only_waits(self) -> bool:
        """Whether the only obstacles are partitions of other tables that do not exist yet."""
        return {complaint.check for complaint in rejections(self.complaints)} == {NOT_TRUSTED_YET}


def validate(
    spark: SparkSession,
    lake: str,
    contract: Contract,
    items: Sequence[ToValidate],
    report: Report | None = None,
    open_reference: OpenReference | None = None,
    cache: CacheBudget | None = None,
) -> list[Validated]:
    """Validate every item against `contract`, in one job. `open_reference` opens the tables that the contract refers
    to. `cache` is the budget for parsed rows, which the load reads instead of the payloads."""
    if not items:
        return []
    rules, fields = all_rules(contract), stats_fields(contract)
    with progress(spark, report):
        tasks = _task_numbers(spark, len(items))
        table = _item_table(items)
        share = None if cache is None else cache._replace(left=cache.left // (tasks[-1] + 1))
        answers = _summaries(spark, contract, table, tasks, lake, share)
        summaries = {row["item"]: row for batch in answers for row in batch.to_pylist()}
        found = ReferenceResults({}, {})
        if reference_checks(contract):
            if open_reference is None:
                raise PenstockError(f"{contract.asset} has references checks, and no `open_reference` was given")
            slices = spread(spark, table, tasks)
            found = look_up(spark, lake, contract, slices, [item.attempt for item in items], open_reference)
        wanted = {index: lines for index, row in summaries.items() if (lines := _lines_to_show(index, row, found))}
        examples = _examples(spark, lake, contract, items, wanted)
    return [
        _validated(index, item, contract, rules, fields, summaries[index], found, examples.get(index, {}))
        for index, item in enumerate(items)
    ]


def needs_no_spark(contract: Contract) -> bool:
    """Whether Python alone can evaluate every check of the contract."""
    return not reference_checks(contract) and all(rule.arrow_rule(contract) is not None for rule in row_rules(contract))


def validate_in_driver(lake: str, contract: Contract, items: Sequence[ToValidate]) -> list[Validated]:
    """Validate a few items in this process, by the functions of the workers. The contract must need no Spark."""
    rules, fields = all_rules(contract), stats_fields(contract)
    examine, add_up = SliceParser(lake, contract), summary_worker(contract)
    batches = iter(_item_table(items).to_batches())
    summaries = {row["item"]: row for batch in add_up(examine(batches)) for row in batch.to_pylist()}
    found = ReferenceResults({}, {})
    wanted = {index: lines for index, row in summaries.items() if (lines := _lines_to_show(index, row, found))}
    numbers = sorted(wanted)
    shown = iter(_item_table([items[number] for number in numbers], numbers).to_batches())
    examples = by_item(line_reader(lake, contract, wanted)(shown))
    return [
        _validated(index, item, contract, rules, fields, summaries[index], found, examples.get(index, {}))
        for index, item in enumerate(items)
    ]


def all_rules(contract: Contract) -> list[CountedRule]:
    """All rules, in the order in which the summaries count them."""
    return [*row_rules(contract), *unique_checks(contract)]


def _lines_to_show(index: int, row: Mapping[str, Any], found: ReferenceResults) -> list[int]:
    broken = {line for line, count in zip(row["first_lines"], row["broken"], strict=True) if count}
    return sorted(broken | {rows.line for rows in found.dangling.get(index, ())})


def check_expressions(session: Callable[[], SparkSession], contract: Contract) -> None:
    """Raise ConfigError if Spark cannot analyse a check of the contract, before any attempt is issued under it. Gets
    the session only for checks that Spark evaluates."""
    rules = [rule for rule in row_rules(contract) if rule.arrow_rule(contract) is None]
    if not rules:
        return
    from pyspark.errors import PySparkException

    empty = session().createDataFrame([], spark_ddl(contract.columns))
    for rule in rules:
        try:
            kind = empty.select(rule.spark_rule(contract)).schema.fields[0].dataType.simpleString()
        except PySparkException as error:
            raise ConfigError(f"{contract.place}: the check {rule.name} is not valid: {refusal(error)}") from error
        if kind != "boolean":
            raise ConfigError(f"{contract.place}: the check {rule.name} must be true or false, it is {kind}")


def _summaries(
    spark: SparkSession,
    contract: Contract,
    items: pa.Table,
    tasks: Sequence[int],
    lake: str,
    cache: CacheBudget | None,
) -> list[pa.RecordBatch]:
    """One row per slice without a shuffle: rows leave a worker only if some rule needs Spark's engine."""
    add_up = summary_worker(contract)
    examine = SliceParser(lake, contract, cache=cache)
    if not examine.for_spark:
        return run_in_workers(spark, items, tasks, lambda batches: add_up(examine(batches)), SUMMARY_DDL)
    examined = mapped(spread(spark, items, tasks), examine, examine.ddl)
    found: list[pa.RecordBatch] = collected(
        mapped(examined.select(*examine.columns()), add_up, SUMMARY_DDL)
    ).to_batches()
    return found


def summary_worker(contract: Contract) -> Work:
    """Return the worker function that makes summaries from the results of the parser."""
    uniques = [check.fields for check in unique_checks(contract)]
    return summariser(len(row_rules(contract)), uniques, len(stats_fields(contract)))


def _item_table(items: Sequence[ToValidate], numbers: Sequence[int] | None = None) -> pa.Table:
    return pa.table(
        {
            "item": range(len(items)) if numbers is None else numbers,
            "customer_id": [item.attempt.partition.customer_id for item in items],
            "logical_date": [item.attempt.partition.logical_date for item in items],
            "run_id": [item.attempt.run_id for item in items],
            "payload_bytes": [item.payload_bytes for item in items],
        },
        schema=_ITEMS,
    )


def _task_numbers(spark: SparkSession, items: int) -> list[int]:
    return evenly(items, tasks_for(spark, items, _ITEMS_PER_TASK))


def _examples(
    spark: SparkSession, lake: str, contract: Contract, items: Sequence[ToValidate], wanted: dict[int, list[int]]
) -> dict[int, dict[int, str]]:
    """The text of the given lines, by item and line: a second, small job for slices with examples to show."""
    if not wanted:
        return {}
    numbers = sorted(wanted)
    table = _item_table([items[number] for number in numbers], numbers)
    tasks = _task_numbers(spark, len(numbers))
    return by_item(run_in_workers(spark, table, tasks, line_reader(lake, contract, wanted), LINES_DDL))


def _validated(
    index: int,
    item: ToValidate,
    contract: Contract,
    rules: Sequence[CountedRule],
    fields: Sequence[str],
    row: Mapping[str, Any],
    found: ReferenceResults,
    examples: Mapping[int, str],
) -> Validated:
    header = orjson.loads(row["header"])
    stats = SliceStats(
        item.attempt.partition.logical_date,
        row["rows"],
        stats_by_field(fields, row["figures"]),
        item.previous_measures,
    )
    complaints = complaints_of(contract, rules, row, header, stats, item.previous_record_count, examples)
    if not header["complaints"]:
        complaints += [rows.complaint(examples.get(rows.line)) for rows in found.dangling.get(index, ())]
        complaints += found.waiting.get(index, ())
    digest = content_digest(contract.schema_version, row["rows"], row["hash_xor"], row["hash_sum"] % 2**64)
    return Validated(
        item.attempt,
        header.get("count", 0),
        header.get("digest"),
        digest,
        complaints,
        measures(contract, stats),
        BlockRef(*header["block"]) if "block" in header else None,
    )


def complaints_of(
    contract: Contract,
    rules: Sequence[CountedRule],
    row: Mapping[str, Any],
    header: Mapping[str, Any],
    stats: SliceStats,
    previous_record_count: int | None,
    examples: Mapping[int, str],
) -> list[Complaint]:
    """Return all complaints of a summary and its header about a slice, with examples by line."""
    complaints = [Complaint(**complaint) for complaint in header["complaints"]]
    readable = not complaints
    for rule, count, line in zip(rules, row["broken"], row["first_lines"], strict=True):
        if count:
            complaints.append(Complaint(rule.name, rule.message, count, line, examples.get(line), rule.severity))
    count = header.get("count", 0)
    if readable and row["rows"] != count:
        complaints.append(Complaint("rows", f"received {counted(count, 'row')}, could read {row['rows']:,}", 1))
    if readable:  # totals of an unreadable slice mean nothing
        complaints += count_complaints(contract, count, previous_record_count)
        complaints += stats_complaints(contract, stats)
    return complaints
