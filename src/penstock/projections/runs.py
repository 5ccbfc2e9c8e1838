"""`runs`: one row for each run, with its tasks counted by state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.projections import task_states
from penstock.projections.fact import OF_A_RUN, Fact, understood
from penstock.projections.graph import Ints
from penstock.projections.rows import MOMENT, OWNER
from penstock.projections.run_fold import RunFold
from penstock.projections.ulids import moments

RUNS = pa.schema(
    [
        *OWNER,
        pa.field("run_id", pa.string(), False),
        pa.field("state", pa.string(), False),
        pa.field("planned_at", MOMENT),
        pa.field("cancel_requested_at", MOMENT),
        pa.field("finished_at", MOMENT),
        pa.field("tasks_total", pa.int32(), False),
        *[pa.field(f"tasks_{state.lower()}", pa.int32(), False) for state in task_states.STATES],
        pa.field("first_position", pa.int64(), False),
        pa.field("row_version", pa.string(), False),
    ]
)

_RUN_EVENTS = ("PlanCreated", "RunCancelRequested", "RunFinished")


class RunFacts:
    """When the run was planned, was asked to stop, and ended: the first event of each type wins."""

    def __init__(self) -> None:
        self._first: dict[str, Fact] = {}
        self.first: Fact | None = None
        self.last: Fact | None = None

    def fold(self, facts: Iterable[Fact]) -> None:
        for fact in facts:
            if fact.type not in OF_A_RUN or not understood(fact):
                continue
            if self.first is None or fact.position < self.first.position:
                self.first = fact
            if self.last is None or fact.position > self.last.position:
                self.last = fact
            known = self._first.get(fact.type)
            if fact.type in _RUN_EVENTS and (known is None or fact.position < known.position):
                self._first[fact.type] = fact

    @property
    def end(self) -> str | None:
        """How the run ended; None while it is active."""
        finished = self._first.get("RunFinished")
        return None if finished is None else str(finished.payload.get("end", "done"))

    @property
    def cancel_requested(self) -> bool:
        return "RunCancelRequested" in self._first

    def when(self, kind: str) -> str | None:
        """The ULID of the first event of this kind."""
        found = self._first.get(kind)
        return None if found is None else found.event_id


@dataclass(slots=True)
class FoldedRun:
    """A run in memory."""

    fold: RunFold
    facts: RunFacts

    @classmethod
    def of(cls, facts: Sequence[Fact]) -> FoldedRun:
        run = cls(RunFold(), RunFacts())
        run.add(facts)
        return run

    def add(self, facts: Sequence[Fact]) -> Ints:
        self.facts.fold(facts)
        return self.fold.fold(facts)


def run_row(run_id: str, run: FoldedRun, owner: tuple[str, str]) -> dict[str, Any]:
    facts, fold = run.facts, run.fold
    planned = np.array(fold.graph.plan_position, np.int64) > 0
    counts = np.bincount(fold.state[: len(planned)][planned], minlength=len(task_states.STATES)).tolist()
    ids = pa.array([facts.when(kind) for kind in _RUN_EVENTS], pa.string())
    planned_at, cancel_requested_at, finished_at = moments(ids).to_pylist()
    return {
        "tenant_id": owner[0],
        "workspace_id": owner[1],
        "run_id": run_id,
        "state": run_state(facts, dict(zip(task_states.STATES, counts, strict=True))),
        "planned_at": planned_at,
        "cancel_requested_at": cancel_requested_at,
        "finished_at": finished_at,
        "tasks_total": sum(counts),
        **{f"tasks_{state.lower()}": count for state, count in zip(task_states.STATES, counts, strict=True)},
        "first_position": facts.first.position if facts.first else 0,
        "row_version": facts.last.event_id if facts.last else "",
    }


def run_state(facts: RunFacts, counts: dict[task_states.TaskState, int]) -> str:
    """RUNNING until it is over, then by its end. A run that is done is FAILED if any task failed, and INCOMPLETE if any
    was given up."""
    match facts.end:
        case None:
            return "CANCELLING" if facts.cancel_requested else "RUNNING"
        case "cancelled" | "abandoned" as end:
            return end.upper()
        case "broken":
            return "FAILED"
        case _ if counts[task_states.TaskState.FAILED]:
            return "FAILED"
        case _:
            return "INCOMPLETE" if counts[task_states.TaskState.CANCELLED] else "SUCCEEDED"
