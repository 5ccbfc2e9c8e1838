"""Plans partitions of models: those that are due and whose inputs are published or loaded by the same run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from penstock.config.assets import Model
from penstock.contract.contract import Contract
from penstock.control.plan import planned
from penstock.control.ranges import clip_to_keys
from penstock.derived import Derived, in_order
from penstock.expected import ExpectedRange
from penstock.flow.graph import FanIn
from penstock.lifecycle import AttemptReason, PartitionStatus, PlanReason
from penstock.partition import ALL_CUSTOMERS, PartitionKey
from penstock.state.reader import StateReader
from penstock.state.records import Candidate, Planned
from penstock.warehouse.readiness import Rule

Available = Callable[[Sequence[ExpectedRange]], set[PartitionKey]]


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """Partitions of models to derive, what each waits for, and the number of due ones without inputs (`waiting`)."""

    items: Sequence[Planned] = ()
    fan_ins: Sequence[FanIn] = ()
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class TodaysModels:
    """A plan without the models that cannot be derived: the number of partitions left out, and the reasons."""

    items: Sequence[Planned]
    fan_ins: Sequence[FanIn] = ()
    left_out: int = 0
    problems: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ModelPlanner:
    """Plans partitions of models. `available` returns the partitions that a model may read; `stale` those whose inputs
    were replaced."""

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
        reasons: Sequence[PlanReason],
        status: PartitionStatus | None = None,
    ) -> ModelPlan:
        """Plan the partitions of models in these ranges, for a run that loads the partitions `inside`."""
        coming = set(inside)
        overtaken = set[PartitionKey]() if PlanReason.SUCCESS in reasons else set(self.stale())
        items: list[Planned] = []
        fan_ins: list[FanIn] = []
        waiting = 0
        for model in in_order(self.derived.settings.models):
            mine = [span for span in ranges if span.query_name == model.name]
            due = self._due(model, mine, coming, overtaken, now, reasons, status) if mine else []
            inputs = {item.key: self.derived.inputs(item.key) for item in due}
            published = self.available(_days_of_tables(inputs.values())) if inputs else set[PartitionKey]()
            for item in due:
                groups = _fan_ins(model, item.key, inputs[item.key], coming, published)
                if groups is None:
                    waiting += 1
                    continue
                fan_ins += groups
                items.append(item)
            coming.update(item.key for item in items if item.key.query_name == model.name)
        return ModelPlan(items, fan_ins, waiting)

    def still_due(
        self,
        ranges: Sequence[ExpectedRange],
        keys: Collection[PartitionKey],
        now: datetime,
        reasons: Sequence[PlanReason],
    ) -> list[Planned]:
        """The partitions among `keys`, planned by a run that died, that are still to be derived. A partition that was
        planned because its inputs might change is still accepted: the extract stage finds out whether they did."""
        again = () if PlanReason.SUCCESS in reasons else (PlanReason.SUCCESS,)
        return [
            self._planned(candidate, AttemptReason.REFRESH if candidate.reason in again else None)
            for candidate in self.reader.candidates(ranges, (*reasons, *again), now, {})
            if candidate.key in keys and not (candidate.held and candidate.reason in again)
        ]

    def _planned(self, candidate: Candidate, reason: AttemptReason | None = None) -> Planned:
        contract = self.contracts[candidate.key.query_name]
        return planned(candidate, contract.fingerprint, contract.schema_version, reason)

    def _due(
        self,
        model: Model,
        ranges: Sequence[ExpectedRange],
        coming: Collection[PartitionKey],
        overtaken: Collection[PartitionKey],
        now: datetime,
        reasons: Sequence[PlanReason],
        status: PartitionStatus | None,
    ) -> list[Planned]:
        """The partitions that are due by their own state, and the accepted ones whose inputs changed or may change."""
        due = [self._planned(found) for found in self.reader.candidates(ranges, reasons, now, {}, status=status)]
        if not model.refresh or PlanReason.SUCCESS in reasons:
            return due
        touched = self.derived.outputs(model.name, coming)
        again = clip_to_keys(ranges, [*overtaken, *touched])
        made = self.reader.candidates(again, (PlanReason.SUCCESS,), now, {}, status=status) if again else []
        return [
            *due,
            *(
                self._planned(candidate, AttemptReason.STALE if candidate.key in overtaken else AttemptReason.REFRESH)
                for candidate in made
                if not candidate.held and (candidate.key in overtaken or candidate.key in touched)
            ),
        ]


def _fan_ins(
    model: Model,
    key: PartitionKey,
    inputs: Mapping[str, Sequence[PartitionKey]],
    coming: Collection[PartitionKey],
    available: Collection[PartitionKey],
) -> list[FanIn] | None:
    """The inputs that the partition waits for, by table; None if its rule cannot be met in this run."""
    rule, groups = Rule(model.require), list[FanIn]()
    for table, keys in inputs.items():
        inside = [one for one in keys if one in coming]
        published = [one for one in keys if one not in coming and one in available]
        needed = rule.needed(len(keys))
        if len(inside) + len(published) < needed:
            return None
        if inside or published:
            groups.append(FanIn(key, table, _rule(needed, len(inside) + len(published)), inside, published))
    return groups or None


def _rule(needed: int, edges: int) -> str:
    return "all" if needed == edges else f"at least {needed}"


def _days_of_tables(inputs: Collection[Mapping[str, Sequence[PartitionKey]]]) -> list[ExpectedRange]:
    """The first to the last day of each input table, for all customers."""
    days: dict[tuple[str, str], tuple[date, date]] = {}
    for tables in inputs:
        for keys in tables.values():
            for key in keys:
                first, last = days.get((key.source, key.query_name), (key.logical_date, key.logical_date))
                days[key.source, key.query_name] = (min(first, key.logical_date), max(last, key.logical_date))
    return [ExpectedRange(source, ALL_CUSTOMERS, name, first, last) for (source, name), (first, last) in days.items()]
