"""The state machine of a partition as a table: who may move it, from where, to where, by which act."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

MAX_LOSSES = 4  # this many losses in a row make a rejection: a slice that kills its worker must not loop for ever


class PartitionStatus(StrEnum):
    PENDING = "pending"  # nothing trustworthy yet; also the meaning of no row at all
    SUCCESS = "success"  # one run is vouched for; consumers may read it
    FAILED = "failed"  # examined and rejected; waits for the control plane


class Outcome(StrEnum):
    """How an attempt was closed. An open attempt has none."""

    SUCCEEDED = "SUCCEEDED"  # the validator accepted it
    FAILED = "FAILED"  # the validator rejected it; counts as an attempt
    CANCELLED = "CANCELLED"  # nobody judged it (lost worker, quota, credentials); does not count


class Stage(StrEnum):
    """Where in the pipeline an attempt was when it was closed."""

    EXTRACT = "extract"
    VALIDATE = "validate"
    LOAD = "load"


class DisplayStatus(StrEnum):
    """What a person reads about a partition: data first, execution second."""

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
    ACCEPT = "accept"  # the run of an issued attempt becomes the authority
    REJECT = "reject"  # the attempt is closed; authority is not touched
    RECHECK = "re-check"  # the authoritative run no longer satisfies its contract
    REQUEUE = "requeue"  # a failed partition may be tried again
    DEMOTE = "demote"  # an operator withdraws the authoritative run
    ROLLBACK = "rollback"  # an operator returns to an earlier accepted run
    APPROVE = "approve"  # an operator accepts a run that only guards held back


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
    """The table as a Mermaid diagram, for the docs."""
    lines = ["stateDiagram-v2", "    [*] --> pending"]
    lines += [f"    {m.before} --> {m.after}: {m.act} ({m.actor})" for m in TRANSITIONS]
    return "\n".join(lines)
