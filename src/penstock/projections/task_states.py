"""States of tasks and resolutions of edges, as names for people and as numbers for arrays."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from penstock.lifecycle import Outcome


class TaskState(StrEnum):
    BLOCKED = "BLOCKED"  # waits for edges
    READY = "READY"  # every edge is resolved, every group is complete
    RUNNING = "RUNNING"  # dispatched
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"  # an upstream task failed or was skipped
    CANCELLED = "CANCELLED"  # an upstream task was cancelled, or the run ended first


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
# Resolution of an edge by the state of its upstream task: the table of ADR-022.
RESOLVED_BY = np.array([UNRESOLVED, UNRESOLVED, UNRESOLVED, 0, 1, 2, 3], np.int8)
SUCCESS_EDGE, FAILED_EDGE, SKIPPED_EDGE, CANCELLED_EDGE = range(len(RESOLUTIONS))
