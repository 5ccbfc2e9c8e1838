"""Validates authoritative runs again, as new attempts are validated, and demotes those that fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.contract.complaint import rejections, summary
from penstock.contract.contract import Contract
from penstock.flow.listener import ProgressListener
from penstock.flow.runner import BATCH_PARTITIONS
from penstock.partition import AttemptKey, PartitionKey
from penstock.pipeline.references import OpenReference
from penstock.pipeline.validate import ToValidate, check_expressions, validate
from penstock.state.recheck import FailedRecheck

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Rechecked:
    """The number of validated runs, and the reasons of demotions by partition."""

    examined: int
    demoted: dict[PartitionKey, str]
    unreadable: dict[PartitionKey, str]  # no verdict: the raw data, or a referenced table, cannot be read


def recheck(
    spark: SparkSession,
    lake: str,
    contracts: Mapping[str, Contract],
    trusted: Sequence[tuple[AttemptKey, int]],
    withdraw: Callable[[Sequence[FailedRecheck]], Sequence[PartitionKey]],
    listener: ProgressListener,
    open_reference: OpenReference | None = None,
) -> Rechecked:
    """Validate each run against the present contract and demote those that fail with `withdraw`, which returns the
    partitions whose run was still the authority. Guards are not evaluated: they compare a new run with it."""
    demoted: dict[PartitionKey, str] = {}
    unreadable: dict[PartitionKey, str] = {}
    for name in sorted({attempt.partition.query_name for attempt, _ in trusted}):
        check_expressions(lambda: spark, contracts[name])
        items = [ToValidate(a, size, None) for a, size in trusted if a.partition.query_name == name]
        for at in range(0, len(items), BATCH_PARTITIONS):
            batch = items[at : at + BATCH_PARTITIONS]
            report = listener.stage("validate", len(batch))
            found = []
            for item in validate(spark, lake, contracts[name], batch, report, open_reference):
                rejecting = rejections(item.complaints)
                reason = summary(rejecting)
                if item.only_waits or any(complaint.check == "raw" for complaint in rejecting):
                    unreadable[item.attempt.partition] = reason
                elif rejecting:
                    found.append(FailedRecheck(item.attempt, reason))
            report(1.0)
            gone = set(withdraw(found))
            demoted |= {f.attempt.partition: f.error_message for f in found if f.attempt.partition in gone}
    return Rechecked(len(trusted), demoted, unreadable)
