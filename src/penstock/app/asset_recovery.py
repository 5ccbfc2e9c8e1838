"""Restores one asset of a lost or older state database from its tables and raw runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy.engine import Connection
from ulid import ULID

from penstock.app.context import Context
from penstock.contract.contract import Contract
from penstock.control.lake_evidence import (
    AssetEvidence,
    ExportedFacts,
    FoundTable,
    collect_evidence,
)
from penstock.db import schema
from penstock.db.bulk import insert
from penstock.db.engine import Database
from penstock.failpoint import reach
from penstock.partition import AttemptKey, RunId, new_ulid
from penstock.pipeline.spark_jobs import Report
from penstock.state.control import AuditEntry, record_audit
from penstock.state.recovery import (
    AssetRecovery,
    AssetRows,
    plan_recovery,
    read_asset,
)
from penstock.state.recovery_writes import apply_recovery
from penstock.warehouse import batch as batches
from penstock.warehouse.batch import Batch, TableChange
from penstock.warehouse.consistency import known_publications
from penstock.warehouse.format import table_format
from penstock.warehouse.lease import TableLeases


class AssetRestorer:
    """Reads the evidence of one asset in the lake, and writes what follows from it to the state database."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def preview(
        self,
        database: Database,
        asset: tuple[str, str],
        tables: Sequence[FoundTable],
        contracts: Mapping[str, Contract],
        facts: ExportedFacts,
        report: Report,
    ) -> tuple[AssetEvidence, AssetRecovery]:
        """The evidence of one asset, and what `restore` would write; changes nothing."""
        context = self._context
        opened = [table_format(context.lake).open(table.name, table.location) for table in tables]
        with database.snapshot() as connection:
            known = read_asset(connection, *asset)
        evidence = collect_evidence(
            context.lake, asset, opened, contracts, facts, _accepted(known), context.now(), report
        )
        return evidence, _planned(asset, known, evidence, evidence.in_raw, self._published_at(database, tables))

    def restore(
        self,
        asset: tuple[str, str],
        tables: Sequence[FoundTable],
        contracts: Mapping[str, Contract],
        facts: ExportedFacts,
        worker_token: str,
        entry: AuditEntry,
        report: Report,
    ) -> tuple[AssetEvidence, AssetRecovery]:
        """Read the evidence of one asset under its leases and behind a fence, and write it in one transaction."""
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
        """Discard the prepared batches of others on these tables: their commits are evidence as well."""
        now = self._context.now()
        leases.require(connection, batch.tables)
        for other in batches.prepared_batches(connection, batch.tables):
            batches.adopt(connection, other, leases.token)
            batches.discard(connection, other, leases.token, now)
        batches.prepare(connection, batch, leases.token, None, (), (), now)

    def _published_at(self, database: Database, tables: Sequence[FoundTable]) -> datetime | None:
        """The time of the newest publication that the database does not know, from its id."""
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
