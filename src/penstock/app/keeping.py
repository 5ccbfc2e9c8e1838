"""Keeping the warehouse and the raw sink: publishing, comparing, verifying, compacting, deleting."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.app.opened import os_user
from penstock.app.reading import Reading
from penstock.clock import iso
from penstock.errors import LakeMismatch, UsageError, WarehouseError
from penstock.failpoint import reach
from penstock.partition import AttemptKey, RunId, new_run_id
from penstock.state.audited import AuditedAct
from penstock.state.control import AuditEntry
from penstock.state.worker import WorkerStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.app.recovery import Recovery
    from penstock.pipeline.parsed_cache import Lookup
    from penstock.pipeline.verify import Verification
    from penstock.pipeline.work import Report
    from penstock.warehouse.compare import Difference
    from penstock.warehouse.heads import TableHead
    from penstock.warehouse.publish import Compaction, Publication, Publisher


class Keeping(Reading):
    """What is published, and what may go."""

    def warehouse_tables(self, assets: Sequence[str] = ()) -> list[tuple[str, TableHead]]:
        """The tables that readers see, by asset."""
        from penstock.warehouse.heads import heads_of_all

        known = {c.asset: (c.source, c.query_name) for c in self.contracts.values()}
        if unknown := sorted(set(assets) - set(known)):
            raise UsageError(f"unknown table {', '.join(unknown)} (tables: {', '.join(sorted(known))})")
        return heads_of_all(self.database, [known[name] for name in sorted(assets or known)])

    def differences(self, limit: int | None = None) -> tuple[list[Difference], dict[str, int]]:
        """Where the warehouse does not show what authority says."""
        from penstock.warehouse.compare import differences

        return differences(self.database, limit)

    def reconcile(
        self, report: Report | None = None, spark: SparkSession | None = None, *, actor: str | None = None
    ) -> Publication:
        """Compare all of authority with all pointers, and publish what differs; also finishes or forgets what somebody
        who died left half published. In the audit log."""
        self.require_own_lake()
        entry = AuditEntry(actor or os_user(), AuditedAct.RECONCILE, {}, {})
        with self.audited(entry, sum(self.differences(0)[1].values())) as act:
            published = self._reconcile(report, spark)
            act.affected = published.loaded + published.hidden
        return published

    def _reconcile(self, report: Report | None, spark: SparkSession | None) -> Publication:
        from penstock.flow.heartbeat import Heartbeat
        from penstock.pipeline.session import start_session
        from penstock.warehouse.compare import queue_differences
        from penstock.warehouse.publish import Publication

        queue_differences(self.database, self.now())
        if not self.pointers.waiting() and not self.pointers.interrupted():
            return Publication()
        session = spark or start_session(self.settings.spark)
        with Heartbeat(WorkerStore(self.database, self._clock)) as heart:
            published = self._publish(session, heart.token, new_run_id(), report)
        self.project()
        return published

    def _publish(
        self,
        spark: SparkSession,
        worker_token: str,
        run_id: RunId,
        report: Report | None,
        find: Lookup | None = None,
    ) -> Publication:
        return self.publisher(spark, worker_token, report, find).publish(run_id)

    def publisher(
        self, spark: SparkSession, worker_token: str, report: Report | None, find: Lookup | None = None
    ) -> Publisher:
        from penstock.contract.contract import Contract
        from penstock.contract.schema import arrow_schema
        from penstock.pipeline.load import spark_stager
        from penstock.pipeline.work import parallelism
        from penstock.warehouse.publish import Publisher

        kept = {row.fingerprint: Contract.from_body(row.body) for row in self.reader.contracts()}
        fields = {contract.table: arrow_schema(contract.columns) for contract in kept.values()}
        return Publisher(
            self.database,
            self.lake,
            self._clock,
            worker_token,
            fields.__getitem__,
            spark_stager(spark, self.settings.lake, kept.__getitem__, report, find, self._damage_of),
            parallelism(spark),
        )

    def _damage_of(self, tables: Collection[str]) -> WarehouseError | None:
        """The error that names damaged data files of these tables, if they have any."""
        from penstock.warehouse.damage import damage_of
        from penstock.warehouse.heads import heads_of_all

        assets = sorted({(c.source, c.query_name) for c in self.contracts.values()})
        heads = [head for _, head in heads_of_all(self.database, assets) if head.name in tables]
        return damage_of(self.database, self.versions, heads)

    def verify(self, assets: Sequence[str], report: Report, *, raw: bool) -> Verification:
        """Count and hash everything that is served anew; with `raw`, also the payloads it was made from."""
        from penstock.contract.contract import Contract
        from penstock.pipeline.verify import Verification, verify_raw, verify_table

        kept = {c.table: c for c in (Contract.from_body(row.body) for row in self.reader.contracts())}
        heads = [head for _, head in self.warehouse_tables(assets)]
        done, steps = Verification(), len(heads) + raw
        for number, head in enumerate(heads):

            def share(part: float, before: int = number) -> None:
                report((before + part) / steps)

            verify_table(self.database, self.lake, head, kept[head.name], done, share)
        if raw:
            verify_raw(self.database, self.lake, heads, done, lambda part: report((len(heads) + part) / steps))
        return done

    def compact(
        self,
        tables: Sequence[str],
        report: Report | None,
        spark: SparkSession | None = None,
        *,
        actor: str | None = None,
    ) -> list[Compaction]:
        """Write small files of each month together; what readers see does not change. In the audit log."""
        from penstock.flow.heartbeat import Heartbeat
        from penstock.pipeline.session import start_session

        self.require_own_lake()
        session = spark or start_session(self.settings.spark)
        entry = AuditEntry(actor or os_user(), AuditedAct.COMPACT, {"tables": list(tables)}, {})
        with self.audited(entry, len(tables)) as act, Heartbeat(WorkerStore(self.database, self._clock)) as heart:
            publisher = self.publisher(session, heart.token, report)
            done = [publisher.compact(name) for name in tables]
            act.affected = len(done)
        return done

    def compactable(self, assets: Sequence[str]) -> list[Compaction]:
        """The small files that `compact` would write together, and how many files would be left of them at least (each
        worker of Spark writes one of its own). Starts no Spark."""
        from penstock.warehouse.packing import plan_compaction
        from penstock.warehouse.publish import Compaction

        found = []
        for _, head in self.warehouse_tables(assets):
            files = self.versions.contents(head.name, head.location, head.version, head.publication).files
            months = [plan_compaction(month, files, 1) for month in sorted({file.month for file in files})]
            before, after = sum(len(m.rewritten) for m in months), sum(len(m.parts) for m in months)
            found.append(Compaction(head.name, before, after))
        return found

    def vacuum(self, assets: Sequence[str], retention: timedelta, *, dry_run: bool) -> dict[str, list[str]]:
        """Delete data files that no head, no snapshot, no prepared publication and no recent version needs. A dry run
        lists them and changes nothing."""
        from penstock.flow.heartbeat import Heartbeat
        from penstock.warehouse.vacuum import preview_vacuum, vacuum_table

        self.check_vacuum(assets, retention)
        self.require_own_lake()
        now = self.now()
        live = [s for s in self.snapshots.all() if s.expires_at > now]
        kept: dict[str, set[tuple[int, str | None]]] = {}
        for snapshot in live:
            for _, head in snapshot.tables:
                kept.setdefault(head.name, set()).add((head.version, head.publication))
        heads = [head for _, head in self.warehouse_tables(assets)]
        keep = {head.name: {(head.version, head.publication), *kept.get(head.name, ())} for head in heads}
        database, lake = self.database, self.lake
        if dry_run:
            self._refuse_mismatched({head.name for head in heads})
            return {head.name: preview_vacuum(database, lake, head, keep[head.name], retention) for head in heads}
        with Heartbeat(WorkerStore(database, self._clock)) as heart:
            found = {
                head.name: vacuum_table(database, lake, heart.token, head, keep[head.name], retention) for head in heads
            }
        self.snapshots.delete_expired(now)
        return found

    def check_vacuum(self, assets: Sequence[str], retention: timedelta) -> None:
        """Raise UsageError if a table is unknown or the retention is too short."""
        from penstock.warehouse.vacuum import require_retention

        self.warehouse_tables(assets)
        require_retention(retention)

    def _refuse_mismatched(self, tables: Collection[str]) -> None:
        """Raise LakeMismatch if one of these tables disagrees with the database. Needs no lease."""
        for mismatch in self.mismatches(everything=True):
            if mismatch.table in tables:
                raise LakeMismatch(mismatch.message)

    def backup(self, folder: str | Path) -> dict[str, Any]:
        """A consistent copy of the state database in a new or empty folder, with a description in `backup.json`."""
        import orjson

        from penstock import __version__, interrupts
        from penstock.db.backup import copy_database

        place = Path(folder)
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise UsageError(f"{place} is not an empty folder: name a new one for each backup")
        address, is_new = self.lake.url, not place.exists()
        interrupts.begin_work()
        try:
            place.mkdir(parents=True, exist_ok=True)
            file, facts = copy_database(self.database, place)
            facts |= {"format": 1, "penstock": __version__, "made_at": iso(self.now()), "lake": address}
            (place / "backup.json").write_bytes(orjson.dumps(facts, option=orjson.OPT_INDENT_2))
        except BaseException:
            _take_back(place, is_new)
            raise
        return {"file": str(file), **facts}

    @property
    def recovery(self) -> Recovery:
        """Repairs disagreements between the lake and the state database."""
        from penstock.app.recovery import Recovery

        return Recovery(self)

    def garbage(self, older_than: timedelta) -> list[AttemptKey]:
        """Raw runs that were closed longer ago and that nothing refers to: no authority, pointer or publication."""
        from penstock.state.garbage import GarbageStore

        return GarbageStore(self.database, self._clock).find(self.now() - older_than)

    def collect_garbage(self, found: Sequence[AttemptKey], older_than: timedelta, entry: AuditEntry) -> tuple[int, int]:
        """Mark these raw runs as deleted, then delete them, and what an earlier call marked and did not come to delete.
        Says how many runs and files."""
        from penstock.raw.reader import RawReader
        from penstock.state.garbage import GarbageStore

        self.require_own_lake()
        store, now = GarbageStore(self.database, self._clock), self.now()
        marked = store.mark(list(found), now - older_than, entry)
        reach("garbage.marked")
        return marked, RawReader(self.lake).delete(store.marked_since(now - timedelta(days=7)))


def _take_back(folder: Path, is_new: bool) -> None:
    """Remove the files of an unfinished backup, so that it can be made again in the same folder."""
    from penstock.db.backup import POSTGRES_FILE, SQLITE_FILE

    with suppress(OSError):
        for name in (SQLITE_FILE, POSTGRES_FILE, "backup.json"):
            for left in (*folder.glob(name), *folder.glob(f".{name}.unfinished*")):
                left.unlink()
        if is_new:
            folder.rmdir()
