"""Explains the state of a partition as one value: authority, pointer, attempts, what blocks it, what happens next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.control.lateness import MissingCause
from penstock.control.missing_causes import SourceWait, cause_of, frozen_state, view_state
from penstock.errors import ErrorClass
from penstock.expected import ExpectedRange
from penstock.html import fragment, items, paragraph, table
from penstock.lifecycle import DisplayStatus, PartitionStatus
from penstock.partition import AssetKind, PartitionKey, RunId
from penstock.plural import counted
from penstock.projections.staleness import StaleReason
from penstock.projections.status_board import PartitionStanding
from penstock.state.records import Attempt, PartitionView
from penstock.warehouse.pointers import Pointer
from penstock.warehouse.withdrawn import DemotedRun


@dataclass(frozen=True, slots=True)
class RunReference:
    """A run of the partition, and its rows."""

    attempt_no: int | None
    run_id: RunId
    record_count: int

    def __str__(self) -> str:
        return f"attempt {'?' if self.attempt_no is None else self.attempt_no}"


SHOWN_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, repr=False)
class Why:
    """The explanation of one partition. `print` shows it as text, a notebook as HTML."""

    view: PartitionView
    pointer: Pointer | None
    attempts: Sequence[Attempt]
    headline: str
    blocks: tuple[str, ...]
    next: str
    display: DisplayStatus
    stale: tuple[str, ...] = ()  # every reason, with its meaning
    serving: RunReference | None = None  # the published run
    waiting: RunReference | None = None  # the authoritative run, if it is not published yet
    waiting_since: datetime | None = None
    approve: str | None = None  # the command that accepts the last attempt, if only guards held it back
    withdrawn_inputs: tuple[DemotedRun, ...] = ()  # demoted runs that it was derived from
    requests_in_flight: int | None = None  # of a run, to its source; None: one for each core
    missing_cause: MissingCause | None = None  # why readers do not get it; None if they do, or if it is not expected

    @property
    def key(self) -> PartitionKey:
        return self.view.key

    @property
    def warnings(self) -> list[dict[str, Any]]:
        """The warnings of the validator about the authoritative run."""
        trusted = self.view.state.current_run_id
        return next((attempt.warnings for attempt in self.attempts if attempt.run_id == trusted), [])

    def __str__(self) -> str:
        return "\n".join([f"{self.key}  {self.display}", *self.lines()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        attempts = [
            (a.attempt_no, a.outcome or "open", f"{a.finished_at or a.issued_at:%Y-%m-%d %H:%M:%S}", a.error_message)
            for a in self.attempts[:SHOWN_ATTEMPTS]
        ]
        return fragment(
            f"{self.key}  {self.display}",
            paragraph(self.headline),
            table(("", ""), self._facts()),
            table(("attempt", "outcome", "UTC", "error"), attempts) if attempts else "",
            items(self._remarks()),
            paragraph(f"next: {self.next}"),
        )

    def lines(self) -> list[str]:
        """The explanation below the key: headline, facts, attempts, what blocks it and what happens next."""
        return [
            f"  {self.headline}",
            "",
            *(f"  {name:<10} {fact}" for name, fact in self._facts()),
            *(_attempt_line(attempt) for attempt in self.attempts[:SHOWN_ATTEMPTS]),
            "",
            *(f"  {remark}" for remark in self._remarks()),
            f"  next: {self.next}",
        ]

    def _facts(self) -> list[tuple[str, str]]:
        """State, authority, published run and source of the partition, by name."""
        state, pointer = self.view.state, self.pointer
        implicit = "" if self.view.explicit else " (implicit: no row)"
        authority, served = "none", "nothing"
        if state.current_run_id:
            authority = f"run {state.current_run_id}, {counted(state.record_count or 0, 'row')}"
        if pointer is not None:
            hidden = "" if self.serving else ", hidden from readers"
            served = f"run {pointer.run_id}, {counted(pointer.record_count, 'row')}{hidden}"
            served += f", table {pointer.table} version {pointer.table_version}"
        return [
            ("state", f"{state.status}{implicit}, {counted(state.attempt_count, 'attempt')} counted"),
            ("authority", authority),
            ("warehouse", served),
            *self._source_fact(),
        ]

    def _remarks(self) -> list[str]:
        """The warnings, the reasons why it is stale, and what blocks it."""
        return [
            *(f"warning: {warning['message']}" for warning in self.warnings),
            *(f"stale: {reason}" for reason in self.stale),
            *(f"blocked by: {block}" for block in self.blocks),
        ]

    def _source_fact(self) -> list[tuple[str, str]]:
        if self.requests_in_flight is None:
            return []
        met_quota = bool(self.attempts) and self.attempts[0].error_class is ErrorClass.QUOTA
        halved = "; the last run halved them after a quota error" if met_quota else ""
        return [("source", f"at most {counted(self.requests_in_flight, 'request')} in flight{halved}")]


def _attempt_line(attempt: Attempt) -> str:
    reason = f": {attempt.error_message}" if attempt.error_message else ""
    when = f"{attempt.finished_at or attempt.issued_at:%Y-%m-%d %H:%M:%S}"
    return f"  attempt {attempt.attempt_no:<2} {attempt.outcome or 'open':<10} {when}{reason}"


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Facts beside the state of the partition: the due days, and those of the control plane."""

    due: ExpectedRange
    standing: PartitionStanding  # as the status board shows it
    publish_due: datetime | None  # since when the authoritative run waits to be published
    terminal: str | None = None  # why it is terminal
    source_error: str | None = None  # why no attempts of its source are issued
    maturity: str | None = None
    tasks: tuple[str, ...] = ()  # of the open run, each with its state
    lacking: tuple[str, ...] = ()  # messages about inputs that a partition of a model waits for
    approvable: bool = False  # an operator may approve the last attempt
    withdrawn_inputs: tuple[DemotedRun, ...] = ()  # demoted runs that a partition of a model was derived from
    hides: bool = False  # its model has `on_demotion: hide`
    refreshes: bool = True  # its model is derived again automatically
    requests_in_flight: int | None = None  # of a run, to its source; None: one for each core
    quota_renews_at: datetime | None = None  # when requests to its source may be sent again; None if they may
    wait: SourceWait | None = None  # why its source gets no requests
    now: datetime | None = None


def explain(view: PartitionView, pointer: Pointer | None, attempts: Sequence[Attempt], around: Circumstances) -> Why:
    """Combine the facts to an explanation."""
    serving, waiting = _serving(pointer, attempts, around), _waiting(view, pointer, attempts, around)
    headline = _headline(view, attempts, around, serving, waiting)
    if around.maturity == "provisional":
        headline += " (provisional: the source may still change this day)"
    approve = _approve(view) if around.approvable else None
    return Why(
        view,
        pointer,
        attempts,
        headline,
        _blocks(view, around, waiting),
        _next(view, around, waiting, approve),
        around.standing.display,
        _stale(around.standing),
        serving,
        waiting,
        around.publish_due if waiting else None,
        approve,
        around.withdrawn_inputs,
        around.requests_in_flight,
        _missing_cause(view, serving, around),
    )


def _missing_cause(view: PartitionView, serving: RunReference | None, around: Circumstances) -> MissingCause | None:
    """The cause with which `penstock late` counts the partition."""
    day, withdrawn = view.key.logical_date, bool(around.withdrawn_inputs)
    if (serving is not None and not withdrawn) or day < around.due.first or around.now is None:
        return None
    if day > around.due.last:
        return MissingCause.NOT_DUE
    state = view_state(view, terminal=around.terminal is not None, withdrawn=withdrawn, now=around.now)
    if around.due.is_frozen(day):
        state = frozen_state(state)
    return cause_of(state, around.wait, lacks_inputs=bool(around.lacking))


def _serving(pointer: Pointer | None, attempts: Sequence[Attempt], around: Circumstances) -> RunReference | None:
    """The run that readers get: that of the pointer, even if the authority is another run."""
    if pointer is None or not pointer.available or (around.hides and around.withdrawn_inputs):
        return None
    return RunReference(_number(attempts, pointer.run_id), pointer.run_id, pointer.record_count)


def _waiting(
    view: PartitionView, pointer: Pointer | None, attempts: Sequence[Attempt], around: Circumstances
) -> RunReference | None:
    """The authoritative run, if readers do not get it yet."""
    state = view.state
    if around.publish_due is None or state.status is not PartitionStatus.SUCCESS or state.current_run_id is None:
        return None
    if pointer is not None and pointer.available and pointer.run_id == state.current_run_id:
        return None
    return RunReference(_number(attempts, state.current_run_id), state.current_run_id, state.record_count or 0)


def _number(attempts: Sequence[Attempt], run_id: RunId) -> int | None:
    return next((attempt.attempt_no for attempt in attempts if attempt.run_id == run_id), None)


def _approve(view: PartitionView) -> str:
    return f'penstock state approve {view.key} --run {view.last_attempt_run_id} --reason "..."'


def _stale(standing: PartitionStanding) -> tuple[str, ...]:
    since = f" since {standing.stale_since:%Y-%m-%d %H:%M:%S} UTC" if standing.stale_since else ""
    return tuple(f"{reason}: {_MEANING[reason]}{since}" for reason in standing.reasons)


_MEANING = {
    StaleReason.FRESHNESS_POLICY: "older than its freshness policy allows",
    StaleReason.UPSTREAM_CHANGED: "derived from runs that are no longer trusted, or before an input arrived",
    StaleReason.CODE_CHANGED: "fetched or derived under an older version of its contract",
}


def _headline(
    view: PartitionView,
    attempts: Sequence[Attempt],
    around: Circumstances,
    serving: RunReference | None,
    waiting: RunReference | None,
) -> str:
    failed, display = "last_attempt_failed" in around.standing.flags, around.standing.display
    if serving is not None:
        text = f"serving {serving} with {counted(serving.record_count, 'row')}"
    elif display is DisplayStatus.NEVER_MATERIALIZED:
        return "no run of this partition has ever been accepted"
    elif display is DisplayStatus.UNAVAILABLE and view.state.current_run_id is not None:
        number = _number(attempts, view.state.current_run_id)
        return f"withdrawn: attempt {number or '?'} is no longer trusted, its rows are hidden from readers"
    elif around.withdrawn_inputs:
        text = f"its rows are hidden from readers: it was derived from {around.withdrawn_inputs[0]}"
    else:
        text = "readers get no rows"
    if waiting is not None:
        text += f"; {waiting} with {counted(waiting.record_count, 'row')} has authority and waits to be published"
    return text + (f", attempt {view.last_attempt_no} failed: {view.last_attempt_error}" if failed else "")


def _blocks(view: PartitionView, around: Circumstances, waiting: RunReference | None) -> tuple[str, ...]:
    blocks = []
    day, due, control = view.key.logical_date, around.due, view.control
    if day > due.last:
        blocks.append(f"the day is not over yet in the account's time zone; the last day that is over is {due.last}")
    if day < due.first:
        blocks.append(f"the configuration expects this customer and query only from {due.first} on")
    if due.is_frozen(day):
        blocks.append(f"frozen: its source serves only {due.frozen_before} and later; the present state stays")
    if view.open_run_id:
        where = f" ({', '.join(around.tasks)})" if around.tasks else ""
        blocks.append(f"run {view.open_run_id} is working on it{where}")
    if control.paused_at is not None:
        blocks.append(f"paused by {control.paused_by}{_because(control.paused_reason)}")
    if around.terminal is not None:
        blocks.append(f"given up for good: {around.terminal}")
    elif view.state.status is PartitionStatus.FAILED and control.next_run_at is None:
        blocks.append(f"it failed and waits for an explicit retry: {view.state.error_message}")
    if around.source_error is not None:
        blocks.append(around.source_error)
    if control.held_at is not None:
        blocks.append(f"held back from restatement by {control.held_by}{_because(control.held_reason)}")
    blocks += [f"not ready: it was derived from {demoted}" for demoted in around.withdrawn_inputs]
    blocks += around.lacking
    if around.approvable:
        blocks.append(f"attempt {view.last_attempt_no} was held back by a guard only: {view.last_attempt_error}")
    if waiting is not None and around.publish_due is not None and not view.open_run_id:
        blocks.append(
            f"run {waiting.run_id} ({waiting}, {counted(waiting.record_count, 'row')}) waits to be published to the"
            f" warehouse since {around.publish_due:%Y-%m-%d %H:%M:%S} UTC"
        )
    return tuple(blocks)


def _because(reason: str | None) -> str:
    return f": {reason}" if reason else ""


def _next(view: PartitionView, around: Circumstances, waiting: RunReference | None, approve: str | None) -> str:
    if view.open_run_id:
        return "its verdict; nothing to do"
    found = _otherwise(view, around, waiting)
    return found if approve is None else f"if the rows are right, `{approve}`; otherwise: {found}"


def _otherwise(view: PartitionView, around: Circumstances, waiting: RunReference | None) -> str:
    key, control = view.key, view.control
    if not around.due.first <= key.logical_date <= around.due.last:
        return "nothing until the day is due"
    if around.due.is_frozen(key.logical_date) and waiting is None:
        return "nothing: the source no longer has this day, so no run touches it; `penstock state rollback` still can"
    if control.paused_at is not None:
        return f"nothing until `penstock state resume {key}`"
    if around.terminal is not None and control.terminal_at is not None:
        return f"nothing until `penstock state clear-terminal {key}` and then `penstock state retry {key}`"
    if around.terminal is not None:
        return f"nothing until `penstock state retry {key}`"
    if around.quota_renews_at is not None and view.state.status is PartitionStatus.PENDING:
        return f"attempted by the first run after the quota renews at {around.quota_renews_at:%Y-%m-%d %H:%M} UTC"
    if control.next_run_at is not None and view.state.status is PartitionStatus.PENDING:
        return (
            f"the source asked for a pause, so the loop waits until {control.next_run_at:%Y-%m-%d %H:%M:%S} UTC;"
            " the next `penstock run` attempts it at once"
        )
    if control.next_run_at is not None:
        return f"retried after {control.next_run_at:%Y-%m-%d %H:%M:%S} UTC ({control.strategy}), by a run or the loop"
    if view.state.status is PartitionStatus.FAILED:
        return f"see `penstock state history {key}`, repair the cause, then `penstock state retry {key}`"
    if waiting is not None:
        return (
            "the next `penstock run` or `penstock control tick` publishes it; if that reports a damaged raw run,"
            f" fetch it again with `penstock run {key} --reprocess`"
        )
    if around.lacking:
        return "derived by the run that loads the missing inputs, or by the next one"
    if view.state.status is PartitionStatus.PENDING:
        return "the next `penstock run` attempts it"
    if key.kind is AssetKind.DERIVED:
        if not around.standing.reasons:
            return "nothing to do; derived again when its inputs change"
        if control.held_at is not None:
            return f"nothing until `penstock state resume {key}`: an operator chose its run"
        if not around.refreshes:
            return f"`penstock run {key} --reprocess` derives it again; its model has refresh: false"
        return "the next `penstock run` derives it again"
    return "nothing to do; `penstock run --reprocess` would fetch it again"
