"""The state machine of a partition as a table: actor, act, status before, status after."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

LOST_WORKER = "the worker was lost"  # begins the error message of each attempt that was closed because its worker died
MAX_LOSSES = 4  # so many lost workers in a row reject the attempt: a partition that kills its worker must not loop


class PartitionStatus(StrEnum):
    PENDING = "pending"  # no verdict yet, or requeued; a partition without a row is pending, too
    SUCCESS = "success"  # one run is trusted; consumers may read it
    FAILED = "failed"  # rejected by the validator; waits for the control plane


class Outcome(StrEnum):
    """The result of a closed attempt. An open attempt has none."""

    SUCCEEDED = "SUCCEEDED"  # the validator accepted it
    FAILED = "FAILED"  # the validator rejected it; counts as an attempt
    CANCELLED = "CANCELLED"  # closed without a verdict (lost worker, quota, credentials); does not count


class Stage(StrEnum):
    """The pipeline stage in which an attempt was closed."""

    EXTRACT = "extract"
    VALIDATE = "validate"
    LOAD = "load"


class DisplayStatus(StrEnum):
    """The displayed status of a partition: data first, execution second."""

    NEVER_MATERIALIZED = "never_materialized"
    MATERIALIZED = "materialized"
    LAST_ATTEMPT_FAILED = "materialized_but_last_attempt_failed"
    STALE = "stale"
    UNAVAILABLE = "unavailable"


class PlanReason(StrEnum):
    """Why a partition would be attempted now, or what prevents an attempt. The state reader derives it in SQL."""

    OPEN = "open"  # a run works on it
    PAUSED = "paused"  # an operator paused it
    WAITING = "waiting"  # its source asked for a pause that has not ended
    REQUEUED = "requeued"  # pending because an operator or the control plane asked for another attempt
    MISSING = "missing"  # pending and never accepted
    RETRY = "retry"  # its retry policy set a time that has come
    RESTATE = "restate"  # accepted, and its day has reached an age at which it is fetched again
    SUCCESS = "success"  # accepted; attempted only with --reprocess
    FAILED = "failed"  # rejected; not attempted before it is requeued


class AttemptReason(StrEnum):
    """Why an attempt was issued. Stored with the attempt and in the plan event."""

    MISSING = "missing"
    REQUEUED = "requeued"
    RETRY = "retry"
    RESTATE = "restate"
    POSTPONED = "postponed"  # its source asked for a pause, and a person started the run before the end of it
    REPROCESS = "reprocess"  # a person asked for accepted partitions again
    BACKFILL = "backfill"
    STALE = "stale"  # derived from runs that were replaced since
    REFRESH = "refresh"  # derived from partitions that may change in the same run
    RECOVERED = "recovered"  # found in the lake when the state database was rebuilt


class Actor(StrEnum):
    VALIDATOR = "validator"  # judges issued attempts, re-checks the authoritative run
    CONTROL = "control plane"  # decides what is tried again
    OPERATOR = "operator"  # a person, with a reason


class Act(StrEnum):
    ACCEPT = "accept"  # the run of an issued attempt becomes authoritative
    REJECT = "reject"  # the attempt is closed; authority does not change
    RECHECK = "re-check"  # the authoritative run no longer satisfies its contract
    REQUEUE = "requeue"  # a failed partition may be tried again
    DEMOTE = "demote"  # an operator withdraws the authoritative run
    ROLLBACK = "rollback"  # an operator returns to an earlier accepted run
    APPROVE = "approve"  # an operator accepts a run that only guards rejected


@dataclass(frozen=True, slots=True)
class Transition:
    actor: Actor
    act: Act
    before: PartitionStatus
    after: PartitionStatus


def _moves(actor: Actor, act: Act, before: Iterable[PartitionStatus], after: PartitionStatus) -> list[Transition]:
    return [Transition(actor, act, status, after) for status in before]


_P, _S, _F = PartitionStatus.PENDING, PartitionStatus.SUCCESS, PartitionStatus.FAILED

TRANSITIONS: tuple[Transition, ...] = (
    *_moves(Actor.VALIDATOR, Act.ACCEPT, (_P, _F, _S), _S),
    *_moves(Actor.VALIDATOR, Act.REJECT, (_P, _F), _F),
    *_moves(Actor.VALIDATOR, Act.REJECT, (_S,), _S),
    *_moves(Actor.VALIDATOR, Act.RECHECK, (_S,), _F),
    *_moves(Actor.CONTROL, Act.REQUEUE, (_F,), _P),
    *_moves(Actor.OPERATOR, Act.DEMOTE, (_S,), _F),
    *_moves(Actor.OPERATOR, Act.ROLLBACK, (_P, _F, _S), _S),
    *_moves(Actor.OPERATOR, Act.APPROVE, (_P, _F, _S), _S),
)


def diagram() -> str:
    """Return the table as a Mermaid diagram, for the docs."""
    lines = ["stateDiagram-v2", "    [*] --> pending"]
    lines += [f"    {m.before} --> {m.after}: {m.act} ({m.actor})" for m in TRANSITIONS]
    return "\n".join(lines)
