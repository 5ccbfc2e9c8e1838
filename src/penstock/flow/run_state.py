"""The state of a run, folded from its events: ready, waiting and running tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.lifecycle import Stage
from penstock.partition import RunId
from penstock.projections import task_states
from penstock.projections.fact import Cursor, Fact
from penstock.projections.runs import FoldedRun

ReadEvents = Callable[[str, Cursor], tuple[list[Fact], Cursor]]


class RunState:
    """One run, folded from its events and nothing else."""

    def __init__(self, run_id: RunId, news: ReadEvents) -> None:
        self._run_id = run_id
        self._news = news
        self._cursor = Cursor()
        self._run = FoldedRun.of([])

    def refresh(self) -> None:
        """Fold the events that were recorded since the last call."""
        facts, self._cursor = self._news(self._run_id, self._cursor)
        self._run.add(facts)

    def folded(self) -> FoldedRun:
        """The run, folded from all its events."""
        self.refresh()
        return self._run

    def ready(self, stage: Stage) -> list[str]:
        """The partitions whose task of this stage may be worked on now."""
        return self._in(task_states.READY, stage)

    def waiting(self, stage: Stage) -> list[str]:
        """The partitions whose task of this stage has not begun: ready, or waiting for others."""
        return [*self.ready(stage), *self._in(task_states.BLOCKED, stage)]

    def running(self, stage: Stage) -> list[str]:
        """The partitions whose task of this stage has begun and not ended."""
        return self._in(task_states.RUNNING, stage)

    def tries(self, stage: Stage, partition_keys: Iterable[str]) -> int:
        """The number of times that a task was begun; the largest of several tasks."""
        return self._run.fold.most_tries([f"{stage}:{key}" for key in partition_keys])

    def states(self, partition_key: str) -> dict[Stage, str]:
        """The state of each task of a partition; empty if the run does not have the partition."""
        found = {stage: self._run.fold.state_of(f"{stage}:{partition_key}") for stage in Stage}
        return {stage: state for stage, state in found.items() if state is not None}

    @property
    def cancel_requested(self) -> bool:
        return self._run.facts.cancel_requested

    def _in(self, state: int, stage: Stage) -> list[str]:
        before = len(f"{stage}:")
        return [key[before:] for key in self._run.fold.tasks_in(state, stage)]
