"""What dead workers left open is closed: without a verdict at first, as a rejection when it keeps happening."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import ErrorClass
from penstock.lifecycle import MAX_LOSSES, Stage
from penstock.state.control import ControlStore
from penstock.state.records import Cancelled, Rejected
from penstock.state.validator import ValidatorStore
from penstock.state.worker import WorkerStore


@dataclass(frozen=True, slots=True)
class Rescued:
    cancelled: int
    rejected: int


def rescue(workers: WorkerStore, control: ControlStore, validator: ValidatorStore) -> Rescued:
    """Close the open attempts of workers that are gone, so that their partitions can be tried again."""
    workers.bury()
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
    rescued = Rescued(len(control.cancel(lost).applied), len(validator.reject(hopeless).applied))
    for run_id in workers.abandoned_runs():
        control.finish_run(run_id, {}, "abandoned")
    return rescued
