"""The cause of a missing partition, from its state in the database and from the state of its source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from penstock.control.lateness import Missing, MissingCause
from penstock.lifecycle import PartitionStatus
from penstock.state.missing import MissingState
from penstock.state.quota import SourceQuota
from penstock.state.records import Breaker, PartitionView


@dataclass(frozen=True, slots=True)
class SourceWait:
    """Why a source gets no requests now, and until when."""

    cause: MissingCause
    until: datetime
    detail: str


def source_wait(breaker: Breaker, quota: SourceQuota | None, now: datetime) -> SourceWait | None:
    """Why no attempts of a source are issued; None if they are."""
    if breaker.opened_at is not None and breaker.probe_at is not None:
        detail = f"the breaker of {breaker.source} is open: {breaker.error_message}"
        return SourceWait(MissingCause.BREAKER, breaker.probe_at, detail)
    if breaker.not_before is not None and now < breaker.not_before:
        return SourceWait(MissingCause.QUOTA, breaker.not_before, f"{breaker.source} asked for a pause")
    if quota is not None and not quota.left():
        return SourceWait(MissingCause.QUOTA, quota.renews_at(), f"the quota of {quota.source} is used up")
    return None


def cause_of(state: MissingState, wait: SourceWait | None, *, lacks_inputs: bool) -> MissingCause:
    """Why a due partition in this state is missing: the first cause that applies."""
    match state:
        case MissingState.OPEN:
            return MissingCause.IN_PROGRESS
        case MissingState.UNPUBLISHED:
            return MissingCause.WAITING_FOR_PUBLICATION
        case MissingState.TERMINAL | MissingState.FROZEN:
            return MissingCause.TERMINAL
        case MissingState.REJECTED:
            return MissingCause.FAILED_CHECK
        case MissingState.PAUSED:
            return MissingCause.PAUSED
        case MissingState.QUOTA | MissingState.AUTH | MissingState.RETRY | MissingState.DUE | MissingState.WITHDRAWN:
            return wait.cause if wait is not None else _waiting(state, lacks_inputs)
        case _:
            assert_never(state)


def _waiting(state: MissingState, lacks_inputs: bool) -> MissingCause:
    if state is MissingState.QUOTA:
        return MissingCause.QUOTA
    if state is MissingState.AUTH:
        return MissingCause.BREAKER
    if state is MissingState.RETRY:
        return MissingCause.WAITING_FOR_RETRY
    return MissingCause.WAITING_FOR_INPUTS if lacks_inputs else MissingCause.NOT_ATTEMPTED


def frozen_state(state: MissingState) -> MissingState:
    """The state of a partition whose source no longer serves the day: no attempt of it is issued any more."""
    kept = (MissingState.OPEN, MissingState.UNPUBLISHED, MissingState.WITHDRAWN, MissingState.TERMINAL)
    return state if state in kept else MissingState.FROZEN


def view_state(view: PartitionView, *, terminal: bool, withdrawn: bool, now: datetime) -> MissingState:
    """The state of one partition that readers do not get. `view` has the time that the retry policy allows. The same
    rule as the statement of `state.missing`, for one partition."""
    control, status = view.control, view.state.status
    if view.open_run_id is not None:
        return MissingState.OPEN
    if status is PartitionStatus.SUCCESS:
        return MissingState.WITHDRAWN if withdrawn else MissingState.UNPUBLISHED
    if terminal:
        return MissingState.TERMINAL
    if status is PartitionStatus.FAILED and control.next_run_at is None:
        return MissingState.REJECTED
    if control.paused_at is not None:
        return MissingState.PAUSED
    if control.next_run_at is not None and control.next_run_at > now and control.strategy in ("quota", "auth"):
        return MissingState(control.strategy)
    return MissingState.RETRY if status is PartitionStatus.FAILED else MissingState.DUE


def merged(missing: Iterable[Missing]) -> tuple[Missing, ...]:
    """One entry for each cause, in the order of the causes: the counts added, the latest time, the first example."""
    found: dict[MissingCause, Missing] = {}
    for one in missing:
        known = found.get(one.cause)
        if known is None:
            found[one.cause] = one
        elif one.count:
            times = [at for at in (known.until, one.until) if at is not None]
            found[one.cause] = Missing(
                one.cause, known.count + one.count, max(times, default=None), known.example, known.detail or one.detail
            )
    return tuple(found[cause] for cause in MissingCause if cause in found)
