"""Recovery: brings a lost or older state database forward from the lake, or rebuilds tables from raw."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from penstock import interrupts
from penstock.app.asset_recovery import AssetRestorer
from penstock.app.context import Context, audit_entry
from penstock.app.table_rebuild import TableRebuild
from penstock.control.lake_evidence import (
    FoundTable,
    exported_facts,
    tables_in,
)
from penstock.db import schema
from penstock.db.engine import Database
from penstock.db.migrate import HEAD, migrate, version_of
from penstock.errors import ConfigError, LakeMismatch
from penstock.failpoint import reach
from penstock.flow.heartbeat import Heartbeat
from penstock.partition import AttemptKey
from penstock.pipeline.spark_jobs import Report
from penstock.raw.reader import RawReader
from penstock.state.audited import AuditedAct
from penstock.state.recovery import (
    AssetRecovery,
    deleted_raw,
    read_asset,
)
from penstock.state.recovery_writes import mark_raw_deleted
from penstock.warehouse import batch as batches
from penstock.warehouse.catalog import recorded_heads
from penstock.warehouse.consistency import mismatches
from penstock.warehouse.identity import claim_lake, database_identity, lake_identity
from penstock.warehouse.mismatch import Mismatch, MismatchKind
from penstock.warehouse.rebuild import Rebuilt, TableDamage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.app.publications import PublicationService
    from penstock.app.status import StatusService


@dataclass(frozen=True, slots=True)
class LakeRecovery:
    """The changes of `recover --from lake`, by asset, and the facts that the lake does not hold."""

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
        self._assets = AssetRestorer(context)
        self._tables = TableRebuild(context, status, publications)

    def preview_from_lake(self, report: Report) -> LakeRecovery:
        """The changes that `from_lake` would make; changes nothing. A missing database counts as an empty one.

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
        entry = audit_entry(actor, AuditedAct.RECOVER, {}, {"from": "lake", **(flags or {})})
        interrupts.begin_work()
        self._create_database(is_new)
        facts = exported_facts(context.lake)
        done: list[AssetRecovery] = []
        rebuilt: list[Rebuilt] = []
        unusable: dict[AttemptKey, str] = {}
        damaged: dict[str, str] = {}
        contracts = self._tables.contracts(context.database)
        wanted = self._assets_ahead(context.database)
        workers = context.workers
        workers.mark_dead_workers()
        with Heartbeat(workers) as heart:
            for number, (asset, tables) in enumerate(sorted(wanted.items())):
                share = partial(_share, report, number, len(wanted))
                evidence, recovery = self._assets.restore(asset, tables, contracts, facts, heart.token, entry, share)
                unusable |= evidence.unusable
                damaged |= evidence.damaged
                done.append(recovery)
                if recovery.is_rebuilt:
                    rebuilt.append(self._tables.rebuilder(heart.token, spark, report).rebuild(recovery.asset))
        for asset, gone in self._raw_deleted(context.database, wanted):
            context.database.transact(lambda connection, some=gone: mark_raw_deleted(connection, some, context.now()))  # type: ignore[misc]
            done.append(AssetRecovery(*asset, raw_gone=gone))
        left = self._behind(context.database)
        result = LakeRecovery(is_new, done, unusable, facts.events, facts.damaged, rebuilt, damaged, left)
        context.note(entry, result.restored, "done")
        self._status.projector.rebuild()
        return result

    def _previewed(self, database: Database, is_new: bool, report: Report) -> LakeRecovery:
        facts = exported_facts(self._context.lake)
        contracts, wanted = self._tables.contracts(database), self._assets_ahead(database)
        done, unusable, damaged = list[AssetRecovery](), dict[AttemptKey, str](), dict[str, str]()
        for number, (asset, tables) in enumerate(sorted(wanted.items())):
            share = partial(_share, report, number, len(wanted))
            evidence, recovery = self._assets.preview(database, asset, tables, contracts, facts, share)
            unusable |= evidence.unusable
            damaged |= evidence.damaged
            done.append(recovery)
        done += [AssetRecovery(*asset, raw_gone=gone) for asset, gone in self._raw_deleted(database, wanted)]
        left = self._behind(database)
        return LakeRecovery(is_new, done, unusable, facts.events, facts.damaged, (), damaged, left)

    def _behind(self, database: Database) -> list[Mismatch]:
        """The tables that are missing, or older than in the database."""
        kinds = (MismatchKind.LAKE_BEHIND, MismatchKind.TABLE_MISSING, MismatchKind.TABLE_REPLACED)
        return [one for one in mismatches(database, self._context.lake) if one.kind in kinds]

    def _raw_deleted(
        self, database: Database, without: Collection[tuple[str, str]]
    ) -> Iterator[tuple[tuple[str, str], list[AttemptKey]]]:
        """The raw runs of the other assets that were deleted after the backup."""
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

    def _create_database(self, is_new: bool) -> None:
        """Create a lost database with the identity of its lake, so that both belong together again."""
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

    def preview_from_database(self, assets: Sequence[str], report: Report) -> dict[str, TableDamage]:
        """The damage that `from_database` would repair, by table; changes nothing. Reads all rows of the tables.

        >>> ws.maintenance.recovery.preview_from_database([], lambda share: None)
        """
        return self._tables.preview(assets, report)

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
        return self._tables.run(assets, report, spark, actor=actor, flags=flags)


def _share(report: Report, number: int, total: int, part: float) -> None:
    report((number + part) / total)
