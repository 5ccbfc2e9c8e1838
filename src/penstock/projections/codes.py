"""What a task can be and how an edge can end, as words for people and as numbers for arrays."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from penstock.lifecycle import Outcome


class TaskState(StrEnum):
    BLOCKED = "BLOCKED"  # waits for edges
    READY = "READY"  # every edge is resolved, every group holds
    RUNNING = "RUNNING"  # handed out
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"  # an upstream failed, or was skipped
    CANCELLED = "CANCELLED"  # an upstream was cancelled, or the run ended first


class Resolution(StrEnum):
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    CANCELLED = "CANCELLED"


STATES = list(TaskState)
BLOCKED, READY, RUNNING, SUCCEEDED, FAILED, SKIPPED, CANCELLED = range(len(STATES))

OUTCOME_CODE = {Outcome.SUCCEEDED: SUCCEEDED, Outcome.FAILED: FAILED, Outcome.CANCELLED: CANCELLED}

UNRESOLVED = -1
RESOLUTIONS = list(Resolution)
# How the state of the upstream resolves its edges: the table of ADR-022.
RESOLVED_BY = np.array([UNRESOLVED, UNRESOLVED, UNRESOLVED, 0, 1, 2, 3], np.int8)
SUCCESS_EDGE, FAILED_EDGE, SKIPPED_EDGE, CANCELLED_EDGE = range(len(RESOLUTIONS))
