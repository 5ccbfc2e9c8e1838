"""A recorded event as the folds read it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

PAGE = 200_000  # events that are read at a time, and that one set of files holds


class Fact(NamedTuple):
    """One event of the ledger. Its position is its version: the database assigns it, no clock is involved."""

    position: int
    event_id: str
    type: str
    version: int
    occurred_at: datetime
    run_id: str | None
    payload: dict[str, Any]


# The event types and versions that the folds understand. Others are counted and otherwise ignored.
UNDERSTOOD: dict[str, int] = {
    "PlanCreated": 1,
    "TaskStarted": 1,
    "TaskFinished": 1,
    "TasksDropped": 1,
    "LoadsFailed": 1,
    "SlicesExtracted": 1,
    "SlicesUnchanged": 1,
    "RunFinished": 1,
    "RunCancelRequested": 1,
    "AuthorityChanged": 1,
    "PartitionPublished": 1,
    "PartitionHidden": 1,
    "AttemptRefused": 1,
}


# Event types about the tasks of a run.
OF_A_RUN = frozenset(
    {
        "PlanCreated",
        "TaskStarted",
        "SlicesExtracted",
        "SlicesUnchanged",
        "TasksDropped",
        "LoadsFailed",
        "TaskFinished",
        "PartitionPublished",
        "RunCancelRequested",
        "RunFinished",
    }
)


def understood(fact: Fact) -> bool:
    return UNDERSTOOD.get(fact.type) == fact.version


class Cursor(NamedTuple):
    """The position of a reader. It compares transactions first: positions are assigned before the commit, so an event
    may appear below one that was read already, but never in an older transaction."""

    transaction: int = 0
    position: int = 0


START = Cursor()
