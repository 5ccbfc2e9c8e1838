"""Derives partitions of models: the inputs of each are looked up at one moment, recorded, and only then read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING

from penstock.config.assets import Model
from penstock.contract.contract import Contract
from penstock.contract.schema import arrow_schema, spark_type
from penstock.db.engine import Database
from penstock.derived import Derived
from penstock.digests import comparable
from penstock.errors import ConfigError, ErrorClass, PenstockError, WarehouseError
from penstock.failpoint import reach
from penstock.partition import ALL_CUSTOMERS, AttemptKey, PartitionKey
from penstock.pipeline.extract import Extracted
from penstock.pipeline.model import derive
from penstock.pipeline.spark_jobs import Report
from penstock.state.inputs import InputReader, InputStore
from penstock.state.records import Consumed
from penstock.warehouse.damage import damage_of
from penstock.warehouse.diagnosis import explained
from penstock.warehouse.heads import TableHead
from penstock.warehouse.layout import file_schema
from penstock.warehouse.reader import Vouched
from penstock.warehouse.readiness import Rule
from penstock.warehouse.row_filter import Filter
from penstock.warehouse.served import Served, read_served
from penstock.warehouse.version_union import VersionsConflict, unified
from penstock.warehouse.versions import Versions
from penstock.warehouse.withdrawn import trusted_inputs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OTHER = "its inputs changed after the attempt began: a new attempt derives it"
_INCOMPLETE = "its inputs are no longer complete: it is derived when they are"

_Attempts = Sequence[AttemptKey]
_Heads = Mapping[str, Sequence[TableHead]]  # by table


@dataclass(frozen=True, slots=True)
class Deriver:
    """Derives partitions of models. `derived` returns the inputs of each model at the time of the call."""

    database: Database
    versions: Versions
    contracts: Mapping[str, Contract]
    derived: Callable[[], Derived]

    def unchanged(self, keys: Sequence[PartitionKey]) -> list[PartitionKey]:
        """The partitions whose inputs and definition are those of their authoritative run. Leaves out partitions that
        were derived from a demoted run: only a new run records other inputs."""
        derived, found = self.derived(), list[PartitionKey]()
        withdrawn = {one.key for one in trusted_inputs(self.database)}
        for name, mine in _by_model(keys):
            model = derived.settings.models[name]
            before = InputReader(self.database).of_trusted(mine[0].asset, mine)
            served = read_served(self.database, _days(model, mine))
            for key in mine:
                inputs = {one.partition: comparable(one.content_digest) for one in _used(model, key, served)}
                if key not in withdrawn and before.get(key) == (self.contracts[name].fingerprint, inputs):
                    found.append(key)
        return found

    def derive(self, spark: SparkSession, attempts: Sequence[AttemptKey], report: Report) -> list[Extracted]:
        """Derive the partitions of these attempts, model by model."""
        derived, done = self.derived(), list[Extracted]()
        by_key = {attempt.partition: attempt for attempt in attempts}
        for name, keys in _by_model(list(by_key)):
            mine = [by_key[key] for key in keys]
            done += self._derive(spark, derived, derived.settings.models[name], mine, report)
        return done

    def _derive(
        self, spark: SparkSession, derived: Derived, model: Model, attempts: Sequence[AttemptKey], report: Report
    ) -> list[Extracted]:
        days = _days(model, [attempt.partition for attempt in attempts])
        served = read_served(self.database, days)
        complete = [a for a in attempts if _is_complete(model, derived.inputs(a.partition), served)]
        other = InputStore(self.database).record({a: _used(model, a.partition, served) for a in complete})
        mine = [attempt for attempt in complete if attempt not in other]
        left = [
            Extracted.failed(attempt, ErrorClass.TRANSIENT, _OTHER if attempt in other else _INCOMPLETE, judged=False)
            for attempt in sorted(set(attempts) - set(mine))
        ]
        if not mine:
            return left
        reach("derive.recorded")
        try:
            groups = self._groups(model, mine, served)
        except WarehouseError as error:
            return [*left, *_not_derived(mine, error)]
        for some, heads in groups:
            frames = partial(self._frames, spark, model, heads, days)
            left += self._make(spark, model, some, frames, report, alone=len(groups) == 1)
        return left

    def _groups(self, model: Model, attempts: Sequence[AttemptKey], served: Served) -> list[tuple[_Attempts, _Heads]]:
        """The attempts that are derived together, with the tables that they read: all of them, or those that read the
        same schema versions if the versions of an input have conflicting columns."""
        if all(self._fit(table, heads) for table, heads in served.heads.items()):
            return [(attempts, served.heads)]
        groups: dict[frozenset[str], list[AttemptKey]] = {}
        for attempt in attempts:
            groups.setdefault(_heads_of(model, attempt.partition, served), []).append(attempt)
        return [
            (some, {table: [h for h in heads if h.name in names] for table, heads in served.heads.items()})
            for names, some in sorted(groups.items(), key=lambda group: sorted(group[0]))
        ]

    def _fit(self, table: str, heads: Sequence[TableHead]) -> bool:
        contents = (self.versions.contents(h.name, h.location, h.version, h.publication) for h in heads)
        try:
            unified(table, [(head.schema_version, one.columns) for head, one in zip(heads, contents, strict=True)])
        except VersionsConflict:
            return False
        return True

    def _make(
        self,
        spark: SparkSession,
        model: Model,
        attempts: _Attempts,
        frames: Callable[[], dict[str, DataFrame]],
        report: Report,
        *,
        alone: bool,
    ) -> list[Extracted]:
        """Derive these partitions. Other models and partitions are not affected if an input is damaged, if its schema
        versions conflict, or if the code of the model cannot run on the types of one schema version."""
        contract = self.contracts[model.name]
        try:
            return derive(spark, self.versions.lake.url, model, contract, frames(), attempts, report)
        except WarehouseError as error:
            return _not_derived(attempts, error)
        except ConfigError as error:
            if alone:
                raise
            return _not_derived(attempts, error)

    def _frames(
        self, spark: SparkSession, model: Model, heads: _Heads, days: Mapping[str, tuple[date, date]]
    ) -> dict[str, DataFrame]:
        return {table: self._frame(spark, table, heads[table], *days[table]) for table in model.depends_on}

    def _frame(self, spark: SparkSession, table: str, heads: Sequence[TableHead], first: date, last: date) -> DataFrame:
        """The published rows of a table, with every column of its contract: a new one may not be in any table yet."""
        from pyspark.sql import functions as F

        contract = self.contracts[table.partition(".")[2]]
        columns = file_schema(arrow_schema(contract.columns))
        explain = partial(explained, lambda: damage_of(self.database, self.versions, heads))
        frame = Vouched(self.versions, columns, heads, Filter(first, last), explain).spark(spark)
        absent = [field for field in contract.fields if field.name not in frame.columns]
        return frame.withColumns({f.name: F.lit(None).cast(spark_type(f.type)) for f in absent}) if absent else frame


def _not_derived(attempts: _Attempts, error: PenstockError) -> list[Extracted]:
    return [Extracted.failed(attempt, ErrorClass.DATA, str(error), judged=False) for attempt in attempts]


def _heads_of(model: Model, key: PartitionKey, served: Served) -> frozenset[str]:
    """The names of the table heads that hold the inputs of a partition."""
    found = set[str]()
    for table in model.depends_on:
        for day in _window(model, key.logical_date):
            mine = served.served_in.get((table, day), {})
            wanted = (key.customer_id, ALL_CUSTOMERS) if model.per_customer else mine
            found |= {mine[customer] for customer in wanted if customer in mine}
    return frozenset(found)


def _is_complete(model: Model, inputs: Mapping[str, Sequence[PartitionKey]], served: Served) -> bool:
    """True if enough partitions of each table are published for the rule of the model."""
    rule, no_customers = Rule(model.require), dict[str, object]()
    return all(
        sum(key.customer_id in served.runs.get((table, key.logical_date), no_customers) for key in keys)
        >= rule.needed(len(keys))
        for table, keys in inputs.items()
    )


def _used(model: Model, key: PartitionKey, served: Served) -> list[Consumed]:
    """The published runs in the window of a partition. All of them are read, so all are recorded as inputs, also those
    of partitions that are not expected."""
    found = []
    for table in model.depends_on:
        source, _, query_name = table.partition(".")
        for day in _window(model, key.logical_date):
            for customer_id, (run_id, digest) in served.runs.get((table, day), {}).items():
                if not model.per_customer or customer_id in (key.customer_id, ALL_CUSTOMERS):
                    found.append(Consumed(PartitionKey(source, customer_id, query_name, day), run_id, digest))
    return found


def _by_model(keys: Sequence[PartitionKey]) -> list[tuple[str, list[PartitionKey]]]:
    found: dict[str, list[PartitionKey]] = {}
    for key in keys:
        found.setdefault(key.query_name, []).append(key)
    return sorted(found.items())


def _window(model: Model, last: date) -> Iterator[date]:
    for before in reversed(range(model.needs)):
        yield last - timedelta(days=before)


def _days(model: Model, keys: Sequence[PartitionKey]) -> dict[str, tuple[date, date]]:
    """The first and the last day of each table that is read for these partitions."""
    first = next(_window(model, min(key.logical_date for key in keys)))
    return dict.fromkeys(model.depends_on, (first, max(key.logical_date for key in keys)))
