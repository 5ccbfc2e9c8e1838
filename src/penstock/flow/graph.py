"""A run as a graph of tasks: extract -> validate -> load for each partition; a model waits for loads of its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import PenstockError
from penstock.ledger.events import PlanCreated
from penstock.lifecycle import Stage
from penstock.partition import PartitionKey, RunId
from penstock.partition_set import compact_ranges
from penstock.projections.graph import task_key

STAGES = (Stage.EXTRACT, Stage.VALIDATE, Stage.LOAD)


class GraphRefused(PenstockError):
    """The graph of a run has a duplicate task, an unknown dependency or a cycle."""

    remedy = "Report it: a plan never contains such a graph."


@dataclass(frozen=True, slots=True)
class FanIn:
    """A task that waits for the loads of many partitions, or for as many of them as its rule requires."""

    waiting: PartitionKey
    name: str
    rule: str  # all, at least N, share S
    inside: Sequence[PartitionKey] = ()  # loaded by this run
    published: Sequence[PartitionKey] = ()  # loaded before: satisfied from the start
    stage: Stage = Stage.EXTRACT  # which of its tasks waits


@dataclass(frozen=True, slots=True)
class Graph:
    """The tasks of a run. Raises GraphRefused for cycles, unknown dependencies and duplicate tasks."""

    slices: Sequence[PartitionKey]
    fan_ins: Sequence[FanIn] = ()
    reasons: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _refuse_duplicates(self.slices)
        known = set(self.slices)
        for fan_in in self.fan_ins:
            _refuse_unknown(fan_in, known)
        _refuse_cycles(_needs(self.fan_ins))

    def event(self, run_id: RunId) -> PlanCreated:
        """The graph as the ledger stores it: partitions as ranges and edges by rule, so that ten thousand partitions
        make a small event."""
        chains = [{"stages": list(STAGES), "slices": compact_ranges(self.slices)}] if self.slices else []
        return PlanCreated(run_id, 0, chains, groups=[_group(f) for f in self.fan_ins], reasons=self.reasons)


def _group(fan_in: FanIn) -> dict[str, Any]:
    return {
        "task": task_key(fan_in.stage, str(fan_in.waiting)),
        "name": fan_in.name,
        "rule": fan_in.rule,
        "slices": compact_ranges(fan_in.inside),
        "published": compact_ranges(fan_in.published),
    }


def _needs(fan_ins: Iterable[FanIn]) -> dict[PartitionKey, list[PartitionKey]]:
    needs: dict[PartitionKey, list[PartitionKey]] = {}
    for fan_in in fan_ins:
        needs.setdefault(fan_in.waiting, []).extend(fan_in.inside)
    return needs


def _refuse_duplicates(slices: Iterable[PartitionKey]) -> None:
    seen: set[PartitionKey] = set()
    for key in slices:
        if key in seen:
            raise GraphRefused(f"{key} is planned twice in one run")
        seen.add(key)


def _refuse_unknown(fan_in: FanIn, known: set[PartitionKey]) -> None:
    if fan_in.waiting not in known:
        raise GraphRefused(f"{fan_in.waiting} waits for others but is not planned itself")
    for key in fan_in.inside:
        if key not in known:
            raise GraphRefused(f"{fan_in.waiting} waits for {key}, which this run does not load")
    if not fan_in.inside and not fan_in.published:
        raise GraphRefused(f"{fan_in.waiting} waits for nothing: the group {fan_in.name} is empty")


def _refuse_cycles(needs: Mapping[PartitionKey, Sequence[PartitionKey]]) -> None:
    """Depth-first search along the dependencies. Raises GraphRefused with the first cycle."""
    done: set[PartitionKey] = set()
    for start in needs:
        path: list[PartitionKey] = []
        on_path: set[PartitionKey] = set()
        stack: list[tuple[PartitionKey, bool]] = [(start, True)]
        while stack:
            key, entering = stack.pop()
            if not entering:
                path.pop()
                on_path.discard(key)
                done.add(key)
                continue
            if key in on_path:
                cycle = [*path[path.index(key) :], key]
                raise GraphRefused("a cycle: " + " waits for ".join(map(str, cycle)))
            if key in done:
                continue
            path.append(key)
            on_path.add(key)
            stack.append((key, False))
            stack.extend((other, True) for other in needs.get(key, ()))
