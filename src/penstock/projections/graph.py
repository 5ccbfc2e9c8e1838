"""The graph of one run: tasks, edges, and the groups of edges that a task waits for. Only plan events define it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.lifecycle import Stage
from penstock.partition_set import iter_keys

Ints = NDArray[np.int64]

ALL = "all"


def task_key(stage: str, partition_key: str) -> str:
    """`validate:demo/1000000001/campaign_daily/2024-06-01`"""
    return f"{stage}:{partition_key}"


def needed(rule: str, edges: int) -> int:
    """The number of edges of a group that must be satisfied: `all`, `at least 3`, `share 0.9`."""
    if rule == ALL:
        return edges
    kind, _, amount = rule.rpartition(" ")
    if kind == "at least":
        return int(amount)
    return int(np.ceil(float(amount) * edges - 1e-9))


class RunGraph:
    """Tasks are numbered in the order of discovery; edges are sorted by downstream task, then by group."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.index: dict[str, int] = {}
        self.plan_position: list[int] = []  # of each task; 0 if no plan names it yet
        self._plans: set[int] = set()  # positions of the plans added so far
        self._edges = np.empty((0, 5), np.int64)  # up, down, group, position, outside
        self._groups: dict[tuple[int, str], int] = {}  # (task, name) to the number of the group, which is negative
        self._rules: dict[int, tuple[int, str]] = {}  # by number of the group: position, rule
        self._initials = np.empty(0, np.uint32)
        self._lay_out()

    def number(self, key: str) -> int:
        """Return the number of a task; a new task gets the next number."""
        found = self.index.get(key)
        if found is None:
            found = self.index[key] = len(self.keys)
            self.keys.append(key)
            self.plan_position.append(0)
        return found

    def initials(self) -> NDArray[np.uint32]:
        """The first letter of each task's name, to filter most tasks of other stages at once."""
        if len(self._initials) < len(self.keys):
            new = "".join(key[:1] or " " for key in self.keys[len(self._initials) :])
            self._initials = np.append(self._initials, np.frombuffer(new.encode("utf-32-le"), np.uint32))
        return self._initials

    def add_plans(self, plans: Iterable[tuple[int, Mapping[str, Any]]]) -> Ints:
        """Add plans by their positions. Returns the tasks that changed; a plan that was added before changes none."""
        touched: set[int] = set()
        edges: list[tuple[int, int, int, int, bool]] = []
        for position, payload in plans:
            if position in self._plans:
                continue
            self._plans.add(position)
            if not self.keys and self._add_first_chains(payload.get("chains", ()), position):
                touched.update(range(len(self.keys)))
                payload = {name: value for name, value in payload.items() if name != "chains"}
            for key in _tasks(payload):
                task = self.number(key)
                self.plan_position[task] = max(self.plan_position[task], position)
                touched.add(task)
            for up, down, name, rule, outside in _edges(payload):
                waiting = self.number(down)
                edges.append((self.number(up), waiting, self._group(waiting, name, position, rule), position, outside))
                touched.add(waiting)
        if edges:
            self._add_edges(np.array(edges, np.int64))
        if touched:
            self._lay_out()
        return np.fromiter(sorted(touched), np.int64, len(touched))

    def _add_first_chains(self, chains: Iterable[Mapping[str, Any]], position: int) -> bool:
        """Add the chains of the first plan in bulk, twice as fast as one by one with the same result. Returns False and
        adds nothing if a task is in more than one chain."""
        keys: list[str] = []
        ups = [np.empty(0, np.int64)]
        for chain in chains:
            names, first = [task_key(stage, "") for stage in chain["stages"]], len(keys)
            keys += [name + partition_key for partition_key in iter_keys(chain["slices"]) for name in names]
            tasks = np.arange(first, len(keys), dtype=np.int64)
            ups.append(tasks[(tasks - first + 1) % len(names) > 0])
        index = dict(zip(keys, itertools.count()))
        if len(index) < len(keys):
            return False
        self.keys, self.index, self.plan_position = keys, index, [position] * len(keys)
        up = np.concatenate(ups)
        self._edges = np.stack([up, up + 1, up + 1, np.full_like(up, position), np.zeros_like(up)], axis=1)
        return True

    def _group(self, task: int, name: str, position: int, rule: str) -> int:
        """The number of a group: that of its task, unless the group has a name or a rule of its own."""
        if not name and rule == ALL:
            return task
        number = self._groups.setdefault((task, name), -1 - len(self._groups))
        known = self._rules.get(number)
        if known is None or position < known[0]:  # in two plans: the lower position wins, in any order of arrival
            self._rules[number] = (position, rule)
        return number

    def _add_edges(self, more: Ints) -> None:
        """Add edges. If two plans contain an edge, the lower position wins."""
        every = np.concatenate([self._edges, more])
        every = every[np.lexsort((every[:, 3], every[:, 1], every[:, 0]))]
        again = np.all(every[1:, :2] == every[:-1, :2], axis=1)
        self._edges = every[np.append(True, ~again)]

    def _lay_out(self) -> None:
        tasks = len(self.keys)
        edges = self._edges[np.lexsort((self._edges[:, 0], self._edges[:, 2], self._edges[:, 1]))]
        up, down, group, position = (np.ascontiguousarray(edges[:, column]) for column in range(4))
        self.up, self.down, self.edge_position, self.outside = up, down, position, edges[:, 4] > 0
        starts = np.flatnonzero(np.append(True, np.diff(group) != 0)) if len(group) else np.empty(0, np.int64)
        self.group_start = np.append(starts, len(group))
        self.group_task = down[starts]
        self.group_needed = self._needed(group[starts], np.diff(self.group_start))
        self.first_group = np.searchsorted(self.group_task, np.arange(tasks + 1))
        self.out_edges = np.argsort(up, kind="stable")
        self.first_out = np.searchsorted(up[self.out_edges], np.arange(tasks + 1))

    def _needed(self, groups: Ints, sizes: Ints) -> Ints:
        found = sizes.copy()
        for at in np.flatnonzero(groups < 0).tolist():
            found[at] = needed(self._rules[int(groups[at])][1], int(sizes[at]))
        return found

    def outgoing(self, tasks: Ints) -> Ints:
        """The edges from these tasks."""
        return np.asarray(self.out_edges[spread(self._at(self.first_out, tasks), self._at(self.first_out, tasks + 1))])

    def incoming(self, tasks: Ints) -> Ints:
        """The edges to these tasks."""
        first, last = self.groups_of(tasks)
        return spread(self.group_start[first], self.group_start[last])

    def groups_of(self, tasks: Ints) -> tuple[Ints, Ints]:
        """For each task, the half-open range of groups that it waits for."""
        return self._at(self.first_group, tasks), self._at(self.first_group, tasks + 1)

    @staticmethod
    def _at(offsets: Ints, tasks: Ints) -> Ints:
        """Offsets of tasks; tasks that are newer than the layout have no edges."""
        found: Ints = offsets[np.minimum(tasks, len(offsets) - 1)]
        return found


def spread(start: Ints, end: Ints) -> Ints:
    """Concatenate the ranges [start, end)."""
    sizes = end - start
    total = int(sizes.sum())
    before = np.cumsum(sizes) - sizes
    found: Ints = np.arange(total, dtype=np.int64) - np.repeat(before - start, sizes)
    return found


def _tasks(payload: Mapping[str, Any]) -> Iterable[str]:
    for chain in payload.get("chains", ()):
        for partition_key in iter_keys(chain["slices"]):
            for stage in chain["stages"]:
                yield task_key(stage, partition_key)
    yield from payload.get("tasks", ())


def _edges(payload: Mapping[str, Any]) -> Iterable[tuple[str, str, str, str, bool]]:
    """Yield upstream, downstream, group, rule of the group, and whether the upstream was published outside the run."""
    for chain in payload.get("chains", ()):
        for partition_key in iter_keys(chain["slices"]):
            for before, after in _pairs(chain["stages"]):
                yield task_key(before, partition_key), task_key(after, partition_key), "", ALL, False
    for up, down in payload.get("edges", ()):
        yield up, down, "", ALL, False
    for group in payload.get("groups", ()):
        name, rule = group["name"], group["rule"]
        for partition_key in iter_keys(group.get("slices", {})):
            yield task_key(Stage.LOAD, partition_key), group["task"], name, rule, False
        for up in group.get("tasks", ()):
            yield up, group["task"], name, rule, False
        for partition_key in iter_keys(group.get("published", {})):
            yield task_key(Stage.LOAD, partition_key), group["task"], name, rule, True


def _pairs(stages: Sequence[str]) -> Iterable[tuple[str, str]]:
    return itertools.pairwise(stages)
