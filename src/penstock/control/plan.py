"""The plan of a run as a value: which partitions are attempted, and why. Previews and execution use the same one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.contract.contract import Contract
from penstock.errors import ConfigError
from penstock.lifecycle import PartitionStatus
from penstock.partition import PartitionKey
from penstock.state.reader import StateReader
from penstock.state.records import ExpectedRange, Planned

_REASONS = {PartitionStatus.SUCCESS: "reprocess"}


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be attempted now. `held` partitions are being worked on by somebody else."""

    items: Sequence[Planned]
    held: int

    def only(self, status: PartitionStatus) -> Plan:
        """The part of the plan that is about partitions of this status."""
        reprocess = _REASONS[PartitionStatus.SUCCESS]
        wanted = {PartitionStatus.SUCCESS: {reprocess}, PartitionStatus.PENDING: {"missing", "requeued"}}.get(
            status, set()
        )
        return replace(self, items=[item for item in self.items if item.reason in wanted])

    @property
    def reasons(self) -> dict[str, int]:
        return dict(Counter(item.reason for item in self.items))


def make_plan(
    reader: StateReader, ranges: Sequence[ExpectedRange], contracts: Mapping[str, Contract], *, reprocess: bool
) -> Plan:
    """Everything pending in `ranges`; with `reprocess` also what is success already. Never what failed:
    only an explicit requeue makes that pending again."""
    statuses = [PartitionStatus.PENDING, *([PartitionStatus.SUCCESS] if reprocess else [])]
    prints = {name: (contract.fingerprint, contract.schema_version) for name, contract in contracts.items()}
    items = []
    for source, customer_id, query_name, day, status, explicit, last in reader.candidates(ranges, statuses):
        reason = _REASONS.get(PartitionStatus(status)) or ("requeued" if explicit else "missing")
        items.append(Planned(PartitionKey(source, customer_id, query_name, day), last, reason, *prints[query_name]))
    return Plan(items, reader.held(ranges))


def refuse_changed_fields(reader: StateReader, contracts: Mapping[str, Contract]) -> None:
    """Fields may change only together with `schema_version`: a table never holds rows of two shapes."""
    for row in reader.contracts():
        today = contracts.get(row.query_name)
        if today is None or (row.source, row.schema_version) != (today.source, today.schema_version):
            continue
        before = {field["name"]: field["type"] for field in row.body["fields"]}
        now = {field.name: field.type for field in today.fields}
        if before != now:
            raise ConfigError(
                f"queries.{today.query_name}: its fields changed but schema_version is still {today.schema_version}"
                f" ({_difference(before, now)}): give it a new schema_version"
            )


def _difference(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    words = [f"{name} {kind} was removed" for name, kind in before.items() if name not in now]
    words += [f"{name} {kind} was added" for name, kind in now.items() if name not in before]
    words += [f"{name} was {before[name]}, is {kind}" for name, kind in now.items() if before.get(name, kind) != kind]
    return "; ".join(words)
