"""Why a partition is as it is: authority, pointer, attempts, what blocks it and what happens next, as one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.expected import ExpectedRange
from penstock.lifecycle import DisplayStatus, PartitionStatus
from penstock.partition import MODELS, PartitionKey
from penstock.projections.board import Standing
from penstock.projections.staleness import StaleReason
from penstock.state.records import Attempt, PartitionView
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
    display: DisplayStatus
    stale: tuple[str, ...] = ()  # every reason, in words

    @property
    def key(self) -> PartitionKey:
        return self.view.key

    @property
    def warnings(self) -> list[dict[str, Any]]:
        """What the validator found worth saying about the run that is trusted."""
        trusted = self.view.state.current_run_id
        return next((attempt.warnings for attempt in self.attempts if attempt.run_id == trusted), [])


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What is known around the partition: the days that are due, and what the control plane says."""

    due: ExpectedRange
    publish_due: bool
    terminal: str | None = None  # why it is given up for good
    trouble: str | None = None  # of its source
    maturity: str | None = None
    standing: Standing | None = None  # as the board shows it
    tasks: tuple[str, ...] = ()  # of the run that works on it, each with its state
    lacking: tuple[str, ...] = ()  # inputs that a slice of a model waits for, in words


def explain(view: PartitionView, pointer: Pointer | None, attempts: Sequence[Attempt], around: Circumstances) -> Why:
    """Say in words what the facts mean together."""
    headline = _headline(view, attempts)
    if around.maturity == "provisional":
        headline += " (provisional: the source may still change this day)"
    display = around.standing.display if around.standing else view.display
    stale = _stale(around.standing) if around.standing else ()
    return Why(view, pointer, attempts, headline, _blocks(view, around), _next(view, around), display, stale)


def _stale(standing: Standing) -> tuple[str, ...]:
    since = f" since {standing.stale_since:%Y-%m-%d %H:%M:%S} UTC" if standing.stale_since else ""
    return tuple(f"{reason}: {_MEANING[reason]}{since}" for reason in standing.reasons)


_MEANING = {
    StaleReason.FRESHNESS_POLICY: "older than its freshness policy allows",
    StaleReason.UPSTREAM_CHANGED: "made from runs that are not the trusted ones any more, or without a later one",
    StaleReason.CODE_CHANGED: "made under an older version of its contract",
}


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


def _blocks(view: PartitionView, around: Circumstances) -> tuple[str, ...]:
    blocks = []
    day, due, control = view.key.logical_date, around.due, view.control
    if day > due.last:
        blocks.append(f"the day is not over yet where the account lives; the last one that is, is {due.last}")
    if day < due.first:
        blocks.append(f"the configuration expects this customer and query only from {due.first} on")
    if due.is_frozen(day):
        blocks.append(f"frozen: its source can only be asked for {due.frozen_before} and later; what is here stays")
    if view.open_run_id:
        where = f" ({', '.join(around.tasks)})" if around.tasks else ""
        blocks.append(f"run {view.open_run_id} is working on it{where}")
    if control.paused_at is not None:
        blocks.append(f"paused by {control.paused_by}{_because(control.paused_reason)}")
    if around.terminal is not None:
        blocks.append(f"given up for good: {around.terminal}")
    elif view.state.status is PartitionStatus.FAILED and control.next_run_at is None:
        blocks.append(f"it failed and waits for an explicit retry: {view.state.error_message}")
    if around.trouble is not None:
        blocks.append(around.trouble)
    if control.held_at is not None:
        blocks.append(f"held back from restatement by {control.held_by}{_because(control.held_reason)}")
    blocks += around.lacking
    if around.publish_due and not view.open_run_id:
        blocks.append("an accepted run waits to be published to the warehouse")
    return tuple(blocks)


def _because(reason: str | None) -> str:
    return f": {reason}" if reason else ""


def _next(view: PartitionView, around: Circumstances) -> str:
    key, control = view.key, view.control
    if view.open_run_id:
        return "its verdict; nothing to do"
    if not around.due.first <= key.logical_date <= around.due.last:
        return "nothing until the day is due"
    if around.due.is_frozen(key.logical_date) and not around.publish_due:
        return "nothing: the source no longer has this day, so no run touches it; `penstock state rollback` still can"
    if control.paused_at is not None:
        return f"nothing until `penstock state resume {key}`"
    if around.terminal is not None:
        return f"nothing until `penstock state clear-terminal {key}` and then `penstock state retry {key}`"
    if control.next_run_at is not None and view.state.status is PartitionStatus.PENDING:
        return (
            f"the source asked for a pause, so the loop waits until {control.next_run_at:%Y-%m-%d %H:%M:%S} UTC;"
            " the next `penstock run` attempts it at once"
        )
    if control.next_run_at is not None:
        return f"retried after {control.next_run_at:%Y-%m-%d %H:%M:%S} UTC ({control.strategy}), by a run or the loop"
    if view.state.status is PartitionStatus.FAILED:
        return f"look at `penstock state history {key}`, mend the cause, then `penstock state retry {key}`"
    if around.publish_due:
        return (
            "the next `penstock run` publishes it; should that say its raw run is broken, fetch it again with"
            f" `penstock run {key} --reprocess`"
        )
    if around.lacking:
        return "made by the run that brings what is lacking, or the next one after it"
    if view.state.status is PartitionStatus.PENDING:
        return "the next `penstock run` attempts it"
    if key.source == MODELS:
        stale = around.standing is not None and around.standing.reasons
        return "the next `penstock run` makes it again" if stale else "nothing to do; made again when its inputs change"
    return "nothing to do; `penstock run --reprocess` would fetch it again"
