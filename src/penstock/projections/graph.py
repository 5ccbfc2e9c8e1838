"""The shape of one run: tasks, edges, and the groups of edges that a task waits for. Told by plans, never by luck."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import slices
from penstock.lifecycle import Stage

Ints = NDArray[np.int64]

ALL = "all"


def task_key(stage: str, partition_key: str) -> str:
    """`validate:demo/1000000001/campaign_daily/2024-06-01`"""
    return f"{stage}:{partition_key}"


def needed(rule: str, edges: int) -> int:
    """How many edges of a group must be satisfied: `all`, `at least 3`, `share 0.9`."""
    if rule == ALL:
        return edges
    kind, _, amount = rule.rpartition(" ")
    if kind == "at least":
        return int(amount)
    return int(np.ceil(float(amount) * edges - 1e-9))


class RunGraph:
    """Tasks are numbered as they become known; edges lie sorted by the task that waits, and there by their group."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.index: dict[str, int] = {}
        self.plan_position: list[int] = []  # of each task; 0 for one that no plan has told of yet
        self._plans: set[int] = set()  # positions of the plans that are in
        self._edges: dict[tuple[int, int], int] = {}  # (up, down): number of the edge
        self._edge_facts: list[tuple[int, int, int, int, bool]] = []  # up, down, group, position, outside
        self._groups: dict[tuple[int, str], int] = {}  # (task, name): number of the group
        self._rules: list[tuple[int, str]] = []  # position, rule
        self._initials = np.empty(0, np.uint32)
        self._lay_out()

    def number(self, key: str) -> int:
        """The number of a task; one that is heard of for the first time gets the next."""
        found = self.index.get(key)
        if found is None:
            found = self.index[key] = len(self.keys)
            self.keys.append(key)
            self.plan_position.append(0)
        return found

    def initials(self) -> NDArray[np.uint32]:
        """The first letter of each task's name, by which most tasks of other stages can be passed over at once."""
        if len(self._initials) < len(self.keys):
            new = "".join(key[:1] or " " for key in self.keys[len(self._initials) :])
            self._initials = np.append(self._initials, np.frombuffer(new.encode("utf-32-le"), np.uint32))
        return self._initials

    def add_plans(self, plans: Iterable[tuple[int, Mapping[str, Any]]]) -> Ints:
        """Take in plans by their positions. Says which tasks are touched; a plan that is in already touches none."""
        touched: set[int] = set()
        for position, payload in plans:
            if position in self._plans:
                continue
            self._plans.add(position)
            if not self.keys and self._begin_with(payload.get("chains", ()), position):
                touched.update(range(len(self.keys)))
                payload = {name: told for name, told in payload.items() if name != "chains"}
            for key in _tasks(payload):
                task = self.number(key)
                self.plan_position[task] = max(self.plan_position[task], position)
                touched.add(task)
            for up, down, name, rule, outside in _edges(payload):
                downstream = self.number(down)
                self._add_edge(
                    self.number(up), downstream, self._group(downstream, name, position, rule), position, outside
                )
                touched.add(downstream)
        if touched:
            self._lay_out()
        return np.fromiter(sorted(touched), np.int64, len(touched))

    def _begin_with(self, chains: Iterable[Mapping[str, Any]], position: int) -> bool:
        """Take in the chains of the first plan at once; the same as one by one, which takes twice as long. False, and
        nothing taken in, if a task is in more than one of them."""
        keys: list[str] = []
        ups: list[int] = []
        for chain in chains:
            names, first = [task_key(stage, "") for stage in chain["stages"]], len(keys)
            keys += [name + partition_key for partition_key in slices.each(chain["slices"]) for name in names]
            ups += [task for task in range(first, len(keys)) if (task - first + 1) % len(names)]
        index = dict(zip(keys, itertools.count()))
        if len(index) < len(keys):
            return False
        self.keys, self.index, self.plan_position = keys, index, [position] * len(keys)
        downs, edges = [up + 1 for up in ups], range(len(ups))
        self._edges = dict(zip(zip(ups, downs, strict=True), edges, strict=True))
        self._edge_facts = [(up, down, edge, position, False) for up, down, edge in zip(ups, downs, edges, strict=True)]
        self._groups = {(down, ""): edge for down, edge in zip(downs, edges, strict=True)}
        self._rules = [(position, ALL)] * len(ups)
        return True

    def _group(self, task: int, name: str, position: int, rule: str) -> int:
        number = self._groups.setdefault((task, name), len(self._rules))
        if number == len(self._rules):
            self._rules.append((position, rule))
        elif position < self._rules[number][0]:  # told twice: the first plan holds, in whatever order they come
            self._rules[number] = (position, rule)
        return number

    def _add_edge(self, up: int, down: int, group: int, position: int, outside: bool) -> None:
        number = self._edges.setdefault((up, down), len(self._edge_facts))
        facts = (up, down, group, position, outside)
        if number == len(self._edge_facts):
            self._edge_facts.append(facts)
        elif position < self._edge_facts[number][3]:
            self._edge_facts[number] = facts

    def _lay_out(self) -> None:
        tasks = len(self.keys)
        facts = np.array(self._edge_facts, np.int64).reshape(-1, 5)
        up, down, group, position, outside = facts[np.lexsort((facts[:, 0], facts[:, 2], facts[:, 1]))].T
        self.up, self.down, self.edge_position, self.outside = up, down, position, outside.astype(bool)
        starts = np.flatnonzero(np.diff(group, prepend=-1)) if len(group) else np.empty(0, np.int64)
        self.group_start = np.append(starts, len(group))
        self.group_task = down[starts]
        self.group_needed = self._needed(group[starts], np.diff(self.group_start))
        self.first_group = np.searchsorted(self.group_task, np.arange(tasks + 1))
        self.out_edges = np.argsort(up, kind="stable")
        self.first_out = np.searchsorted(up[self.out_edges], np.arange(tasks + 1))

    def _needed(self, groups: Ints, sizes: Ints) -> Ints:
        found = sizes.copy()
        for at, group in enumerate(groups.tolist()):
            rule = self._rules[group][1]
            if rule != ALL:
                found[at] = needed(rule, int(sizes[at]))
        return found

    def out_of(self, tasks: Ints) -> Ints:
        """The edges that leave these tasks."""
        return np.asarray(self.out_edges[spread(self._at(self.first_out, tasks), self._at(self.first_out, tasks + 1))])

    def into(self, tasks: Ints) -> Ints:
        """The edges that lead to these tasks."""
        first, last = self.groups_of(tasks)
        return spread(self.group_start[first], self.group_start[last])

    def groups_of(self, tasks: Ints) -> tuple[Ints, Ints]:
        """From which to before which group each task waits for."""
        return self._at(self.first_group, tasks), self._at(self.first_group, tasks + 1)

    @staticmethod
    def _at(offsets: Ints, tasks: Ints) -> Ints:
        """Offsets of tasks; those that were heard of after the last plan have no edges."""
        found: Ints = offsets[np.minimum(tasks, len(offsets) - 1)]
        return found


def spread(start: Ints, end: Ints) -> Ints:
    """All numbers of the ranges [start, end), one range after the other."""
    sizes = end - start
    total = int(sizes.sum())
    before = np.cumsum(sizes) - sizes
    found: Ints = np.arange(total, dtype=np.int64) - np.repeat(before - start, sizes)
    return found


def _tasks(payload: Mapping[str, Any]) -> Iterable[str]:
    for chain in payload.get("chains", ()):
        for partition_key in slices.each(chain["slices"]):
            for stage in chain["stages"]:
                yield task_key(stage, partition_key)
    yield from payload.get("tasks", ())


def _edges(payload: Mapping[str, Any]) -> Iterable[tuple[str, str, str, str, bool]]:
    """Upstream, downstream, group, rule of the group, and whether the upstream was published outside the run."""
    for chain in payload.get("chains", ()):
        for partition_key in slices.each(chain["slices"]):
            for before, after in _pairs(chain["stages"]):
                yield task_key(before, partition_key), task_key(after, partition_key), "", ALL, False
    for up, down in payload.get("edges", ()):
        yield up, down, "", ALL, False
    for group in payload.get("groups", ()):
        name, rule = group["name"], group["rule"]
        for partition_key in slices.each(group.get("slices", {})):
            yield task_key(Stage.LOAD, partition_key), group["task"], name, rule, False
        for up in group.get("tasks", ()):
            yield up, group["task"], name, rule, False
        for partition_key in slices.each(group.get("published", {})):
            yield task_key(Stage.LOAD, partition_key), group["task"], name, rule, True


def _pairs(stages: Sequence[str]) -> Iterable[tuple[str, str]]:
    return itertools.pairwise(stages)
