"""Recovery: bring a lost or older state database forward from the lake, or rebuild tables from raw."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from ulid import ULID

from penstock import interrupts
from penstock.app.context import Context, audit_entry
from penstock.contract.contract import Contract
from penstock.contract.schema import arrow_schema
from penstock.contract.stored import stored_contracts
from penstock.control.lake_evidence import (
    AssetEvidence,
    ExportedFacts,
    FoundTable,
    collect_evidence,
    exported_facts,
    table_contract,
    tables_in,
)
from penstock.db import schema
from penstock.db.bulk import insert
from penstock.db.engine import Database
from penstock.db.migrate import HEAD, migrate, version_of
from penstock.errors import ConfigError, LakeMismatch, UsageError
from penstock.failpoint import reach
from penstock.flow.heartbeat import Heartbeat
from penstock.partition import AttemptKey, PartitionKey, RunId, new_ulid
from penstock.pipeline.spark_jobs import Report
from penstock.pipeline.verify import table_damage
from penstock.raw.reader import RawReader
from penstock.state.audited import AuditedAct
from penstock.state.control import AuditEntry, record_audit
from penstock.state.recovery import (
    AssetRecovery,
    AssetRows,
    deleted_raw,
    plan_recovery,
    read_asset,
)
from penstock.state.recovery_writes import apply_recovery, mark_raw_deleted
from penstock.warehouse import batch as batches
from penstock.warehouse.batch import Batch, TableChange
from penstock.warehouse.catalog import recorded_heads
from penstock.warehouse.consistency import known_publications, mismatches
from penstock.warehouse.format import Table, table_format
from penstock.warehouse.identity import claim_lake, database_identity, lake_identity
from penstock.warehouse.lease import TableLeases
from penstock.warehouse.mismatch import Mismatch, MismatchKind
from penstock.warehouse.rebuild import Rebuilder, Rebuilt, TableDamage
from penstock.warehouse.staging import PartStaged, StagePart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.app.publications import PublicationService
    from penstock.app.status import StatusService


@dataclass(frozen=True, slots=True)
class LakeRecovery:
    """What `recover --from lake` changes, by asset, and what the lake cannot tell."""

    database_is_new: bool
    assets: Sequence[AssetRecovery] = ()
    unusable: Mapping[AttemptKey, str] = field(default_factory=dict)
    exported_events: int = 0
    damaged_segments: Mapping[str, str] = field(default_factory=dict)
    rebuilt: Sequence[Rebuilt] = ()
    damaged_files: Mapping[str, str] = field(default_factory=dict)
    left_alone: Sequence[Mismatch] = ()  # tables that are behind the database: only the other direction repairs them

    @property
    def restored(self) -> int:
        return sum(len(one.restored) for one in self.assets)

    @property
    def is_nothing(self) -> bool:
        return not self.assets and not self.database_is_new


class Recovery:
    """Repairs disagreements between the lake and the state database. Each call can be repeated: it does not repeat the
    finished steps of an interrupted call."""

    def __init__(self, context: Context, status: StatusService, publications: PublicationService) -> None:
        self._context = context
        self._settings = context.settings
        self._status = status
        self._publications = publications

    # --- from the lake ------------------------------------------------------------------------------------------------

    def preview_from_lake(self, report: Report) -> LakeRecovery:
        """What `from_lake` would do; changes nothing. A database that does not exist is taken for an empty one.

        >>> ws.maintenance.recovery.preview_from_lake(lambda share: None).restored
        """
        if self._has_schema():
            self._refuse_other_identity()
            return self._previewed(self._context.database, False, report)
        interrupts.begin_work()
        with TemporaryDirectory(prefix="penstock-") as folder:
            empty = Database(f"sqlite:///{folder}/state.db")
            migrate(empty, self._settings.tenant, self._settings.workspace)
            try:
                return self._previewed(empty, True, report)
            finally:
                empty.close()

    def from_lake(
        self,
        report: Report = lambda share: None,
        spark: SparkSession | None = None,
        *,
        actor: str | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> LakeRecovery:
        """Rebuild the state of every asset whose tables are ahead of the database, then all projections. Audited.

        >>> ws.maintenance.recovery.from_lake(actor="kim")
        """
        context, is_new = self._context, not self._has_schema()
        entry = audit_entry(actor, AuditedAct.RECOVER, {}, flags)
        interrupts.begin_work()
        self._create_database(is_new)
        facts = exported_facts(context.lake)
        done: list[AssetRecovery] = []
        rebuilt: list[Rebuilt] = []
        unusable: dict[AttemptKey, str] = {}
        damaged: dict[str, str] = {}
        contracts = self._contracts(context.database)
        wanted = self._assets_ahead(context.database)
        workers = context.workers
        workers.mark_dead_workers()
        with Heartbeat(workers) as heart:
            for number, (asset, tables) in enumerate(sorted(wanted.items())):
                share = partial(_share, report, number, len(wanted))
                evidence, recovery = self._restore(asset, tables, contracts, facts, heart.token, entry, share)
                unusable |= evidence.unusable
                damaged |= evidence.damaged
                done.append(recovery)
                if recovery.is_rebuilt:
                    rebuilt.append(self._rebuilder(heart.token, spark, report).rebuild(recovery.asset))
        for asset, gone in self._raw_deleted(context.database, wanted):
            context.database.transact(lambda connection, some=gone: mark_raw_deleted(connection, some, context.now()))  # type: ignore[misc]
            done.append(AssetRecovery(*asset, raw_gone=gone))
        left = self._behind(context.database)
        result = LakeRecovery(is_new, done, unusable, facts.events, facts.damaged, rebuilt, damaged, left)
        context.note(entry, result.restored, "done")
        self._status.projector.rebuild()
        return result

    def _previewed(self, database: Database, is_new: bool, report: Report) -> LakeRecovery:
        context, facts = self._context, exported_facts(self._context.lake)
        contracts, wanted = self._contracts(database), self._assets_ahead(database)
        done, unusable, damaged = list[AssetRecovery](), dict[AttemptKey, str](), dict[str, str]()
        for number, (asset, tables) in enumerate(sorted(wanted.items())):
            opened = [table_format(context.lake).open(table.name, table.location) for table in tables]
            with database.snapshot() as connection:
                known = read_asset(connection, *asset)
            share = partial(_share, report, number, len(wanted))
            evidence = collect_evidence(
                context.lake, asset, opened, contracts, facts, _accepted(known), context.now(), share
            )
            unusable |= evidence.unusable
            damaged |= evidence.damaged
            done.append(_planned(asset, known, evidence, evidence.in_raw, self._published_at(database, tables)))
        done += [AssetRecovery(*asset, raw_gone=gone) for asset, gone in self._raw_deleted(database, wanted)]
        left = self._behind(database)
        return LakeRecovery(is_new, done, unusable, facts.events, facts.damaged, (), damaged, left)

    def _behind(self, database: Database) -> list[Mismatch]:
        """The tables that are missing, or older than the database says."""
        kinds = (MismatchKind.LAKE_BEHIND, MismatchKind.TABLE_MISSING, MismatchKind.TABLE_REPLACED)
        return [one for one in mismatches(database, self._context.lake) if one.kind in kinds]

    def _published_at(self, database: Database, tables: Sequence[FoundTable]) -> datetime | None:
        """When the newest publication was made that the database does not know, by the time in its id."""
        lake = self._context.lake
        names = [
            name
            for table in tables
            for commit in table_format(lake).open(table.name, table.location).history()
            for name in commit.publications
        ]
        with database.snapshot() as connection:
            unknown = sorted(set(names) - known_publications(connection, names))
        return ULID.from_str(unknown[-1]).datetime if unknown else None

    def _raw_deleted(
        self, database: Database, without: Collection[tuple[str, str]]
    ) -> Iterator[tuple[tuple[str, str], list[AttemptKey]]]:
        """Of the other assets, the raw runs that were deleted after the backup."""
        table = schema.partition_attempt.c
        with database.snapshot() as connection:
            assets = connection.execute(sa.select(table.source, table.query_name).distinct()).all()
        for row in sorted((row.source, row.query_name) for row in assets):
            if row in without:
                continue
            with database.snapshot() as connection:
                known = read_asset(connection, *row)
            if gone := deleted_raw(known, set(RawReader(self._context.lake).sealed(*row))):
                yield row, gone

    def _restore(
        self,
        asset: tuple[str, str],
        tables: Sequence[FoundTable],
        contracts: Mapping[str, Contract],
        facts: ExportedFacts,
        worker_token: str,
        entry: AuditEntry,
        report: Report,
    ) -> tuple[AssetEvidence, AssetRecovery]:
        """One asset: read under its leases and behind a fence, then write everything in one transaction."""
        context, database = self._context, self._context.database
        database.transact(lambda connection: _register(connection, tables))
        leases = TableLeases(database, worker_token)
        try:
            leases.acquire([table.name for table in tables])
            opened = {
                table.name: table_format(context.lake).open(table.name, table.location).fence() for table in tables
            }
            with database.snapshot() as connection:
                known = read_asset(connection, *asset)
            evidence = collect_evidence(
                context.lake, asset, list(opened.values()), contracts, facts, _accepted(known), context.now(), report
            )
            published_at = self._published_at(database, tables)
            batch = Batch(new_ulid(), {name: TableChange((), ()) for name in opened})
            database.transact(lambda connection: self._prepare(connection, leases, batch))
            reach("recover.prepared")
            versions = {name: table.publish(batch.batch_id, (), (), context.now()) for name, table in opened.items()}
            reach("recover.committed")

            def record(connection: Connection) -> AssetRecovery:
                leases.require(connection, batch.tables)
                now = read_asset(connection, *asset)
                # Attempts that were closed after raw was listed may have a seal that the list does not name.
                in_raw = {*evidence.in_raw, *(_closed(now) - _closed(known))}
                recovery = _planned(asset, now, evidence, in_raw, published_at)
                _keep(connection, evidence.contracts, context.now())
                apply_recovery(connection, recovery, versions, batch.batch_id, worker_token, context.now())
                if recovery.is_rebuilt:  # readers keep the old head until the tables are rebuilt
                    batches.discard(connection, batch, leases.token, context.now())
                else:
                    batches.record_published(connection, batch, leases.token, versions, context.now())
                record_audit(connection, entry, len(recovery.restored), f"restored {recovery.asset}", context.now())
                return recovery

            recovery = database.transact(record)
            reach("recover.recorded")
            return evidence, recovery
        finally:
            leases.release()

    def _prepare(self, connection: Connection, leases: TableLeases, batch: Batch) -> None:
        """End what others left prepared on these tables: what they committed is evidence like everything else."""
        now = self._context.now()
        leases.require(connection, batch.tables)
        for other in batches.prepared_batches(connection, batch.tables):
            batches.adopt(connection, other, leases.token)
            batches.discard(connection, other, leases.token, now)
        batches.prepare(connection, batch, leases.token, None, (), (), now)

    def _create_database(self, is_new: bool) -> None:
        """A lost database gets the identity of its lake, so that both belong together again."""
        context = self._context
        if is_new:
            identity = lake_identity(context.lake)
            migrate(context.database, self._settings.tenant, self._settings.workspace, identity=identity)
            reach("recover.created")
        self._refuse_other_identity()
        claim_lake(context.database, context.lake)

    def _has_schema(self) -> bool:
        """Whether the database has a schema. Refuses one that has to be migrated first."""
        found = version_of(self._context.database)
        if found not in (None, HEAD):
            raise ConfigError(f"the state database has schema version {found}: run `penstock db migrate` first")
        return found is not None

    def _refuse_other_identity(self) -> None:
        found = lake_identity(self._context.lake)
        with self._context.database.snapshot() as connection:
            own = database_identity(connection)
        if found not in (None, own):
            raise LakeMismatch(
                f"the lake carries the identity {found}, the state database {own}: they never belonged together."
                " Point `state:` at an empty place to rebuild the database of this lake there"
            )

    def _assets_ahead(self, database: Database) -> dict[tuple[str, str], list[FoundTable]]:
        """The assets with tables that the database does not know, or not at their newest version; with them those that
        an unfinished publication ties to them."""
        found = mismatches(database, self._context.lake, everything=True)
        ahead = {one.asset for one in found if one.kind in (MismatchKind.LAKE_AHEAD, MismatchKind.UNKNOWN_TABLE)}
        with database.snapshot() as connection:
            names = [head.name for head in recorded_heads(connection)]
            for batch in batches.prepared_batches(connection, names):
                assets = {name.rpartition(".")[0] for name in batch.tables}
                ahead |= assets if assets & ahead else set()
        wanted: dict[tuple[str, str], list[FoundTable]] = {}
        for table in tables_in(self._context.lake):
            if ".".join(table.asset) in ahead:
                wanted.setdefault(table.asset, []).append(table)
        return wanted

    def _contracts(self, database: Database) -> dict[str, Contract]:
        """Every contract that is known: in the lake, in the database, in the workspace file."""
        context = self._context
        found = stored_contracts(context.lake)
        with database.snapshot() as connection:
            rows = connection.execute(sa.select(schema.contract.c.fingerprint, schema.contract.c.body)).all()
        found |= {row.fingerprint: Contract.from_body(row.body) for row in rows}
        today = {name: Contract.of(query) for name, query in self._settings.queries.items()}
        return found | {contract.fingerprint: contract for contract in today.values()}

    # --- from the database --------------------------------------------------------------------------------------------

    def preview_from_database(self, assets: Sequence[str], report: Report) -> dict[str, TableDamage]:
        """What `from_database` would repair, by table; changes nothing. Reads all rows of the tables.

        >>> ws.maintenance.recovery.preview_from_database([], lambda share: None)
        """
        context = self._context
        self._refuse_foreign_lake()
        wanted = self._known_assets(assets)
        with context.database.snapshot() as connection:
            heads = [head for head in recorded_heads(connection) if head.name.rpartition(".")[0] in wanted]
        rebuilder = self._rebuilder("", None, report, read_only=True)
        return rebuilder.preview(heads)

    def from_database(
        self,
        assets: Sequence[str] = (),
        report: Report = lambda share: None,
        spark: SparkSession | None = None,
        *,
        actor: str | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> list[Rebuilt]:
        """Rebuild the tables of these assets (all by default) from the raw sink, so that they hold the runs of the
        pointers. Audited.

        >>> ws.maintenance.recovery.from_database(["demo.campaign_daily"], actor="kim")
        """
        context = self._context
        self._refuse_foreign_lake()
        entry = audit_entry(actor, AuditedAct.RECOVER, {}, flags)
        claim_lake(context.database, context.lake)
        session = context.session(spark)
        done = []
        workers = context.workers
        workers.mark_dead_workers()
        with context.audited(entry) as action, Heartbeat(workers) as heart:
            rebuilder = self._rebuilder(heart.token, session, report)
            for asset in self._known_assets(assets):
                done.append(rebuilder.rebuild(asset))
                reach("recover.rebuilt")
            action.affected = sum(one.loaded for one in done)
        self._status.advance()
        return done

    def _rebuilder(
        self, worker_token: str, spark: SparkSession | None, report: Report, *, read_only: bool = False
    ) -> Rebuilder:
        from penstock.warehouse.publish import Publisher

        context = self._context
        contracts = self._contracts(context.database)

        def examine(table: Table) -> TableDamage:
            return table_damage(context.database, context.lake, table, table_contract(table, contracts), report)

        if read_only:
            fields = {c.table: arrow_schema(c.columns) for c in contracts.values()}
            publisher = Publisher(
                context.database, context.lake, context.now, worker_token, fields.__getitem__, _stage_nothing, 1
            )
        else:
            publisher = self._publications.publisher(context.session(spark), worker_token, None)
        return Rebuilder(publisher, examine)

    def _refuse_foreign_lake(self) -> None:
        for mismatch in self._context.mismatches():
            if mismatch.kind is MismatchKind.FOREIGN_LAKE:
                raise LakeMismatch(mismatch.message)

    def _known_assets(self, assets: Sequence[str]) -> list[str]:
        with self._context.database.snapshot() as connection:
            known = {head.name.rpartition(".")[0] for head in recorded_heads(connection)}
        if unknown := sorted(set(assets) - known):
            listed = ", ".join(sorted(known)) or "none"
            raise UsageError(f"there is no table {', '.join(unknown)} (tables that were published: {listed})")
        return sorted(assets or known)


def _share(report: Report, number: int, total: int, part: float) -> None:
    report((number + part) / total)


def _accepted(known: AssetRows) -> dict[AttemptKey, bool]:
    """The attempts in the database, and whether each was accepted or approved."""
    return {
        AttemptKey(key, RunId(run)): attempt.outcome == "SUCCEEDED" or attempt.approved
        for key, runs in known.attempts.items()
        for run, attempt in runs.items()
    }


def _closed(known: AssetRows) -> set[AttemptKey]:
    return {
        AttemptKey(key, RunId(run))
        for key, runs in known.attempts.items()
        for run, attempt in runs.items()
        if attempt.outcome is not None
    }


def _planned(
    asset: tuple[str, str],
    known: AssetRows,
    evidence: AssetEvidence,
    in_raw: Collection[AttemptKey],
    published_at: datetime | None,
) -> AssetRecovery:
    damaged = bool(evidence.damaged)
    return plan_recovery(*asset, known, evidence.found, evidence.sealed, in_raw, published_at, damaged)


def _register(connection: Connection, tables: Sequence[FoundTable]) -> None:
    columns = ("table_name", "source", "query_name", "schema_version", "location")
    rows = [(t.name, t.source, t.query_name, t.schema_version, t.location) for t in tables]
    insert(connection, schema.warehouse_table, columns, rows)


def _keep(connection: Connection, contracts: Sequence[Contract], now: object) -> None:
    columns = ("fingerprint", "source", "query_name", "schema_version", "body", "first_used_at")
    rows = [(c.fingerprint, c.source, c.query_name, c.schema_version, c.body(), now) for c in contracts]
    insert(connection, schema.contract, columns, rows)


def _stage_nothing(parts: Sequence[StagePart], contracts: Mapping[PartitionKey, str]) -> list[PartStaged]:
    raise AssertionError("a preview stages nothing")
