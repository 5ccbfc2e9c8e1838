"""Stages the months that a publication changes, and stages a month again if a partition drops out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.partition import PartitionKey
from penstock.warehouse.batch import TableChange
from penstock.warehouse.due import Hide, Load
from penstock.warehouse.format import Table, require_columns
from penstock.warehouse.layout import SortKey, month_of
from penstock.warehouse.packing import MonthPlan, Part, by_month, plan_month
from penstock.warehouse.staging import PartStaged, StagePart, Stager


@dataclass(slots=True)
class _Month:
    """The staging work of one month of one table."""

    plan: MonthPlan
    staged: list[PartStaged] | None = None


class MonthStaging:
    """Stages months, and stages a month again without the items that dropped out of it.

    `lost` are the damaged files of each table, which are removed without being read. `unwanted` are the partitions of
    each table whose rows are removed.
    """

    def __init__(
        self,
        opened: Mapping[str, Table],
        fields_of: Callable[[str], pa.Schema],
        stage: Stager,
        workers: int,
        *,
        lost: Mapping[str, Collection[str]] | None = None,
        unwanted: Mapping[str, Collection[SortKey]] | None = None,
    ) -> None:
        self._tables = opened
        self._lost = lost or {}
        self._unwanted = unwanted or {}
        self._files = {
            name: [file for file in table.files() if file.path not in self._lost.get(name, ())]
            for name, table in opened.items()
        }
        self._fields = {name: fields_of(name) for name in opened}
        self._stage = stage
        self._workers = workers
        self._months: dict[tuple[str, str], _Month] = {}
        for name, table in opened.items():
            require_columns(table, self._fields[name])

    def run(
        self,
        loads: list[Load],
        hides: Sequence[Hide],
        authority: Callable[[Sequence[Load]], set[PartitionKey]],
        broken: dict[PartitionKey, str],
    ) -> list[Load]:
        """Stage until every load is readable and still authoritative. Returns the remaining loads; adds unreadable
        partitions to `broken`."""
        self._plan(loads, hides, None)
        while True:
            failed = self._stage_planned(loads)
            broken.update(failed)
            vouched = authority(loads)
            out = {load.key for load in loads if load.key in failed or load.key not in vouched}
            if not out:
                return loads
            touched = {
                (table, month_of(load.key.logical_date))
                for load in loads
                if load.key in out
                for table in (load.table, load.instead_of)
                if table
            }
            loads = [load for load in loads if load.key not in out]
            self._plan(loads, hides, touched)

    def changes(self) -> dict[str, TableChange]:
        """The files to add and to remove, by table."""
        changes = {}
        for name in self._tables:
            months = [month for (table, _), month in self._months.items() if table == name]
            add = tuple(f for month in months for piece in month.staged or () for f in piece.files)
            rewritten = [path for month in months for path in month.plan.rewritten]
            changes[name] = TableChange(add, (*sorted(self._lost.get(name, ())), *rewritten))
        # A table without file changes gets a commit, too: its head must include empty slices.
        return changes

    def _plan(self, loads: Sequence[Load], hides: Sequence[Hide], only: set[tuple[str, str]] | None) -> None:
        dropped = _dropped(loads, hides)
        for name, keys in self._unwanted.items():
            dropped.setdefault(name, set()).update(keys)
        for name in self._tables:
            slices = by_month([load.slice for load in loads if load.table == name])
            gone: dict[str, set[SortKey]] = {}
            for key in dropped.get(name, ()):
                gone.setdefault(month_of(key[0]), set()).add(key)
            for month in {*slices, *gone, *(m for table, m in only or () if table == name)}:
                if only is not None and (name, month) not in only:
                    continue
                files = [file for file in self._files[name] if file.month == month]
                plan = plan_month(month, files, slices.get(month, ()), gone.get(month, set()), self._workers)
                self._months[name, month] = _Month(plan)
        self._gone_by_month: dict[tuple[str, str], set[SortKey]] = {}
        for name, keys in dropped.items():
            for key in keys:
                self._gone_by_month.setdefault((name, month_of(key[0])), set()).add(key)

    def _gone_from(self, table: str, part: Part) -> frozenset[SortKey]:
        return frozenset(self._gone_by_month.get((table, part.month), ())) if part.files else frozenset()

    def _stage_planned(self, loads: Sequence[Load]) -> dict[PartitionKey, str]:
        todo = [(name, month) for (name, _), month in self._months.items() if month.staged is None]
        parts = [
            StagePart(name, self._tables[name].path, self._fields[name], self._gone_from(name, part), part)
            for name, month in todo
            for part in month.plan.parts
        ]
        contracts = {load.key: load.contract_fingerprint for load in loads}
        staged = iter(self._stage(parts, contracts) if parts else ())
        failed: dict[PartitionKey, str] = {}
        for _, month in todo:
            month.staged = [next(staged) for _ in month.plan.parts]
            for piece in month.staged:
                failed.update(piece.broken)
        return failed


def _dropped(loads: Sequence[Load], hides: Sequence[Hide]) -> dict[str, set[SortKey]]:
    """The partitions whose old rows are removed, by table."""
    dropped: dict[str, set[SortKey]] = {}
    for load in loads:
        if load.instead_of:
            dropped.setdefault(load.instead_of, set()).add(load.slice.sort_key)
    for hide in hides:
        dropped.setdefault(hide.table, set()).add((hide.key.logical_date, hide.key.customer_id))
    return dropped
