"""Tries a contract on the rows of a file: the same validation as in a run, without workspace and database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import orjson
import pyarrow as pa

from penstock.contract.complaint import Complaint, merged, rejections, shortened
from penstock.contract.contract import Contract
from penstock.contract.evaluation import missing_inputs, stats_fields
from penstock.contract.parse import parse_many
from penstock.contract.slice_stats import SliceStats, stats_by_field
from penstock.errors import UsageError
from penstock.pipeline.parse_slices import SliceParser, header
from penstock.pipeline.slices import BLOCK_BYTES
from penstock.pipeline.validate import all_rules, check_expressions, complaints_of, summary_worker
from penstock.spark_frames import frame_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Trial:
    """The complaints about the rows, and the checks that could not be tried."""

    rows: int
    complaints: Sequence[Complaint]
    skipped: Sequence[str]

    @property
    def is_acceptable(self) -> bool:
        return not rejections(self.complaints)


def needs_spark(contract: Contract) -> list[str]:
    """The checks that only Spark can evaluate."""
    return [rule.name for rule in SliceParser("", contract).for_spark]


def try_contract(
    contract: Contract, payload: Path, day: date | None, session: Callable[[], SparkSession] | None
) -> Trial:
    """Validate the rows of a file. Without a session, the checks that need Spark are skipped."""
    skipped = missing_inputs(contract, day)
    left = SliceParser("", contract).for_spark if session is None else []
    skipped += [f"{rule.name}: needs Spark" for rule in left]
    out = [id(rule.declared) for rule in left]
    contract = replace(contract, checks=tuple(check for check in contract.checks if id(check) not in out))
    examine = SliceParser("", contract)
    batches: list[pa.RecordBatch] = []
    complaints: list[Complaint] = []
    lines = 0
    for block in _blocks(payload):
        parsed = parse_many([block], contract, first_line=lines + 1)
        complaints += parsed.complaints.get(0, ())
        batches += examine.rows(parsed, np.zeros(1, np.int32))
        lines += block.count(b"\n")
    batches.append(examine.headers({0: header("", lines, merged(complaints))}))
    if examine.for_spark and session is not None:
        batches = _with_spark_results(session(), contract, examine, batches)
    [row] = next(summary_worker(contract)(iter(batches))).to_pylist()
    shown = sorted({line for line, count in zip(row["first_lines"], row["broken"], strict=True) if count})
    stats = SliceStats(day, row["rows"], stats_by_field(stats_fields(contract), row["figures"]))
    slice_header = orjson.loads(row["header"])
    found = complaints_of(contract, all_rules(contract), row, slice_header, stats, None, _examples(payload, shown))
    return Trial(lines, found, skipped)


def _with_spark_results(
    spark: SparkSession, contract: Contract, examine: SliceParser, batches: Sequence[pa.RecordBatch]
) -> list[pa.RecordBatch]:
    """The batches with the results of Spark's checks."""
    check_expressions(lambda: spark, contract)
    frame = frame_of(spark, pa.Table.from_batches(batches, examine.schema))
    return list(frame.select(*examine.columns()).toArrow().combine_chunks().to_batches())


def _blocks(payload: Path) -> Iterator[bytes]:
    """Yield whole lines of the file, some megabytes at a time; adds a missing newline at the end."""
    try:
        with payload.open("rb") as file:
            while lines := file.readlines(BLOCK_BYTES):
                block = b"".join(lines)
                yield block if block.endswith(b"\n") else block + b"\n"
    except OSError as error:
        raise UsageError(f"cannot read {payload}: {error.strerror}") from error


def _examples(payload: Path, numbers: Sequence[int]) -> dict[int, str]:
    if not numbers:
        return {}
    wanted = set(numbers)
    with payload.open("rb") as file:
        lines = enumerate(islice(file, max(wanted)), start=1)
        return {
            number: shortened(line.rstrip(b"\n").decode("utf-8", "backslashreplace"))
            for number, line in lines
            if number in wanted
        }
