"""Re-checking trusted runs: the same validation as for a new attempt, but what fails is withdrawn."""

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
    """How many runs were examined, and which partitions lost theirs, with why."""

    examined: int
    demoted: dict[PartitionKey, str]
    unreadable: dict[PartitionKey, str]  # not judged: their raw data, or what they refer to, cannot be read


def recheck(
    spark: SparkSession,
    lake: str,
    contracts: Mapping[str, Contract],
    trusted: Sequence[tuple[AttemptKey, int]],
    withdraw: Callable[[Sequence[FailedRecheck]], Sequence[PartitionKey]],
    listener: ProgressListener,
    look: OpenReference | None = None,
) -> Rechecked:
    """Validate each run against today's contract, and `withdraw` those that fail, which returns the partitions that
    were still trusted. Guards compare runs, so they have nothing to say here."""
    demoted: dict[PartitionKey, str] = {}
    unreadable: dict[PartitionKey, str] = {}
    for name in sorted({attempt.partition.query_name for attempt, _ in trusted}):
        check_expressions(spark, contracts[name])
        items = [ToValidate(a, size, None) for a, size in trusted if a.partition.query_name == name]
        for at in range(0, len(items), BATCH_PARTITIONS):
            batch = items[at : at + BATCH_PARTITIONS]
            report = listener.stage("validate", len(batch))
            found = []
            for item in validate(spark, lake, contracts[name], batch, report, look):
                wanting = rejections(item.complaints)
                words = summary(wanting)
                if item.only_waits or any(complaint.check == "raw" for complaint in wanting):
                    unreadable[item.attempt.partition] = words
                elif wanting:
                    found.append(FailedRecheck(item.attempt, words))
            report(1.0)
            gone = set(withdraw(found))
            demoted |= {f.attempt.partition: f.error_message for f in found if f.attempt.partition in gone}
    return Rechecked(len(trusted), demoted, unreadable)
