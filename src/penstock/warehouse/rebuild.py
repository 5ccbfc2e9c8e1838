"""Rebuilds the tables of an asset from raw, so that they contain exactly the partitions of the state database.

The order is that of a publication: stage files, prepare, commit behind a fence, record. Readers see the recorded head
until the last step. The next publisher finishes or discards an interrupted rebuild, and a rebuild is idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db import schema
from penstock.errors import WarehouseError
from penstock.partition import PartitionKey, new_ulid
from penstock.warehouse import batch as batches
from penstock.warehouse import due as due_work
from penstock.warehouse.batch import Batch
from penstock.warehouse.catalog import RecordedHead, recorded_heads
from penstock.warehouse.due import Hide, Load
from penstock.warehouse.format import Table, require_columns
from penstock.warehouse.layout import SortKey
from penstock.warehouse.lease import TableLeases
from penstock.warehouse.month_staging import MonthStaging
from penstock.warehouse.publish import Publisher


@dataclass(frozen=True, slots=True)
class TableDamage:
    """The damage of a table at its newest version: unusable files with the reason, and partitions whose rows differ
    from their pointers."""

    files: Mapping[str, str] = field(default_factory=dict)
    partitions: Mapping[PartitionKey, str] = field(default_factory=dict)
    created: str | None = None  # the reason why the table must be created again

    @property
    def is_none(self) -> bool:
        return not (self.files or self.partitions or self.created)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The result of the rebuild of one asset."""

    asset: str
    damage: Mapping[str, TableDamage]  # by table
    loaded: int
    hidden: int
    broken: Mapping[PartitionKey, str]  # raw is unreadable, too: they are hidden and have to be fetched again


_POINTER, _TABLE = schema.warehouse_pointer.c, schema.warehouse_table.c
_HEAD = sa.select(_TABLE.version).where(_TABLE.table_name == _POINTER.table_name).scalar_subquery()
_LOWER_VERSIONS = sa.update(schema.warehouse_pointer).where(_POINTER.table_version > _HEAD).values(table_version=_HEAD)

Examine = Callable[[Table], TableDamage]  # reads all rows of a table at the version at which it is open


class Rebuilder:
    """Rebuilds tables with the leases, fences and records of a publisher."""

    def __init__(self, publisher: Publisher, examine: Examine) -> None:
        self._publisher = publisher
        self._examine = examine
        self._database = publisher.database
        self._format = publisher.format

    def preview(self, heads: Collection[RecordedHead]) -> dict[str, TableDamage]:
        """The damage that a rebuild of these tables would repair. Changes nothing."""
        found = {}
        for head in heads:
            problem = self._problem(head)
            found[head.name] = self._lost(head, problem) if problem else self._examined(head)
        return found

    def rebuild(self, asset: str) -> Rebuilt:
        """Repair all tables of an asset in one publication."""
        leases = TableLeases(self._database, self._publisher.worker_token)
        try:
            with self._database.snapshot() as connection:
                names = {head.name for head in recorded_heads(connection) if head.name.rpartition(".")[0] == asset}
            # Includes the tables of prepared publications, because these tables change together.
            return self._rebuild(asset, self._publisher.lease(leases, due_work.DueTables({}, names)), leases)
        finally:
            leases.release()

    def _rebuild(self, asset: str, names: Sequence[str], leases: TableLeases) -> Rebuilt:
        with self._database.snapshot() as connection:
            heads = {head.name: head for head in recorded_heads(connection, names)}
        created = {name: problem for name in names if (problem := self._problem(heads[name]))}
        mine = {name: self._opened(heads[name], name in created) for name in names}
        self._discard_prepared(leases, names)
        damage = {}
        for name, table in mine.items():
            found = self._examine(table)
            damage[name] = TableDamage(found.files, found.partitions, created.get(name))
        wrong = sorted({key for found in damage.values() for key in found.partitions})
        items = self._database.transact(lambda connection: due_work.load_again(connection, wrong))
        # The next publication loads a partition whose new table does not exist yet.
        loads = [item for item in items if isinstance(item, Load) and item.table in mine]
        hides = [hide for item in items if isinstance(item, Hide) or item.table not in mine if (hide := _hidden(item))]
        unwanted = {name: {_sort_key(key) for key in found.partitions} for name, found in damage.items()}
        staging = MonthStaging(
            mine,
            self._publisher.fields_of,
            self._publisher.stage,
            self._publisher.workers,
            lost={name: set(found.files) for name, found in damage.items()},
            unwanted=unwanted,
        )
        broken: dict[PartitionKey, str] = {}
        wanted = {load.key: load for load in loads}
        loads = staging.run(loads, hides, self._publisher.authority, broken)
        # Partitions with broken raw runs, or with a newer run by now: their old rows leave the table, too.
        others = wanted.keys() - {load.key for load in loads}
        hides += [hide for key in sorted(others) if (hide := _hidden(wanted[key]))]
        batch = Batch(new_ulid(), staging.changes())
        loaded, hidden = self._publisher.commit(None, leases, mine, batch, loads, hides, "rebuild")
        # A table that was created again starts at version zero, and a pointer must name an existing version. Every
        # rebuild lowers the versions, so the next one completes a rebuild that died before this line.
        self._database.transact(lambda connection: connection.execute(_LOWER_VERSIONS))
        return Rebuilt(asset, damage, loaded, hidden, broken)

    def _problem(self, head: RecordedHead) -> str | None:
        """The reason why the table must be created again; None if its log is usable."""
        if not self._format.exists(head.location):
            return None if head.version is None else "there is no Delta table"
        try:
            table = self._format.open(head.name, head.location)
            require_columns(table, self._publisher.fields_of(head.name))
            table.files()
        except WarehouseError as error:
            return f"its Delta log cannot be used: {error}"
        return None

    def _lost(self, head: RecordedHead, problem: str) -> TableDamage:
        """The damage of a lost table: all its partitions have to be loaded again."""
        pointer = schema.warehouse_pointer.c
        served = sa.and_(pointer.table_name == head.name, pointer.hidden_at.is_(None), pointer.record_count > 0)
        with self._database.snapshot() as connection:
            rows = connection.execute(sa.select(*(pointer[name] for name in schema.KEY)).where(served)).all()
        return TableDamage(partitions=dict.fromkeys((PartitionKey(*row) for row in rows), problem), created=problem)

    def _examined(self, head: RecordedHead) -> TableDamage:
        if not self._format.exists(head.location):
            return TableDamage()
        return self._examine(self._format.open(head.name, head.location))

    def _opened(self, head: RecordedHead, create: bool) -> Table:
        """The table behind a new fence. Deletes an unusable log first: all rows come from raw."""
        if create:
            self._format.reset(head.location)
        self._format.create(head.location, self._publisher.fields_of(head.name))
        return self._format.open(head.name, head.location).fence()

    def _discard_prepared(self, leases: TableLeases, tables: Collection[str]) -> None:
        """Discard the prepared publications of other processes. Their commits are examined with the rest of the table,
        and their partitions are still due."""
        with self._database.snapshot() as connection:
            unfinished = batches.prepared_batches(connection, sorted(tables))

        def discard(connection: Connection) -> None:
            for batch in unfinished:
                batches.adopt(connection, batch, leases.token)
                batches.discard(connection, batch, leases.token, self._publisher.clock())

        self._database.transact(discard)


def _hidden(item: Load | Hide) -> Hide | None:
    """The item that removes the partition from its table; None if no table serves it. A run that was to be loaded stays
    due, because the hide has an older authority version."""
    if isinstance(item, Hide):
        return item
    return Hide(item.key, item.instead_of, item.authority_version - 1) if item.instead_of else None


def _sort_key(key: PartitionKey) -> SortKey:
    return (key.logical_date, key.customer_id)
