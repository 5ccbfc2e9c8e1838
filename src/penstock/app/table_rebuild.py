"""Rebuilds tables from raw, so that they hold the runs of the pointers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from penstock.app.context import Context, audit_entry
from penstock.contract.contract import Contract
from penstock.contract.schema import arrow_schema
from penstock.contract.stored import stored_contracts
from penstock.control.lake_evidence import (
    table_contract,
)
from penstock.db import schema
from penstock.db.engine import Database
from penstock.errors import LakeMismatch, UsageError
from penstock.failpoint import reach
from penstock.flow.heartbeat import Heartbeat
from penstock.partition import PartitionKey
from penstock.pipeline.spark_jobs import Report
from penstock.pipeline.verify import table_damage
from penstock.state.audited import AuditedAct
from penstock.warehouse.catalog import recorded_heads
from penstock.warehouse.format import Table
from penstock.warehouse.identity import claim_lake
from penstock.warehouse.mismatch import MismatchKind
from penstock.warehouse.rebuild import Rebuilder, Rebuilt, TableDamage
from penstock.warehouse.staging import PartStaged, StagePart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.app.publications import PublicationService
    from penstock.app.status import StatusService


class TableRebuild:
    """Finds damaged tables, and rebuilds them from the raw sink."""

    def __init__(self, context: Context, status: StatusService, publications: PublicationService) -> None:
        self._context = context
        self._status = status
        self._publications = publications

    def preview(self, assets: Sequence[str], report: Report) -> dict[str, TableDamage]:
        """The damage that `from_database` would repair, by table; changes nothing. Reads all rows of the tables.

        >>> ws.maintenance.recovery.preview_from_database([], lambda share: None)
        """
        context = self._context
        self._refuse_foreign_lake()
        wanted = self._known_assets(assets)
        with context.database.snapshot() as connection:
            heads = [head for head in recorded_heads(connection) if head.name.rpartition(".")[0] in wanted]
        rebuilder = self.rebuilder("", None, report, read_only=True)
        return rebuilder.preview(heads)

    def run(
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
        noted = flags if flags is not None else {"tables": list(assets)} if assets else {}
        entry = audit_entry(actor, AuditedAct.RECOVER, {}, {"from": "database", **noted})
        claim_lake(context.database, context.lake)
        session = context.session(spark)
        done = []
        workers = context.workers
        workers.mark_dead_workers()
        with context.audited(entry) as action, Heartbeat(workers) as heart:
            rebuilder = self.rebuilder(heart.token, session, report)
            for asset in self._known_assets(assets):
                done.append(rebuilder.rebuild(asset))
                reach("recover.rebuilt")
            action.affected = sum(one.loaded for one in done)
        self._status.advance()
        return done

    def rebuilder(
        self, worker_token: str, spark: SparkSession | None, report: Report, *, read_only: bool = False
    ) -> Rebuilder:
        from penstock.warehouse.publish import Publisher

        context = self._context
        contracts = self.contracts(context.database)

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

    def contracts(self, database: Database) -> dict[str, Contract]:
        """Every known contract by fingerprint: of the lake, the database and the workspace file."""
        context = self._context
        found = stored_contracts(context.lake)
        with database.snapshot() as connection:
            rows = connection.execute(sa.select(schema.contract.c.fingerprint, schema.contract.c.body)).all()
        found |= {row.fingerprint: Contract.from_body(row.body) for row in rows}
        today = {name: Contract.of(query) for name, query in context.settings.queries.items()}
        return found | {contract.fingerprint: contract for contract in today.values()}

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


def _stage_nothing(parts: Sequence[StagePart], contracts: Mapping[PartitionKey, str]) -> list[PartStaged]:
    raise AssertionError("a preview stages no files")
