"""Closes the open attempts of dead workers: as cancelled at first, as rejected after repeated losses."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from penstock.errors import ErrorClass
from penstock.lifecycle import LOST_WORKER, MAX_LOSSES, Stage
from penstock.partition import RunId
from penstock.state.control import ControlStore
from penstock.state.records import Cancelled, Rejected
from penstock.state.validator import ValidatorStore
from penstock.state.worker import OpenAttempt, WorkerStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rescued:
    """The number of attempts that were closed, by outcome."""

    cancelled: int
    rejected: int


def rescue(workers: WorkerStore, control: ControlStore, validator: ValidatorStore) -> Rescued:
    """Close the open attempts and runs of dead workers, so that their partitions can be attempted again."""
    workers.mark_dead_workers()
    abandoned = workers.abandoned()
    lost = [
        Cancelled(a.attempt, a.worker_token, Stage.EXTRACT, ErrorClass.INTERNAL, LOST_WORKER, lost=True)
        for a in abandoned
        if a.lost_count + 1 < MAX_LOSSES
    ]
    rejected = [
        Rejected(
            a.attempt,
            a.worker_token,
            Stage.EXTRACT,
            ErrorClass.INTERNAL,
            f"{LOST_WORKER} {MAX_LOSSES} times in a row while working on this partition",
        )
        for a in abandoned
        if a.lost_count + 1 >= MAX_LOSSES
    ]
    rescued = Rescued(len(control.cancel(lost).applied), len(validator.judge(rejected).applied))
    for run_id, token in workers.abandoned_runs():
        control.finish_run(run_id, token, {}, "abandoned")
    if abandoned:
        facts = {"cancelled": rescued.cancelled, "rejected": rescued.rejected}
        log.info("attempts.rescued", extra={"facts": {**facts, "partition": str(abandoned[0].attempt.partition)}})
    return rescued


def close_own_attempts(workers: WorkerStore, control: ControlStore, token: str) -> int:
    """Close the attempts and runs that a living worker left open when its round failed, for example because the
    database was unavailable. No attempt counts as lost. Returns the number of closed attempts."""
    reason = "the round failed before this partition got a verdict"
    closed = control.cancel([_cancelled(item, reason) for item in workers.open_attempts_of(token)])
    for run_id, own in workers.runs_of(token):
        control.finish_run(run_id, own, {}, "broken")
    return len(closed.applied)


def end_cancelled(workers: WorkerStore, control: ControlStore, run_id: RunId) -> None:
    """Close a run that was cancelled and whose worker is dead. Other runs are not touched."""
    workers.mark_dead_workers()
    control.cancel([_cancelled(item, "the run was cancelled") for item in workers.abandoned_in(run_id)])
    for found, token in workers.abandoned_runs():
        if found == run_id:
            control.finish_run(run_id, token, {}, "cancelled")


def _cancelled(item: OpenAttempt, reason: str) -> Cancelled:
    return Cancelled(item.attempt, item.worker_token, Stage.EXTRACT, ErrorClass.INTERNAL, reason)
