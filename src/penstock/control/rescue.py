"""What dead workers left open is closed: without a verdict at first, as a rejection when it keeps happening."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import ErrorClass
from penstock.lifecycle import MAX_LOSSES, Stage
from penstock.partition import RunId
from penstock.state.control import ControlStore
from penstock.state.records import Cancelled, Rejected
from penstock.state.validator import ValidatorStore
from penstock.state.worker import OpenAttempt, WorkerStore


@dataclass(frozen=True, slots=True)
class Rescued:
    cancelled: int
    rejected: int


def rescue(workers: WorkerStore, control: ControlStore, validator: ValidatorStore) -> Rescued:
    """Close the open attempts of workers that are gone, so that their partitions can be tried again."""
    workers.mark_dead_workers()
    abandoned = workers.abandoned()
    lost = [
        Cancelled(a.attempt, a.worker_token, Stage.EXTRACT, ErrorClass.INTERNAL, "the worker was lost", lost=True)
        for a in abandoned
        if a.lost_count + 1 < MAX_LOSSES
    ]
    hopeless = [
        Rejected(
            a.attempt,
            a.worker_token,
            Stage.EXTRACT,
            ErrorClass.INTERNAL,
            f"the worker was lost {MAX_LOSSES} times in a row while working on this partition",
        )
        for a in abandoned
        if a.lost_count + 1 >= MAX_LOSSES
    ]
    rescued = Rescued(len(control.cancel(lost).applied), len(validator.judge(hopeless).applied))
    for run_id, token in workers.abandoned_runs():
        control.finish_run(run_id, token, {}, "abandoned")
    return rescued


def tidy_own(workers: WorkerStore, control: ControlStore, token: str) -> int:
    """Close what this very worker left when a round of it broke, for example because the database was away. It lives,
    so nobody else would. Nothing counts as lost."""
    words = "the round broke before this partition was judged"
    closed = control.cancel([_given_up(item, words) for item in workers.left_by(token)])
    for run_id, own in workers.runs_of(token):
        control.finish_run(run_id, own, {}, "broken")
    return len(closed.applied)


def end_cancelled(workers: WorkerStore, control: ControlStore, run_id: RunId) -> None:
    """Close a run that was asked to stop and whose worker is gone; of other runs nothing."""
    workers.mark_dead_workers()
    control.cancel([_given_up(item, "the run was cancelled") for item in workers.left_in(run_id)])
    for found, token in workers.abandoned_runs():
        if found == run_id:
            control.finish_run(run_id, token, {}, "cancelled")


def _given_up(item: OpenAttempt, words: str) -> Cancelled:
    return Cancelled(item.attempt, item.worker_token, Stage.EXTRACT, ErrorClass.INTERNAL, words)
