"""A run as a graph: every slice goes extract -> validate -> load, and a model waits for the loads that it reads."""

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
    """The tasks and edges of a run make no sense together."""

    remedy = "Report it: a plan never contains such a graph."


@dataclass(frozen=True, slots=True)
class FanIn:
    """A task that waits for the loads of many partitions, or as many of them as its rule asks for."""

    waiting: PartitionKey
    name: str
    rule: str  # all, at least N, share S
    inside: Sequence[PartitionKey] = ()  # loaded by this run
    published: Sequence[PartitionKey] = ()  # loaded before: satisfied from the start
    stage: Stage = Stage.EXTRACT  # which of its tasks waits


@dataclass(frozen=True, slots=True)
class Graph:
    """What a run is going to do. Refused when it has cycles, unknown dependencies or the same task twice."""

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
        """The graph as the ledger keeps it: slices as ranges, edges by rule, so that ten thousand cost little."""
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
    """Walk along what each waits for; whoever is met again on the same walk closes a cycle, and is shown."""
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
