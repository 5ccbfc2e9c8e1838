"""Derived partitions: which partitions of a model are expected, and which input partitions each is computed from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from graphlib import TopologicalSorter

from penstock.config.assets import Model
from penstock.config.settings import Settings
from penstock.expected import ExpectedRange
from penstock.partition import ALL_CUSTOMERS, MODELS, AssetKind, PartitionKey, asset_kind

_DAY = timedelta(days=1)

Ranges = Mapping[str, ExpectedRange]  # of one asset, by customer; an empty range if its first day is not over
RangesOf = Callable[[str], Ranges]  # of a query, by its name


def in_order(models: Mapping[str, Model]) -> list[Model]:
    """Return the models in topological order: each after its inputs."""
    needs = {name: [_name(table) for table in model.depends_on if _is_model(table)] for name, model in models.items()}
    return [models[name] for name in TopologicalSorter(needs).static_order()]


def reads_own(model: Model, table: str, models: Mapping[str, Model]) -> bool:
    """Whether a partition of the model reads only partitions of its own customer from this table."""
    upstream = models.get(_name(table)) if _is_model(table) else None
    return model.per_customer and (upstream is None or upstream.per_customer)


@dataclass(frozen=True, slots=True)
class Derived:
    """The models of a workspace at one moment. The ranges of an asset are computed once."""

    settings: Settings
    of_query: RangesOf
    _known: dict[str, Ranges] = field(default_factory=dict, repr=False)

    def ranges(self, name: str) -> Ranges:
        """The expected days of a query or a model, by customer."""
        if name not in self._known:
            model = self.settings.models.get(name)
            self._known[name] = self.of_query(name) if model is None else self._model_ranges(model)
        return self._known[name]

    def inputs(self, key: PartitionKey) -> dict[str, list[PartitionKey]]:
        """The input partitions of a partition of a model, by table: the expected ones inside its window."""
        model = self.settings.models[key.query_name]
        first = key.logical_date - (model.needs - 1) * _DAY
        found: dict[str, list[PartitionKey]] = {}
        for table in model.depends_on:
            ranges = self.ranges(_name(table))
            mine = (
                [ranges[key.customer_id]] if model.per_customer and key.customer_id in ranges else list(ranges.values())
            )
            found[table] = [one for span in mine for one in _days(span, first, key.logical_date)]
        return found

    def outputs(self, name: str, inputs: Iterable[PartitionKey]) -> set[PartitionKey]:
        """The partitions of a model that have one of these as input, for the customers that the model has."""
        model = self.settings.models[name]
        customers = self.ranges(name)
        found: set[PartitionKey] = set()
        for key in inputs:
            if key.asset not in model.depends_on:
                continue
            mine = [key.customer_id] if model.per_customer and key.customer_id != ALL_CUSTOMERS else customers
            for later in range(model.needs):
                day = key.logical_date + later * _DAY
                found.update(PartitionKey(MODELS, customer, name, day) for customer in mine)
        return found

    def _model_ranges(self, model: Model) -> Ranges:
        """A partition is due when the day is over for every customer among its inputs."""
        inputs = [self.ranges(_name(table)) for table in model.depends_on]
        if not all(inputs):
            return {}
        if not model.per_customer:
            return {
                ALL_CUSTOMERS: _expected(model, ALL_CUSTOMERS, [_union(list(ranges.values())) for ranges in inputs])
            }
        single = [ranges for ranges in inputs if ALL_CUSTOMERS not in ranges]
        shared = [ranges[ALL_CUSTOMERS] for ranges in inputs if ALL_CUSTOMERS in ranges]
        customers = set(single[0]).intersection(*single[1:]) if single else set()
        return {
            customer: _expected(model, customer, [*(ranges[customer] for ranges in single), *shared])
            for customer in sorted(customers)
        }


def _expected(model: Model, customer_id: str, inputs: Sequence[ExpectedRange]) -> ExpectedRange:
    first, last = max(span.first for span in inputs), min(span.last for span in inputs)
    over = min(span.over or span.last for span in inputs)
    return ExpectedRange(MODELS, customer_id, model.name, first, last, over)


def _union(spans: Sequence[ExpectedRange]) -> ExpectedRange:
    """All customers of an asset as one range: from the first day of any to the last day that is over for all active
    customers. A customer that begins later does not delay earlier days."""
    going_on = [max(span.last, span.first - _DAY) for span in spans if span.last == (span.over or span.last)]
    last = min(going_on) if going_on else max(span.last for span in spans)
    some = spans[0]
    return ExpectedRange(some.source, ALL_CUSTOMERS, some.query_name, min(span.first for span in spans), last, last)


def _days(span: ExpectedRange, first: date, last: date) -> Iterator[PartitionKey]:
    day = max(span.first, first)
    while day <= min(span.last, last):
        yield PartitionKey(span.source, span.customer_id, span.query_name, day)
        day += _DAY


def _is_model(table: str) -> bool:
    return asset_kind(table.partition(".")[0]) is AssetKind.DERIVED


def _name(table: str) -> str:
    """`daily` of `demo.daily`: names of queries and models are unique in a workspace."""
    return table.partition(".")[2]
