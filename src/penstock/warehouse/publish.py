"""The publish protocol: stage files, prepare the batch, commit to the tables behind a fence, then advance the pointers.

The order guarantees safety. Before `prepare`, a publication consists only of files that no table contains. After it,
recovery decides by the tables themselves whether to finish or to discard the publication. Readers use the heads that
the last transaction writes, so they see a publication completely or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
import sqlalchemy as sa

from penstock.clock import Clock
from penstock.db.engine import Database
from penstock.errors import LakeMismatch, WarehouseError
from penstock.failpoint import reach
from penstock.lake import Lake
from penstock.partition import PartitionKey, RunId, new_ulid
from penstock.warehouse import batch as batches
from penstock.warehouse import due as due_work
from penstock.warehouse.batch import Batch, TableChange
from penstock.warehouse.catalog import RecordedHead, recorded_heads, register_tables, tables_of_same_queries
from penstock.warehouse.consistency import examine_opened, examine_table, lake_ahead, unknown_commits
from penstock.warehouse.due import Hide, Load, Settled
from penstock.warehouse.format import DataFile, StagedFile, Table, require_columns, table_format
from penstock.warehouse.lease import TableLeases
from penstock.warehouse.mismatch import Mismatch
from penstock.warehouse.month_staging import MonthStaging
from penstock.warehouse.packing import plan_compaction
from penstock.warehouse.staging import StagePart, Stager

BATCH_PARTITIONS = 50_000


@dataclass(slots=True)
class Publication:
    """The result of `publish`. Tables in `refused` disagree with the database, and nothing was published to them."""

    loaded: int = 0
    hidden: int = 0
    broken: dict[PartitionKey, str] = field(default_factory=dict)
    refused: dict[str, Mismatch] = field(default_factory=dict)

    def add(self, counts: tuple[int, int]) -> None:
        self.loaded += counts[0]
        self.hidden += counts[1]


@dataclass(frozen=True, slots=True)
class Compaction:
    """The numbers of files before and after the compaction of a table."""

    table: str
    before: int
    after: int


class Publisher:
    """Publishes due partitions. Several publishers may run at once; each table has one publisher at a time."""

    def __init__(
        self,
        database: Database,
        lake: Lake,
        clock: Clock,
        worker_token: str,
        fields_of: Callable[[str], pa.Schema],
        stage: Stager,
        workers: int,
    ) -> None:
        self.database = database
        self.lake = lake
        self.format = table_format(lake)
        self.clock = clock
        self.worker_token = worker_token
        self.fields_of = fields_of
        self.stage = stage
        self.workers = workers

    def publish(self, run_id: RunId | None = None) -> Publication:
        """Finish or discard the prepared batches of dead publishers, then publish all due partitions, batch by batch.
        Skips and reports tables that disagree with the database."""
        done = Publication()
        while True:
            leases = TableLeases(self.database, self.worker_token)
            try:
                if not self._publish_batch(run_id, leases, done):
                    return done
            finally:
                leases.release()

    @contextmanager
    def holding(self, tables: Collection[str]) -> Iterator[tuple[dict[str, Table], TableLeases]]:
        """The tables under a lease and behind a fence, without prepared publications. Raises LakeMismatch if a table
        disagrees with the database."""
        leases = TableLeases(self.database, self.worker_token)
        done = Publication()
        try:
            held = self.lease(leases, due_work.DueTables({}, set(tables)))
            opened = self._recover(leases, held, done)
            for mismatch in done.refused.values():
                raise LakeMismatch(mismatch.message)
            yield opened, leases
        finally:
            leases.release()

    def compact(self, table: str) -> Compaction:
        """Merge the small files of each month. Readers see the same rows and runs.

        A compaction is a publication without partitions: if it is interrupted, the next publisher finishes it.
        """
        with self.holding([table]) as (opened, leases):
            held = opened[table]
            require_columns(held, self.fields_of(table))
            files = held.files()
            months = [plan_compaction(month, files, self.workers) for month in sorted({f.month for f in files})]
            parts = [
                StagePart(table, held.path, self.fields_of(table), frozenset(), part)
                for month in months
                for part in month.parts
            ]
            removed = [path for month in months for path in month.rewritten]
            if not parts:
                return Compaction(table, 0, 0)
            added = [file for piece in self.stage(parts, {}) for file in piece.files]
            _refuse_lost_rows(table, files, removed, added)
            batch = Batch(new_ulid(), {table: TableChange(tuple(added), tuple(removed))})
            self.commit(None, leases, opened, batch, (), (), "compact")
            return Compaction(table, len(removed), len(added))

    def _publish_batch(self, run_id: RunId | None, leases: TableLeases, done: Publication) -> bool:
        with self.database.snapshot() as connection:
            involved = due_work.due_tables(connection).with_losing(batches.abandoned_tables(connection))
        involved = involved.without(done.refused)
        if not involved.names:
            return self._settle(done)
        tables = self.lease(leases, involved)
        opened = self._recover(leases, tables, done)
        # Read under the leases: no other process can change these pointers now.
        with self.database.snapshot() as connection:
            found = [d for d in self._read_due(connection, done) if due_work.tables_of([d]) <= set(opened)]
        settled = [d for d in found if isinstance(d, Settled)]
        loads = [d for d in found if isinstance(d, Load)]
        hides = [d for d in found if isinstance(d, Hide)]
        if settled:
            self.database.transact(lambda connection: due_work.delete_settled(connection, settled))
        if loads or hides:
            self._publish_items(run_id, leases, opened, loads, hides, done)
        return bool(found)

    def _settle(self, done: Publication) -> bool:
        """Delete due work that changes no table. Returns False: nothing is left to publish."""
        with self.database.snapshot() as connection:
            settled = [d for d in self._read_due(connection, done) if isinstance(d, Settled)]
        if settled:
            self.database.transact(lambda connection: due_work.delete_settled(connection, settled))
        return False

    def _read_due(self, connection: sa.Connection, done: Publication) -> list[due_work.Due]:
        """The due work without broken partitions and refused tables: both stay due until an operator acts."""
        assets = {name.rpartition(".")[0] for name in done.refused}
        found = due_work.read_due(connection, BATCH_PARTITIONS + len(done.broken), assets)
        return [d for d in found if d.key not in done.broken]

    def lease(self, leases: TableLeases, involved: due_work.DueTables) -> list[str]:
        """Acquire the leases of all schema versions of the queries involved, because a slice may move from one to
        another. Returns the tables of the work, including those of unfinished publications."""
        self.database.transact(lambda connection: register_tables(connection, involved.gaining.values()))
        wanted = involved.names
        with self.database.snapshot() as connection:
            siblings = tables_of_same_queries(connection, wanted)
        while True:
            leases.acquire(siblings)
            with self.database.snapshot() as connection:
                wanted |= {name for batch in batches.prepared_batches(connection, siblings) for name in batch.tables}
                held, siblings = siblings, tables_of_same_queries(connection, wanted)
            if set(siblings) <= set(held):
                return sorted(wanted)
            leases.release()

    def _recover(self, leases: TableLeases, tables: Sequence[str], done: Publication) -> dict[str, Table]:
        """Fence every table, then finish or discard the prepared publications of other processes. Returns the tables,
        open behind the fence. Adds to `done.refused` the tables that disagree with the database, and the tables of
        unfinished publications that need one of them."""
        opened: dict[str, Table] = {}
        with self.database.snapshot() as connection:
            heads = {head.name: head for head in recorded_heads(connection, tables)}
        for name, found in zip(tables, self._fence_all([heads[name] for name in tables]), strict=True):
            if isinstance(found, Mismatch):
                done.refused[name] = found
            else:
                opened[name] = found
        with self.database.snapshot() as connection:
            unfinished = batches.prepared_batches(connection, tables)
        _refuse_together(unfinished, done.refused)
        opened = {name: table for name, table in opened.items() if name not in done.refused}
        for batch in unfinished:
            if not set(batch.tables) <= set(opened):
                continue
            self.database.transact(lambda connection, b=batch: batches.adopt(connection, b, leases.token))  # type: ignore[misc]
            if any(opened[name].has_published(batch.batch_id) for name in batch.tables):
                done.add(self._finish(leases, batch, opened))
            else:
                self.database.transact(
                    lambda connection, b=batch: batches.discard(connection, b, leases.token, self.clock())  # type: ignore[misc]
                )
            opened = {name: self.format.open(name, table.path) for name, table in opened.items()}
        return opened

    def _fence_all(self, heads: Sequence[RecordedHead]) -> list[Table | Mismatch]:
        """Fence tables, at the same time on storage with latency: they do not depend on each other."""
        threads = min(self.lake.requests_in_flight, len(heads))
        if threads <= 1:
            return [self._fenced(head) for head in heads]
        with ThreadPoolExecutor(threads, thread_name_prefix="fence") as pool:
            return list(pool.map(self._fenced, heads))

    def _fenced(self, head: RecordedHead) -> Table | Mismatch:
        """The table behind a new fence, or the mismatch if a version beyond its head is unknown to the database."""
        if head.version is None:
            self.format.create(head.location, self.fields_of(head.name))
        try:
            before = self.format.open(head.name, head.location)
        except WarehouseError:
            if self.format.exists(head.location):
                raise
            return examine_table(self.lake, head)[0]
        for mismatch in examine_opened(before, head):
            return mismatch
        recorded = -1 if head.version is None else head.version
        if unknown := self._unknown_after(head, recorded, before.version):
            return unknown  # without a fence: a table that disagrees is not changed
        fenced = before.fence()
        # Usually the fence is the only commit since the table was opened.
        return self._unknown_after(head, before.version, fenced.version - 1) or fenced

    def _unknown_after(self, head: RecordedHead, first: int, last: int) -> Mismatch | None:
        """The mismatch if the database does not know a commit after `first`, up to `last`."""
        if first >= last:
            return None
        commits = list(self.format.commits_after(head.location, first, last))
        with self.database.snapshot() as connection:
            unknown = unknown_commits(connection, commits)
        return lake_ahead(head, unknown) if unknown else None

    def _publish_items(
        self,
        run_id: RunId | None,
        leases: TableLeases,
        opened: Mapping[str, Table],
        loads: list[Load],
        hides: list[Hide],
        done: Publication,
    ) -> None:
        staging = MonthStaging(opened, self.fields_of, self.stage, self.workers)
        loads = staging.run(loads, hides, self.authority, done.broken)
        if not loads and not hides:
            return
        batch = Batch(new_ulid(), staging.changes())
        done.add(self.commit(run_id, leases, opened, batch, loads, hides))

    def commit(
        self,
        run_id: RunId | None,
        leases: TableLeases,
        opened: Mapping[str, Table],
        batch: Batch,
        loads: Sequence[Load],
        hides: Sequence[Hide],
        gap: str = "publish",
    ) -> tuple[int, int]:
        """Prepare the staged batch, commit it to its tables, and record it. Returns the numbers of loaded and hidden
        partitions."""
        self.lake.sync()
        reach(f"{gap}.staged")

        def prepare(connection: sa.Connection) -> None:
            leases.require(connection, batch.tables)
            batches.prepare(connection, batch, leases.token, run_id, loads, hides, self.clock())

        self.database.transact(prepare)
        reach(f"{gap}.prepared")
        return self._finish(leases, batch, opened, gap, is_new=True)

    def _finish(
        self,
        leases: TableLeases,
        batch: Batch,
        opened: Mapping[str, Table],
        gap: str = "publish",
        *,
        is_new: bool = False,
    ) -> tuple[int, int]:
        """Commit the batch to every table that does not have it yet, then record it. No table has a batch that
        `is_new`: it was prepared after the tables were opened."""
        versions = {}
        for name in batch.tables:
            table, change = opened[name], batch.changes[name]
            if not is_new and table.has_published(batch.batch_id):
                versions[name] = table.version
            else:
                versions[name] = table.publish(batch.batch_id, change.add, change.remove, self.clock())
            reach(f"{gap}.committed")

        self.lake.sync()  # delta-rs does not sync, and a head must not name a commit that a power failure can undo

        def record(connection: sa.Connection) -> tuple[int, int]:
            leases.require(connection, batch.tables)
            return batches.record_published(connection, batch, leases.token, versions, self.clock())

        counts = self.database.transact(record)
        reach(f"{gap}.recorded")
        return counts

    def authority(self, loads: Sequence[Load]) -> set[PartitionKey]:
        """The partitions of these loads that still have the same authority."""
        return self.database.transact(lambda connection: due_work.still_authoritative(connection, loads))


def _refuse_lost_rows(
    table: str, files: Sequence[DataFile], removed: Sequence[str], added: Sequence[StagedFile]
) -> None:
    gone = set(removed)
    before = sum(file.records for file in files if file.path in gone)
    after = sum(file.records for file in added)
    if before != after:
        raise WarehouseError(f"compacting {table} would turn {before:,} rows into {after:,}: nothing was changed")


def _refuse_together(unfinished: Sequence[Batch], refused: dict[str, Mismatch]) -> None:
    """Refuse all tables of an unfinished publication that needs a refused table: its later completion would overwrite
    what is published to them now."""
    changed = True
    while changed:
        changed = False
        for batch in unfinished:
            causes = [refused[name] for name in batch.tables if name in refused]
            for name in batch.tables:
                if causes and name not in refused:
                    refused[name] = causes[0]
                    changed = True
