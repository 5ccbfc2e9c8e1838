"""Lineage, one hop: the tables that a table reads and that read it, and the same for one partition."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.app.context import Context
from penstock.control.select import Selection
from penstock.lifecycle import PartitionStatus
from penstock.partition import MODELS, AssetKind, AttemptKey, PartitionKey, RunId
from penstock.state.inputs import InputReader, RecordedInput, RecordedOutput

LISTED = 200  # partitions of one list
_EXAMPLES = 10


@dataclass(frozen=True, slots=True)
class TableLineage:
    """One table with its neighbours."""

    table: str
    source: str | None  # the source that a query reads; None for a model
    inputs: tuple[str, ...]  # the tables that a model reads
    outputs: tuple[str, ...]  # the models that read the table

    @property
    def is_model(self) -> bool:
        return self.source is None


@dataclass(frozen=True, slots=True)
class ExpectedInputs:
    """The input partitions that a partition of a model needs from one table."""

    table: str
    total: int
    first: tuple[PartitionKey, ...]


@dataclass(frozen=True, slots=True)
class PartitionLineage:
    """The runs that a partition was derived from, and the derived runs that read it."""

    key: PartitionKey
    run_id: RunId | None  # the trusted run, or else the newest attempt; None without an attempt
    is_trusted: bool
    expected: tuple[ExpectedInputs, ...]
    inputs: list[RecordedInput]
    inputs_total: int
    outputs: list[RecordedOutput]
    outputs_total: int


def all_tables(context: Context) -> list[TableLineage]:
    """Every table of the workspace, in the order of their names."""
    settings = context.settings
    readers: dict[str, list[str]] = {}
    for model in settings.models.values():
        for table in model.depends_on:
            readers.setdefault(table, []).append(f"{MODELS}.{model.name}")
    named: dict[str, tuple[str | None, tuple[str, ...]]] = {
        f"{query.source}.{query.name}": (query.source, ()) for query in settings.queries.values()
    }
    named |= {f"{MODELS}.{model.name}": (None, tuple(model.depends_on)) for model in settings.models.values()}
    return [
        TableLineage(table, source, tuple(sorted(inputs)), tuple(sorted(readers.get(table, ()))))
        for table, (source, inputs) in sorted(named.items())
    ]


def lineage_of_table(context: Context, table: str) -> TableLineage:
    """One table with its neighbours. Raises UsageError for an unknown table."""
    context.require_tables([table])
    return next(found for found in all_tables(context) if found.table == table)


def lineage_of_partition(context: Context, key: PartitionKey) -> PartitionLineage:
    """The recorded inputs and outputs of one partition. Raises UsageError for unknown names."""
    context.ranges(Selection(keys=(key,)))  # refuses unknown names
    reader, state = InputReader(context.database), context.state.state(key)
    is_trusted = state is not None and state.status is PartitionStatus.SUCCESS
    run_id = state.current_run_id if state is not None and is_trusted else None
    expected: tuple[ExpectedInputs, ...] = ()
    inputs: list[RecordedInput] = []
    total = 0
    if key.kind is AssetKind.DERIVED:
        if run_id is None:
            run_id = next((attempt.run_id for attempt in context.state.attempts(key)), None)
        if run_id is not None:
            inputs, total = reader.inputs_of(AttemptKey(key, run_id), LISTED)
        expected = tuple(
            ExpectedInputs(table, len(keys), tuple(keys[:_EXAMPLES]))
            for table, keys in context.derived().inputs(key).items()
        )
    outputs, outputs_total = reader.outputs_of(key, LISTED)
    return PartitionLineage(key, run_id, is_trusted, expected, inputs, total, outputs, outputs_total)
