"""The fold of one run: edges, task states and readiness, as a pure function of the set of its events.

Facts about a task are maxima (for a publication, the minimum) over the events that name it; its state follows from
them and from its edges; an edge follows from the state of its upstream task. So order, repetition and batching of
events have no effect, and the cost of a batch grows with the tasks that it changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.projections import task_states
from penstock.projections.fact import Fact, understood
from penstock.projections.graph import Ints, RunGraph, spread
from penstock.projections.task_reports import TaskReport, task_reports
from penstock.projections.ulids import EventIds

_NEVER = np.iinfo(np.int64).max
_CLOSES = 1 << 32


class RunFold:
    """The state of one run."""

    def __init__(self) -> None:
        self.graph = RunGraph()
        self.closed = 0  # position of RunFinished
        self.state = np.empty(0, np.int8)
        self.state_position = np.empty(0, np.int64)  # of the event that the state follows from
        self.row_position = np.empty(0, np.int64)  # of the newest event that changed anything about the task
        self.ready_position = np.empty(0, np.int64)
        self.outcome = np.empty(0, np.int8)  # the final outcome, 0 for none
        self.rank = np.empty(0, np.int64)  # of the final outcome: its try; the highest if it closes the attempt
        self.outcome_position = np.empty(0, np.int64)
        self.published = np.empty(0, np.int64)
        self.started = np.empty(0, np.int64)  # position of the last start
        self.tries = np.empty(0, np.int64)  # the highest known try
        self.last_event = np.empty(0, np.int64)  # position of the newest event that names the task
        self.satisfied = np.empty(0, np.int64)
        self.errors: dict[int, str] = {}
        self.event_ids = EventIds()
        self.resolution = np.empty(0, np.int8)
        self.resolved_position = np.empty(0, np.int64)

    # --- folding events -----------------------------------------------------------------------------------------

    def fold(self, facts: Sequence[Fact]) -> Ints:
        """Fold the facts and return the numbers of the changed tasks."""
        known = [fact for fact in facts if understood(fact)]
        self.event_ids.add([fact.position for fact in known], [fact.event_id for fact in known])
        planned = self.graph.add_plans((f.position, f.payload) for f in known if f.type == "PlanCreated")
        if len(planned):
            self._recompute_edges()
        touched = [planned, *self._fold_reports(known), self._close(known)]
        touched = [tasks for tasks in touched if len(tasks)]
        return self._propagate(np.unique(np.concatenate(touched))) if touched else np.empty(0, np.int64)

    def _fold_reports(self, facts: Iterable[Fact]) -> list[Ints]:
        reports = task_reports(facts)
        numbers = [
            np.fromiter(map(self.graph.number, (w.task for w in some)), np.int64, len(some)) for some in reports[:3]
        ]
        published = np.fromiter(
            (self.graph.number(task) for task, _ in reports.published), np.int64, len(reports.published)
        )
        self._grow()
        final, tried, started = numbers
        reported = np.unique(np.concatenate(numbers))
        tries = self.tries[reported]
        self._set_outcomes(final, reports.final)
        for tasks, some in ((final, reports.final), (tried, reports.tried), (started, reports.started)):
            if len(some):
                np.maximum.at(self.tries, tasks, np.fromiter((w.attempt for w in some), np.int64, len(some)))
                np.maximum.at(self.last_event, tasks, _positions(some))
        if len(started):
            np.maximum.at(self.started, started, _positions(reports.started))
        if len(published):
            positions = np.fromiter((position for _, position in reports.published), np.int64, len(published))
            np.minimum.at(self.published, published, positions)
            np.maximum.at(self.last_event, published, positions)
        # A publication belongs to the last try: a newly known try changes what the edges report.
        tried_again = reported[(self.tries[reported] > tries) & (self.published[reported] != _NEVER)]
        return [*numbers, published, self.graph.down[self.graph.outgoing(tried_again)]]

    def _set_outcomes(self, tasks: Ints, reports: Sequence[TaskReport]) -> None:
        """Set final outcomes. The one that closed the attempt wins; otherwise the one with the highest try, and among
        those the one with the highest position."""
        if not len(tasks):
            return
        ranks = np.fromiter((w.attempt + _CLOSES * w.closes for w in reports), np.int64, len(reports))
        positions = _positions(reports)
        order = np.lexsort((positions, ranks, tasks))
        last = order[np.append(np.diff(tasks[order]) != 0, True)]
        mine = tasks[last]
        newer = (ranks[last] > self.rank[mine]) | (
            (ranks[last] == self.rank[mine]) & (positions[last] > self.outcome_position[mine])
        )
        last, mine = last[newer], mine[newer]
        self.outcome[mine] = np.fromiter((reports[i].outcome for i in last.tolist()), np.int8, len(last))
        self.rank[mine], self.outcome_position[mine] = ranks[last], positions[last]
        for task, i in zip(mine.tolist(), last.tolist(), strict=True):
            error_class = reports[i].error_class
            if error_class is not None:
                self.errors[task] = error_class
            else:
                self.errors.pop(task, None)

    def _close(self, facts: Iterable[Fact]) -> Ints:
        """The first RunFinished wins; tasks without an outcome by then are cancelled."""
        ends = [fact.position for fact in facts if fact.type == "RunFinished"]
        if not ends or (self.closed and self.closed <= min(ends)):
            return np.empty(0, np.int64)
        self.closed = min(ends)
        return np.arange(len(self.graph.keys), dtype=np.int64)

    # --- array sizes ----------------------------------------------------------------------------------------------

    def _grow(self) -> None:
        more = len(self.graph.keys) - len(self.state)
        if more <= 0:
            return
        zeros = np.zeros(more, np.int64)
        for name in (
            "state_position",
            "row_position",
            "ready_position",
            "rank",
            "outcome_position",
            "started",
            "tries",
            "last_event",
            "satisfied",
        ):
            setattr(self, name, np.concatenate([getattr(self, name), zeros]))
        self.published = np.concatenate([self.published, np.full(more, _NEVER)])
        self.state = np.concatenate([self.state, np.full(more, task_states.BLOCKED, np.int8)])
        self.outcome = np.concatenate([self.outcome, np.zeros(more, np.int8)])

    def _recompute_edges(self) -> None:
        """Recompute the edges from their tasks after a new layout."""
        self._grow()
        graph = self.graph
        self.resolution = np.full(len(graph.up), task_states.UNRESOLVED, np.int8)
        self.resolved_position = np.zeros(len(graph.up), np.int64)
        self._resolve(np.arange(len(graph.up), dtype=np.int64))

    # --- derived states -------------------------------------------------------------------------------------------

    def _propagate(self, tasks: Ints) -> Ints:
        """Compute the states of these tasks, then of their downstream tasks, until nothing changes."""
        changed = [tasks]
        for _ in range(len(self.graph.keys) + 1):
            moved = self._compute_states(tasks)
            if not len(moved):
                break
            edges = self._resolve(self.graph.outgoing(moved))
            tasks = np.unique(self.graph.down[edges])
            changed.append(tasks)
            if not len(tasks):
                break
        return np.unique(np.concatenate(changed))

    def _resolve(self, edges: Ints) -> Ints:
        """Recompute edges from their upstream tasks, and return the changed ones."""
        graph = self.graph
        up = graph.up[edges]
        outside = graph.outside[edges]
        resolution = np.where(outside, task_states.SUCCESS_EDGE, task_states.RESOLVED_BY[self.state[up]]).astype(
            np.int8
        )
        position = np.where(outside, graph.edge_position[edges], self.state_position[up])
        position = np.where(resolution == task_states.UNRESOLVED, 0, position)
        differs = (resolution != self.resolution[edges]) | (position != self.resolved_position[edges])
        changed = edges[differs]
        self.resolution[changed], self.resolved_position[changed] = resolution[differs], position[differs]
        return np.asarray(changed)

    def _compute_states(self, tasks: Ints) -> Ints:
        """Compute states, and return the tasks whose outgoing edges change."""
        graph = self.graph
        first, last = graph.groups_of(tasks)
        waits = last > first
        count = len(tasks)
        ready = np.ones(count, np.bool_)
        broken, by_failure = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        newest, bad = np.zeros(count, np.int64), np.zeros(count, np.int64)
        if waits.any():
            groups = spread(first[waits], last[waits])
            of_task = np.repeat(np.flatnonzero(waits), (last - first)[waits])
            start, end = graph.group_start[groups], graph.group_start[groups + 1]
            edges = spread(start, end)
            cuts = np.cumsum(end - start) - (end - start)
            resolution, position = self.resolution[edges], self.resolved_position[edges]
            good, open_ = resolution == task_states.SUCCESS_EDGE, resolution == task_states.UNRESOLVED
            failed = (resolution == task_states.FAILED_EDGE) | (resolution == task_states.SKIPPED_EDGE)
            good_count = np.add.reduceat(good.astype(np.int64), cuts)
            open_count = np.add.reduceat(open_.astype(np.int64), cuts)
            failed_count = np.add.reduceat(failed.astype(np.int64), cuts)
            group_newest = np.maximum.reduceat(position, cuts)
            group_bad = np.maximum.reduceat(np.where(good | open_, 0, position), cuts)
            hopeless = good_count + open_count < graph.group_needed[groups]
            np.logical_and.at(ready, of_task, (open_count == 0) & ~hopeless)
            np.logical_or.at(broken, of_task, hopeless)
            np.logical_or.at(by_failure, of_task, hopeless & (failed_count > 0))
            np.maximum.at(newest, of_task, group_newest)
            np.maximum.at(bad, of_task, np.where(hopeless, group_bad, 0))
            satisfied = np.zeros(count, np.int64)
            np.add.at(satisfied, of_task, good_count)
            self.satisfied[tasks] = satisfied
        return self._decide(tasks, ready, broken, by_failure, newest, bad)

    def _decide(
        self,
        tasks: Ints,
        ready: NDArray[np.bool_],
        broken: NDArray[np.bool_],
        by_failure: NDArray[np.bool_],
        newest: Ints,
        bad: Ints,
    ) -> Ints:
        """The table of states: the outcome of the task comes first, then its edges, then the end of the run."""
        plan = (
            np.array(self.graph.plan_position, np.int64)[tasks]
            if len(tasks) > 1000
            else np.fromiter((self.graph.plan_position[t] for t in tasks.tolist()), np.int64, len(tasks))
        )
        planned = plan > 0
        published, started = self.published[tasks], self.started[tasks]
        has_outcome, is_out = self.outcome[tasks] > 0, published != _NEVER
        may = ready & planned
        ready_at = np.maximum(plan, newest)
        rows: list[tuple[Any, Any, Ints]] = [
            (is_out, task_states.SUCCEEDED, published),
            (has_outcome, self.outcome[tasks], self.outcome_position[tasks]),
            (broken & by_failure, task_states.SKIPPED, bad),
            (broken, task_states.CANCELLED, bad),
            (np.full(len(tasks), self.closed > 0), task_states.CANCELLED, np.full(len(tasks), self.closed)),
            (may & (started > 0), task_states.RUNNING, np.maximum(ready_at, started)),
            (may, task_states.READY, ready_at),
        ]
        conditions = [condition for condition, _, _ in rows]
        state = np.select(conditions, [np.broadcast_to(s, len(tasks)) for _, s, _ in rows], task_states.BLOCKED).astype(
            np.int8
        )
        position = np.select(conditions, [p for _, _, p in rows], plan)
        resolved_by = task_states.RESOLVED_BY
        news = (resolved_by[state] != resolved_by[self.state[tasks]]) | (
            (resolved_by[state] != task_states.UNRESOLVED) & (position != self.state_position[tasks])
        )
        self.state[tasks], self.state_position[tasks] = state, position
        self.ready_position[tasks] = np.where(may, ready_at, 0)
        self.row_position[tasks] = np.maximum.reduce([position, plan, newest, self.last_event[tasks]])
        return np.asarray(tasks[news])

    # --- queries ----------------------------------------------------------------------------------------------------

    def tasks_in(self, state: int, stage: str | None = None) -> list[str]:
        """The planned tasks in this state, of one stage or of all."""
        graph, there = self.graph, self.state == state
        if stage is not None:
            there &= graph.initials()[: len(there)] == ord(stage[0])
        keys = [graph.keys[task] for task in np.flatnonzero(there).tolist() if graph.plan_position[task]]
        return keys if stage is None else [key for key in keys if key.startswith(f"{stage}:")]

    def state_of(self, key: str) -> task_states.TaskState | None:
        task = self.graph.index.get(key)
        return None if task is None or task >= len(self.state) else task_states.STATES[self.state[task]]

    def outcome_attempt(self, tasks: Ints) -> Ints:
        """The try that the outcome of a task came from. A publication names none: it belongs to the last try of the
        load, because a published load is not dispatched again."""
        by_outcome = np.where(self.published[tasks] != _NEVER, self.tries[tasks], self.rank[tasks] % _CLOSES)
        found: Ints = np.maximum(by_outcome, 1)
        return found

    def most_tries(self, keys: Iterable[str]) -> int:
        """The highest known try among these tasks."""
        known = [task for key in keys if (task := self.graph.index.get(key)) is not None and task < len(self.tries)]
        return int(self.tries[known].max()) if known else 0


def _positions(reports: Sequence[TaskReport]) -> Ints:
    return np.fromiter((report.position for report in reports), np.int64, len(reports))
