"""The missing partitions of a model whose inputs cannot be read, and the days of those inputs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import NamedTuple, Self

from penstock.config.assets import Model
from penstock.control.ranges import clip_days
from penstock.derived import Derived
from penstock.expected import ExpectedRange
from penstock.partition import PartitionKey
from penstock.state.missing import MissingState
from penstock.warehouse.readiness import Rule

_DAY = timedelta(days=1)


class InputDays(NamedTuple):
    """Days of an input table that a partition of a model waits for, and the rule of the model."""

    name: str
    first: date
    last: date
    rule: Rule


class Shortage(NamedTuple):
    """The input partitions of one table that cannot be read, of all that a partition of a model reads."""

    table: str
    absent: int
    total: int

    def __str__(self) -> str:
        return f"{self.absent:,} of {self.total:,} partitions of {self.table} cannot be read"


@dataclass(frozen=True, slots=True)
class LackingInputs:
    """Partitions of a model that lack inputs: by state, and what each lacks."""

    model: Model
    states: Mapping[MissingState, Sequence[PartitionKey]]
    shortages: Mapping[PartitionKey, Sequence[Shortage]]

    @classmethod
    def of(
        cls,
        model: Model,
        derived: Derived,
        keys: Mapping[MissingState, Sequence[PartitionKey]],
        unusable: Callable[[Sequence[ExpectedRange]], Sequence[PartitionKey]],
    ) -> Self:
        """Compare these partitions with their inputs. `unusable` returns the partitions that a model may not read, and
        is called once for each input table."""
        named = [key for some in keys.values() for key in some]
        if not named:
            return cls(model, {}, {})
        first = min(key.logical_date for key in named) - (model.needs - 1) * _DAY
        last = max(key.logical_date for key in named)
        tables = [_InputTable.of(table, derived, first, last, unusable) for table in model.depends_on]
        rule, shortages = Rule(model.require), dict[PartitionKey, list[Shortage]]()
        for key in named:
            found = [table.shortage(model, key) for table in tables]
            short = [one for one in found if one.total - one.absent < rule.needed(one.total)]
            if short:
                shortages[key] = short
        return cls(model, {state: [key for key in some if key in shortages] for state, some in keys.items()}, shortages)

    def keys(self, day: date, state: MissingState) -> list[PartitionKey]:
        """The partitions of one day and state that lack inputs."""
        return [key for key in self.states.get(state, ()) if key.logical_date == day]

    def tables(self, day: date) -> list[InputDays]:
        """The input tables and days that the partitions of one day wait for."""
        named = {one.table for key, short in self.shortages.items() if key.logical_date == day for one in short}
        first, rule = day - (self.model.needs - 1) * _DAY, Rule(self.model.require)
        return [
            InputDays(table.partition(".")[2], first, day, rule) for table in self.model.depends_on if table in named
        ]

    def describe(self, key: PartitionKey) -> str:
        return "; ".join(map(str, self.shortages[key]))


@dataclass(frozen=True, slots=True)
class _InputTable:
    """The expected days of an input table, and those that a model may not read, by customer."""

    table: str
    ranges: Mapping[str, ExpectedRange]
    unusable: Mapping[str, Sequence[date]]  # sorted
    all_unusable: Sequence[date]  # of all customers, sorted

    @classmethod
    def of(
        cls,
        table: str,
        derived: Derived,
        first: date,
        last: date,
        unusable: Callable[[Sequence[ExpectedRange]], Sequence[PartitionKey]],
    ) -> Self:
        ranges = derived.ranges(table.partition(".")[2])
        clipped = clip_days(ranges.values(), first, last)
        found: dict[str, list[date]] = {}
        for key in unusable(clipped) if clipped else ():
            found.setdefault(key.customer_id, []).append(key.logical_date)
        by_customer = {customer: sorted(days) for customer, days in found.items()}
        return cls(table, ranges, by_customer, sorted(day for days in found.values() for day in days))

    def shortage(self, model: Model, key: PartitionKey) -> Shortage:
        """How many of the inputs of a partition cannot be read."""
        first, last = key.logical_date - (model.needs - 1) * _DAY, key.logical_date
        if model.per_customer and key.customer_id in self.ranges:
            spans, days = [self.ranges[key.customer_id]], self.unusable.get(key.customer_id, ())
        else:
            spans, days = list(self.ranges.values()), self.all_unusable
        total = sum(max(0, (min(span.last, last) - max(span.first, first)).days + 1) for span in spans)
        return Shortage(self.table, bisect_right(days, last) - bisect_left(days, first), total)
