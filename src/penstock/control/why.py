"""Why a partition is as it is: authority, pointer, attempts, what blocks it and what happens next, as one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.lifecycle import DisplayStatus, PartitionStatus
from penstock.partition import PartitionKey
from penstock.state.records import Attempt, ExpectedRange, PartitionView
from penstock.warehouse.pointers import Pointer


@dataclass(frozen=True, slots=True)
class Why:
    """One page about one partition."""

    view: PartitionView
    pointer: Pointer | None
    attempts: Sequence[Attempt]
    headline: str
    blocks: tuple[str, ...]
    next: str

    @property
    def key(self) -> PartitionKey:
        return self.view.key


def explain(
    view: PartitionView, pointer: Pointer | None, attempts: Sequence[Attempt], due: ExpectedRange, publish_due: bool
) -> Why:
    """Say in words what the facts mean together."""
    return Why(
        view,
        pointer,
        attempts,
        _headline(view, attempts),
        _blocks(view, due, publish_due),
        _next(view, due, publish_due),
    )


def _headline(view: PartitionView, attempts: Sequence[Attempt]) -> str:
    state = view.state
    numbers = {attempt.run_id: attempt.attempt_no for attempt in attempts}
    serving = f"attempt {numbers.get(state.current_run_id, '?')}" if state.current_run_id else ""
    match view.display:
        case DisplayStatus.NEVER_MATERIALIZED:
            return "no run of this partition has ever been accepted"
        case DisplayStatus.UNAVAILABLE:
            return f"withdrawn: {serving} is no longer vouched for, its rows are hidden from readers"
        case DisplayStatus.LAST_ATTEMPT_FAILED:
            return f"serving {serving}, attempt {view.last_attempt_no} failed: {view.last_attempt_error}"
        case _:
            return f"serving {serving} with {state.record_count:,} rows"


def _blocks(view: PartitionView, due: ExpectedRange, publish_due: bool) -> tuple[str, ...]:
    blocks = []
    day = view.key.logical_date
    if day > due.last:
        blocks.append(f"the day is not over yet where the account lives; the last one that is, is {due.last}")
    if day < due.first:
        blocks.append(f"the configuration expects this customer and query only from {due.first} on")
    if view.open_run_id:
        blocks.append(f"run {view.open_run_id} is working on it")
    if view.state.status is PartitionStatus.FAILED:
        blocks.append(f"it failed and waits for an explicit retry: {view.state.error_message}")
    if publish_due and not view.open_run_id:
        blocks.append("an accepted run waits to be published to the warehouse")
    return tuple(blocks)


def _next(view: PartitionView, due: ExpectedRange, publish_due: bool) -> str:
    if view.open_run_id:
        return "its verdict; nothing to do"
    if not due.first <= view.key.logical_date <= due.last:
        return "nothing until the day is due"
    if view.state.status is PartitionStatus.FAILED:
        return f"look at `penstock state history {view.key}`, mend the cause, then `penstock state retry {view.key}`"
    if publish_due:
        return (
            "the next `penstock run` publishes it; should that say its raw run is broken, fetch it again with"
            f" `penstock run {view.key} --reprocess`"
        )
    if view.state.status is PartitionStatus.PENDING:
        return "the next `penstock run` attempts it"
    return "nothing to do; `penstock run --reprocess` would fetch it again"
