"""Lateness of a day of a table as pure values: is it ready, on track, at risk or late, and why. Time is an argument."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum

from penstock.partition import PartitionKey


class Punctuality(StrEnum):
    """The state of a day beside its deadline."""

    READY = "ready"  # the rule holds
    ON_TRACK = "on_track"  # not ready; the deadline is ahead, and nothing indicates that it will be missed
    AT_RISK = "at_risk"  # not ready; completion is expected after the deadline, or cannot be expected at all
    LATE = "late"  # not ready; the deadline has passed


class MissingCause(StrEnum):
    """Why a partition is missing."""

    NOT_DUE = "not_due"  # its day is not over in the account's time zone
    IN_PROGRESS = "in_progress"  # a run works on it
    WAITING_FOR_PUBLICATION = "waiting_for_publication"  # accepted, and not published yet
    TERMINAL = "terminal"  # given up: no policy retries it
    FAILED_CHECK = "failed_check"  # rejected, and not retried automatically
    BREAKER = "breaker"  # its source refuses requests
    QUOTA = "quota"  # the quota of its source is used up
    WAITING_FOR_RETRY = "waiting_for_retry"  # it failed, and its next attempt has a time
    WAITING_FOR_INPUTS = "waiting_for_inputs"  # a partition of a model whose inputs cannot be read
    PAUSED = "paused"  # by an operator
    NOT_ATTEMPTED = "not_attempted"  # due; the next run attempts it


# Only an operator, or the source itself, ends these causes: no time can be expected.
BLOCKED = frozenset({MissingCause.TERMINAL, MissingCause.FAILED_CHECK, MissingCause.BREAKER, MissingCause.PAUSED})
# These partitions need no further attempt: the open run completes them.
_MOVING = frozenset({MissingCause.IN_PROGRESS, MissingCause.WAITING_FOR_PUBLICATION})


@dataclass(frozen=True, slots=True)
class Missing:
    """The missing partitions of a day with one cause."""

    cause: MissingCause
    count: int
    until: datetime | None = None  # when the cause ends for the last of them, if it has a time
    example: PartitionKey | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class DayLateness:
    """One day of a table beside its deadline."""

    table: str
    day: date
    deadline: datetime
    punctuality: Punctuality
    expected: int
    required: int
    available: int
    missing: tuple[Missing, ...] = ()
    expected_at: datetime | None = None  # when the rule is expected to hold; None if ready or unknown
    inputs: tuple[DayLateness, ...] = ()  # inputs of a model that are not ready, recursively


@dataclass(frozen=True, slots=True)
class DayFacts:
    """The known facts about the completion of a day."""

    required: int
    available: int
    missing: Sequence[Missing] = ()
    inputs: tuple[DayLateness, ...] = ()  # inputs of a model that are not ready
    run_ends_at: datetime | None = None  # at its current speed, of the runs that work on the missing partitions
    usual_at: datetime | None = None  # by the history of such days, given that it is not complete yet
    overdue: bool = False  # every such day in the history was complete by now


@dataclass(frozen=True, slots=True)
class Outlook:
    """Expected completion of a day that is not ready."""

    at: datetime | None  # None if it is unknown
    at_risk: bool  # it cannot be expected at all, or it takes longer than ever


def outlook(facts: DayFacts) -> Outlook:
    """When the rule is expected to hold. The partitions that need the least time count first: those that a run works
    on, those that nothing delays, then those that wait, in the order of their times."""
    needed = facts.required - facts.available
    possible = _unblocked(facts.missing, facts.inputs)
    moving = sum(one.count for one in possible if one.cause in _MOVING)
    waiting = sorted((one.until, one.count) for one in possible if one.until is not None and one.cause not in _MOVING)
    idle = sum(one.count for one in possible) - moving - sum(count for _, count in waiting)
    if moving + idle + sum(count for _, count in waiting) < needed:
        return Outlook(None, at_risk=True)
    known_run = moving > 0 and facts.run_ends_at is not None
    times = [facts.run_ends_at] if known_run else []
    if (moving > 0 and not known_run) or needed > moving:
        times.append(facts.usual_at)
    found = moving + idle
    for until, count in waiting:
        if found >= needed:
            break
        found += count
        times.append(until)
    at = max((at for at in times if at is not None), default=None)
    return Outlook(at, facts.overdue and ((moving > 0 and not known_run) or (idle > 0 and needed > moving)))


def is_blocked(day: DayLateness) -> bool:
    """Whether a day cannot become ready without an operator or a recovery of its source."""
    possible = _unblocked(day.missing, day.inputs)
    return sum(one.count for one in possible) < day.required - day.available


def _unblocked(missing: Sequence[Missing], inputs: Sequence[DayLateness]) -> list[Missing]:
    blocked = {*BLOCKED, MissingCause.WAITING_FOR_INPUTS} if any(map(is_blocked, inputs)) else BLOCKED
    return [one for one in missing if one.cause not in blocked]


def punctuality(facts: DayFacts, deadline: datetime, now: datetime) -> Punctuality:
    """The state of a day at the moment `now`."""
    if facts.available >= facts.required:
        return Punctuality.READY
    if now >= deadline:
        return Punctuality.LATE
    found = outlook(facts)
    if found.at_risk or (found.at is not None and found.at > deadline):
        return Punctuality.AT_RISK
    return Punctuality.ON_TRACK


def day_lateness(
    table: str, day: date, expected: int, facts: DayFacts, deadline: datetime, now: datetime
) -> DayLateness:
    """The value for one day of a table. An expected time that has passed is unknown."""
    state = punctuality(facts, deadline, now)
    ready = state is Punctuality.READY
    at = None if ready else outlook(facts).at
    return DayLateness(
        table,
        day,
        deadline,
        state,
        expected,
        facts.required,
        facts.available,
        () if ready else tuple(facts.missing),
        at if at is not None and at > now else None,
        () if ready else facts.inputs,
    )
