"""Vacuum: deletes data files that no current version, snapshot or reader needs."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from penstock.db.engine import Database
from penstock.errors import UsageError
from penstock.lake import Lake
from penstock.warehouse import batch as batches
from penstock.warehouse.consistency import refuse_mismatch
from penstock.warehouse.format import Table, table_format
from penstock.warehouse.heads import TableHead
from penstock.warehouse.lease import TableLeases

LEAST = timedelta(hours=1)  # readers may still use the heads from before the last publication


def require_retention(retention: timedelta) -> None:
    """Raise UsageError if the retention is so short that running readers could need deleted files."""
    if retention < LEAST:
        raise UsageError(f"--retention must be at least {LEAST}: readers may still be reading what was replaced")


def vacuum_table(
    database: Database,
    lake: Lake,
    worker_token: str,
    head: TableHead,
    keep: Collection[tuple[int, str | None]],
    retention: timedelta,
) -> list[str]:
    """Delete the unused files of a table. Returns their paths. Raises UsageError if a publication was interrupted,
    because it may need its staged files: the next publisher finishes it.

    Runs under the table's lease, so that no publication stages files at the same time, and behind the fence, so that a
    publisher that lost its lease cannot commit files that are deleted here."""
    require_retention(retention)
    leases = TableLeases(database, worker_token)
    try:
        leases.acquire([head.name])
        refuse_mismatch(database, lake, head.name)
        table = table_format(lake).open(head.name, head.location).fence()
        with database.snapshot() as connection:
            if batches.prepared_batches(connection, [head.name]):
                raise _interrupted(head)
        return _vacuum(table, keep, retention, dry_run=False)
    finally:
        leases.release()


def preview_vacuum(
    database: Database, lake: Lake, head: TableHead, keep: Collection[tuple[int, str | None]], retention: timedelta
) -> list[str]:
    """The files that `vacuum_table` would delete now. Takes no lease and changes nothing. The staged files of a running
    publication are younger than the retention, so they are not listed."""
    require_retention(retention)
    with database.snapshot() as connection:
        if head.name in batches.abandoned_tables(connection):
            raise _interrupted(head)
    return _vacuum(table_format(lake).open(head.name, head.location), keep, retention, dry_run=True)


def _vacuum(
    table: Table, keep: Collection[tuple[int, str | None]], retention: timedelta, *, dry_run: bool
) -> list[str]:
    hours = int(retention.total_seconds() // 3600)
    # If the table was created again, the version number of an older snapshot belongs to another version now.
    existing = {v for v, batch in keep if v <= table.version and (batch is None or table.has_published(batch))}
    return table.vacuum(sorted(existing), hours, dry_run=dry_run)


def _interrupted(head: TableHead) -> UsageError:
    return UsageError(f"a publication to {head.name} was interrupted: run `penstock warehouse reconcile` first")
