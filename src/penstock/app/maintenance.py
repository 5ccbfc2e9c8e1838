"""Maintenance of the database, the warehouse and the raw sink."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import interrupts
from penstock.app.context import Context, audit_entry
from penstock.clock import iso
from penstock.config.values import time_span
from penstock.db.migrate import HEAD, migrate, version_of
from penstock.errors import LakeMismatch, UsageError
from penstock.failpoint import reach
from penstock.partition import AttemptKey, new_run_id
from penstock.state.audited import AuditedAct
from penstock.warehouse.consistency import lake_without_database, refuse_foreign_lake
from penstock.warehouse.identity import claim_lake, lake_identity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.app.data import DataService
    from penstock.app.publications import PublicationService
    from penstock.app.recovery import Recovery
    from penstock.app.status import StatusService
    from penstock.pipeline.spark_jobs import Report
    from penstock.pipeline.verify import Verification
    from penstock.warehouse.compare import Difference
    from penstock.warehouse.heads import TableHead
    from penstock.warehouse.mismatch import Mismatch
    from penstock.warehouse.publish import Compaction, Publication


class MaintenanceService:
    """Migrate, back up, recover, reconcile, verify, compact, vacuum, collect garbage."""

    def __init__(
        self, context: Context, status: StatusService, publications: PublicationService, data: DataService
    ) -> None:
        self._context = context
        self._status = status
        self._publications = publications
        self._data = data

    def migrate(self) -> tuple[str | None, str]:
        """Create or update the schema, and write the identity of the database to the lake. Returns the schema versions
        before and after. Raises LakeMismatch for the lake of another database.

        >>> ws.maintenance.migrate()
        """

        # A restored database that is older than identities belongs to the newer lake beside it. It is migrated even if
        # the lake has tables that it does not know: publications to them are refused until a recovery.
        before = version_of(self._context.database)
        identity = lake_identity(self._context.lake) if before else None
        versions = migrate(
            self._context.database,
            self._context.settings.tenant,
            self._context.settings.workspace,
            lambda connection: refuse_foreign_lake(
                connection, self._context.lake, unknown_tables_too=before in (None, HEAD)
            ),
            identity,
        )
        reach("migrate.committed")
        claim_lake(self._context.database, self._context.lake)
        return versions

    def lost_database(self) -> list[Mismatch]:
        """The tables of a lake whose state database is lost: the database of the workspace does not exist or has no
        schema. Empty if it has a schema, or if the lake is new.

        >>> ws.maintenance.lost_database()
        """
        if version_of(self._context.database):
            return []
        return lake_without_database(self._context.lake, str(self._context.database))

    def tables(self, assets: Sequence[str] = ()) -> list[tuple[str, TableHead]]:
        """The published tables with their heads, by asset. Raises UsageError for an unknown asset.

        >>> [head.name for _, head in ws.maintenance.tables()]
        """
        from penstock.warehouse.heads import heads_of_all

        self._context.require_tables(assets)
        known = {c.asset: (c.source, c.query_name) for c in self._context.contracts.values()}
        return heads_of_all(self._context.database, [known[name] for name in sorted(assets or known)])

    def differences(self, limit: int | None = None) -> tuple[list[Difference], dict[str, int]]:
        """The partitions whose pointer differs from authority: the first `limit`, and their number by kind.

        >>> ws.maintenance.differences(limit=100)
        """
        from penstock.warehouse.compare import differences

        return differences(self._context.database, limit)

    def reconcile(
        self, report: Report | None = None, spark: SparkSession | None = None, *, actor: str | None = None
    ) -> Publication:
        """Compare authority with all pointers, and publish the differences. Also rolls interrupted publications forward
        or discards them. Audited.

        >>> ws.maintenance.reconcile(actor="kim")
        """
        self._context.require_own_lake()
        entry = audit_entry(actor, AuditedAct.RECONCILE)
        with self._context.audited(entry, sum(self.differences(0)[1].values())) as action:
            published = self._reconcile(report, spark)
            action.affected = published.loaded + published.hidden
        return published

    def note_reconciled(self, actor: str | None = None) -> None:
        """Record in the audit log that `differences` found nothing to publish.

        >>> ws.maintenance.note_reconciled("kim")
        """
        self._context.note(audit_entry(actor, AuditedAct.RECONCILE), 0, "nothing differs")

    def _reconcile(self, report: Report | None, spark: SparkSession | None) -> Publication:
        from penstock.flow.heartbeat import Heartbeat
        from penstock.warehouse.compare import queue_differences
        from penstock.warehouse.publish import Publication

        queue_differences(self._context.database, self._context.now())
        if not self._publications.is_due():
            return Publication()
        session = self._context.session(spark)
        with Heartbeat(self._context.workers) as heart:
            published = self._publications.publish(session, heart.token, new_run_id(), report)
        self._status.advance()
        return published

    def verify(
        self, assets: Sequence[str] = (), report: Report = lambda share: None, *, raw: bool = True
    ) -> Verification:
        """Count and hash all published rows again, and compare them with the load records; with `raw`, also the raw
        payloads.

        >>> ws.maintenance.verify(["demo.campaign_daily"], raw=True)
        """
        from penstock.pipeline.verify import Verification, verify_raw, verify_table

        kept = {contract.table: contract for contract in self._context.stored_contracts().values()}
        heads = [head for _, head in self.tables(assets)]
        done, steps = Verification(), len(heads) + raw
        for number, head in enumerate(heads):

            def share(part: float, before: int = number) -> None:
                report((before + part) / steps)

            verify_table(self._context.database, self._context.lake, head, kept[head.name], done, share)
        if raw:
            verify_raw(
                self._context.database,
                self._context.lake,
                heads,
                done,
                lambda part: report((len(heads) + part) / steps),
            )
        return done

    def compact(
        self,
        tables: Sequence[str],
        report: Report | None = None,
        spark: SparkSession | None = None,
        *,
        actor: str | None = None,
    ) -> list[Compaction]:
        """Merge the small files of each month; readers see the same rows. Audited. `tables` are table names with their
        schema version, as `tables` returns them.

        >>> ws.maintenance.compact([head.name for _, head in ws.maintenance.tables()], actor="kim")
        """
        from penstock.flow.heartbeat import Heartbeat

        self._context.require_own_lake()
        session = self._context.session(spark)
        entry = audit_entry(actor, AuditedAct.COMPACT, {"tables": list(tables)})
        with self._context.audited(entry, len(tables)) as action, Heartbeat(self._context.workers) as heart:
            publisher = self._publications.publisher(session, heart.token, report)
            done = [publisher.compact(name) for name in tables]
            action.affected = len(done)
        return done

    def compactable(self, assets: Sequence[str]) -> list[Compaction]:
        """The number of small files that `compact` merges, and the smallest number of files that it leaves (each Spark
        worker writes one). Does not start Spark.

        >>> ws.maintenance.compactable(["demo.campaign_daily"])
        """
        from penstock.warehouse.packing import plan_compaction
        from penstock.warehouse.publish import Compaction

        found = []
        for _, head in self.tables(assets):
            files = self._context.versions.contents(head.name, head.location, head.version, head.publication).files
            months = [plan_compaction(month, files, 1) for month in sorted({file.month for file in files})]
            before, after = sum(len(m.rewritten) for m in months), sum(len(m.parts) for m in months)
            found.append(Compaction(head.name, before, after))
        return found

    def vacuum(
        self,
        assets: Sequence[str] = (),
        retention: timedelta | str = "7d",
        *,
        actor: str | None = None,
        dry_run: bool = False,
    ) -> dict[str, list[str]]:
        """Delete data files that no head, no snapshot, no prepared publication and no version inside `retention` needs.
        Returns the files by table. A dry run only lists them. Audited.

        >>> ws.maintenance.vacuum(retention="30d", actor="kim")
        """
        from penstock.warehouse.vacuum import require_retention

        age = time_span(retention, "retention")
        heads = [head for _, head in self.tables(assets)]  # refuses unknown tables
        require_retention(age)
        if dry_run:
            return self._vacuum(heads, age, dry_run=True)
        entry = audit_entry(actor, AuditedAct.VACUUM, {"tables": list(assets)}, {"retention": str(retention)})
        with self._context.audited(entry) as action:
            found = self._vacuum(heads, age, dry_run=False)
            action.affected = sum(len(paths) for paths in found.values())
        return found

    def _vacuum(self, heads: Sequence[TableHead], retention: timedelta, *, dry_run: bool) -> dict[str, list[str]]:
        from penstock.flow.heartbeat import Heartbeat
        from penstock.warehouse.vacuum import preview_vacuum, vacuum_table

        self._context.require_own_lake()
        database, lake, now = self._context.database, self._context.lake, self._context.now()
        keep = {head.name: {(head.version, head.publication)} for head in heads}
        for snapshot in self._data.snapshots.all():
            for _, head in snapshot.tables if snapshot.expires_at > now else ():
                keep.setdefault(head.name, set()).add((head.version, head.publication))
        if dry_run:
            self._refuse_mismatched({head.name for head in heads})
            return {head.name: preview_vacuum(database, lake, head, keep[head.name], retention) for head in heads}
        with Heartbeat(self._context.workers) as heart:
            found = {
                head.name: vacuum_table(database, lake, heart.token, head, keep[head.name], retention) for head in heads
            }
        self._data.snapshots.delete_expired(now)
        return found

    def _refuse_mismatched(self, tables: Collection[str]) -> None:
        """Raise LakeMismatch if one of these tables disagrees with the database. Needs no lease."""
        for mismatch in self._context.mismatches(everything=True):
            if mismatch.table in tables:
                raise LakeMismatch(mismatch.message)

    def backup(self, folder: str | Path) -> dict[str, Any]:
        """Copy the state database, consistently, to a new or empty folder, and describe it in `backup.json`. Returns
        the description.

        >>> ws.maintenance.backup("/backups/2024-06-01")
        """
        import orjson

        from penstock import __version__
        from penstock.db.backup import copy_database

        place = Path(folder)
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise UsageError(f"{place} is not an empty folder: name a new one for each backup")
        address, is_new = self._context.lake.url, not place.exists()
        interrupts.begin_work()
        try:
            place.mkdir(parents=True, exist_ok=True)
            file, facts = copy_database(self._context.database, place)
            facts |= {"format": 1, "penstock": __version__, "made_at": iso(self._context.now()), "lake": address}
            (place / "backup.json").write_bytes(orjson.dumps(facts, option=orjson.OPT_INDENT_2))
        except BaseException:
            _remove_unfinished(place, is_new)
            raise
        return {"file": str(file), **facts}

    @property
    def recovery(self) -> Recovery:
        """Repairs disagreements between the lake and the state database.

        >>> ws.maintenance.recovery
        """
        from penstock.app.recovery import Recovery

        return Recovery(self._context, self._status, self._publications)

    def garbage(self, older_than: timedelta | str) -> list[AttemptKey]:
        """The raw runs that were closed longer than `older_than` ago and that no authority, pointer or publication
        refers to.

        >>> ws.maintenance.garbage("90d")
        """
        from penstock.state.garbage import GarbageStore

        closed_before = self._context.now() - time_span(older_than, "older_than")
        return GarbageStore(self._context.database, self._context.clock).find(closed_before)

    def collect_garbage(
        self, found: Sequence[AttemptKey], older_than: timedelta | str, *, actor: str | None = None
    ) -> tuple[int, int]:
        """Mark these raw runs as deleted, then delete them and the runs that an interrupted call marked before. Returns
        the numbers of runs and files. Audited.

        >>> ws.maintenance.collect_garbage(ws.maintenance.garbage("90d"), "90d", actor="kim")
        """
        from penstock.raw.reader import RawReader
        from penstock.state.garbage import GarbageStore

        self._context.require_own_lake()
        entry = audit_entry(actor, AuditedAct.RAW_GC, {"older_than": str(older_than)})
        store, now = GarbageStore(self._context.database, self._context.clock), self._context.now()
        marked = store.mark(list(found), now - time_span(older_than, "older_than"), entry)
        reach("garbage.marked")
        return marked, RawReader(self._context.lake).delete(store.marked_since(now - timedelta(days=7)))


def _remove_unfinished(folder: Path, is_new: bool) -> None:
    """Remove the files of an unfinished backup, so that a new one can use the same folder."""
    from penstock.db.backup import POSTGRES_FILE, SQLITE_FILE

    with suppress(OSError):
        for name in (SQLITE_FILE, POSTGRES_FILE, "backup.json"):
            for left in (*folder.glob(name), *folder.glob(f".{name}.unfinished*")):
                left.unlink()
        if is_new:
            folder.rmdir()
