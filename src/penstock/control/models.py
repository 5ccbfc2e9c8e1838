"""What a run makes of models: slices whose inputs are there, or come with the same run, and that need making."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime

from penstock.config.assets import Model
from penstock.contract.contract import Contract
from penstock.control.plan import planned
from penstock.control.ranges import clip_to_keys
from penstock.derived import Derived, in_order
from penstock.expected import ExpectedRange
from penstock.flow.graph import FanIn
from penstock.flow.stages import REFRESH
from penstock.lifecycle import PartitionStatus
from penstock.partition import ALL_CUSTOMERS, PartitionKey
from penstock.state.reader import StateReader
from penstock.state.records import Candidate, Planned
from penstock.warehouse.readiness import Rule

STALE = "stale"

Available = Callable[[Sequence[ExpectedRange]], set[PartitionKey]]


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """Slices of models to make, what each waits for, and how many are due but lack inputs that nobody brings."""

    items: Sequence[Planned] = ()
    fan_ins: Sequence[FanIn] = ()
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class TodaysModels:
    """A plan without what cannot be made: how many slices were left out, and why."""

    items: Sequence[Planned]
    fan_ins: Sequence[FanIn] = ()
    left_out: int = 0
    troubles: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ModelPlanner:
    """Plans slices of models. `available` says which slices a model may read; `stale` which were overtaken."""

    reader: StateReader
    derived: Derived
    contracts: Mapping[str, Contract]
    available: Available
    stale: Callable[[], Collection[PartitionKey]]

    def plan(
        self,
        ranges: Sequence[ExpectedRange],
        inside: Collection[PartitionKey],
        now: datetime,
        reasons: Sequence[str],
        status: PartitionStatus | None = None,
    ) -> ModelPlan:
        """What to make in these ranges of models, in a run that brings the slices `inside`."""
        coming = set(inside)
        overtaken = set[PartitionKey]() if "success" in reasons else set(self.stale())
        items: list[Planned] = []
        fan_ins: list[FanIn] = []
        waiting = 0
        for model in in_order(self.derived.settings.models):
            mine = [span for span in ranges if span.query_name == model.name]
            found = self._candidates(model, mine, coming, overtaken, now, reasons, status) if mine else []
            inputs = {candidate.key: self.derived.inputs(candidate.key) for candidate in found}
            there = self.available(_around(inputs.values())) if inputs else set[PartitionKey]()
            for candidate in found:
                groups = _groups(model, candidate.key, inputs[candidate.key], coming, there)
                if groups is None:
                    waiting += 1
                    continue
                fan_ins += groups
                items.append(self._planned(candidate))
            coming.update(item.key for item in items if item.key.query_name == model.name)
        return ModelPlan(items, fan_ins, waiting)

    def still_due(
        self, ranges: Sequence[ExpectedRange], keys: Collection[PartitionKey], now: datetime, reasons: Sequence[str]
    ) -> list[Planned]:
        """What of these slices, planned by a run that died, is to be made yet. What was planned because its inputs
        might change is success still: whether they did, is seen when it is ready."""
        again = () if "success" in reasons else ("success",)
        return [
            self._planned(replace(candidate, reason=REFRESH) if candidate.reason in again else candidate)
            for candidate in self.reader.candidates(ranges, (*reasons, *again), now, {})
            if candidate.key in keys and not (candidate.held and candidate.reason in again)
        ]

    def _planned(self, candidate: Candidate) -> Planned:
        contract = self.contracts[candidate.key.query_name]
        return planned(candidate, contract.fingerprint, contract.schema_version)

    def _candidates(
        self,
        model: Model,
        ranges: Sequence[ExpectedRange],
        coming: Collection[PartitionKey],
        overtaken: Collection[PartitionKey],
        now: datetime,
        reasons: Sequence[str],
        status: PartitionStatus | None,
    ) -> list[Candidate]:
        """What is due by itself, and what is to be made again because something that went into it changed or may."""
        due = self.reader.candidates(ranges, reasons, now, {}, status=status)
        if not model.refresh or "success" in reasons:
            return due
        touched = self.derived.outputs(model.name, coming)
        again = clip_to_keys(ranges, [*overtaken, *touched])
        made = self.reader.candidates(again, ("success",), now, {}, status=status) if again else []
        return [
            *due,
            *(
                replace(candidate, reason=STALE if candidate.key in overtaken else REFRESH)
                for candidate in made
                if not candidate.held and (candidate.key in overtaken or candidate.key in touched)
            ),
        ]


def _groups(
    model: Model,
    key: PartitionKey,
    inputs: Mapping[str, Sequence[PartitionKey]],
    coming: Collection[PartitionKey],
    there: Collection[PartitionKey],
) -> list[FanIn] | None:
    """What the slice waits for, table by table; None if its rule cannot hold in this run."""
    rule, groups = Rule(model.require), list[FanIn]()
    for table, keys in inputs.items():
        inside = [one for one in keys if one in coming]
        published = [one for one in keys if one not in coming and one in there]
        needed = rule.needed(len(keys))
        if len(inside) + len(published) < needed:
            return None
        if inside or published:
            groups.append(FanIn(key, table, _words(needed, len(inside) + len(published)), inside, published))
    return groups or None


def _words(needed: int, edges: int) -> str:
    return "all" if needed == edges else f"at least {needed}"


def _around(inputs: Collection[Mapping[str, Sequence[PartitionKey]]]) -> list[ExpectedRange]:
    """The days of each table, for whichever customer."""
    days: dict[tuple[str, str], tuple[date, date]] = {}
    for tables in inputs:
        for keys in tables.values():
            for key in keys:
                first, last = days.get((key.source, key.query_name), (key.logical_date, key.logical_date))
                days[key.source, key.query_name] = (min(first, key.logical_date), max(last, key.logical_date))
    return [ExpectedRange(source, ALL_CUSTOMERS, name, first, last) for (source, name), (first, last) in days.items()]
