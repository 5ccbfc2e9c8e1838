"""Checks that the lake and the state database agree, table by table.

The database records each publication before its table commit. A version beyond the recorded head that changes files and
records no known publication therefore comes from another database, or from this one before it was restored from an
older backup.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db import schema
from penstock.db.engine import Database
from penstock.errors import LakeMismatch
from penstock.lake import Lake
from penstock.warehouse.catalog import RecordedHead, recorded_heads
from penstock.warehouse.format import Commit, Table, TableFormat, table_format
from penstock.warehouse.identity import database_identity, identity_mismatches, lake_identity
from penstock.warehouse.layout import table_name
from penstock.warehouse.mismatch import Mismatch, MismatchKind

_NAMES = 10_000  # in one statement
_LISTED = 5  # versions or tables in a message


def known_publications(connection: Connection, publications: Iterable[str]) -> set[str]:
    """Return the publications among these that the database prepared or published."""
    batch, names = schema.load_batch.c, sorted(set(publications))
    found: set[str] = set()
    for at in range(0, len(names), _NAMES):
        some = batch.batch_id.in_(names[at : at + _NAMES])
        statement = sa.select(batch.batch_id).where(some, batch.status.in_(("prepared", "published")))
        found |= set(connection.scalars(statement))
    return found


def unknown_commits(connection: Connection, commits: Sequence[Commit]) -> list[Commit]:
    """The commits that change files and that the database did not prepare."""
    changing = [commit for commit in commits if commit.changes_files]
    known = known_publications(connection, (name for commit in changing for name in commit.publications))
    return [commit for commit in changing if not known & set(commit.publications)]


def mismatches(database: Database, lake: Lake, *, everything: bool = False) -> list[Mismatch]:
    """The disagreements between the lake and the database. Reads two log entries for each table. With `everything` it
    also lists the logs, and finds tables that the database does not know. A running publication is no mismatch."""
    found = identity_mismatches(database, lake)
    with database.snapshot() as connection:
        heads = recorded_heads(connection)
    tables = table_format(lake)
    later = [_commits_beyond(tables, head, thorough=everything) for head in heads]
    with database.snapshot() as connection:  # taken after the log was read, so it contains every publication in the log
        now = {head.name: head for head in recorded_heads(connection)}
        for head, entry, commits in zip(heads, _head_commits(tables, heads), later, strict=True):
            current = now.get(head.name, head)
            if current.version != head.version:
                continue  # a concurrent publisher, which makes the same check, advanced the head
            if head.version is not None and (entry is None or not _records_head(entry, head)):
                found += examine_table(lake, head)
            if unknown := unknown_commits(connection, commits):
                found.append(lake_ahead(head, unknown))
    if everything:
        found += unknown_tables(lake, {head.location for head in now.values()})
    return found


def lake_without_database(lake: Lake, database: str) -> list[Mismatch]:
    """The mismatches of a lake whose database does not exist or has no schema; none if the lake is new."""
    if identity := lake_identity(lake):
        detail = (
            f"the lake {lake.url} belongs to a state database with the identity {identity}, and {database} is empty"
            " or does not exist"
        )
        return [Mismatch(MismatchKind.FOREIGN_LAKE, None, detail)]
    return unknown_tables(lake, ())


def refuse_foreign_lake(connection: Connection, lake: Lake, *, unknown_tables_too: bool = True) -> None:
    """Raise LakeMismatch if the lake belongs to another database, or has tables that this one does not know."""
    own, found = database_identity(connection), lake_identity(lake)
    if found is not None and found != own:
        raise LakeMismatch(
            f"the lake {lake.url} belongs to another state database (its identity is {found}, this one's is {own}):"
            " point `state:` at the database it belongs to or give this workspace its own `lake:`;"
            " if that database is lost, `penstock recover --from lake` rebuilds it"
        )
    known = {head.location for head in recorded_heads(connection)}
    unknown = unknown_tables(lake, known) if unknown_tables_too else []
    if unknown:
        names = ", ".join(str(one.table) for one in unknown[:_LISTED]) + (", ..." if len(unknown) > _LISTED else "")
        raise LakeMismatch(
            f"the lake {lake.url} has tables that this database does not know ({names}): if the database is lost or"
            " older than the lake, `penstock recover --from lake` rebuilds it; otherwise give this workspace its own"
            " `lake:`"
        )


def refuse_mismatch(database: Database, lake: Lake, table: str) -> None:
    """Raise LakeMismatch if this table disagrees with the database. The caller holds the table's lease."""
    with database.snapshot() as connection:
        [head] = recorded_heads(connection, [table])
        unknown = unknown_commits(connection, _commits_beyond(table_format(lake), head, thorough=True))
    for mismatch in [*examine_table(lake, head), *([lake_ahead(head, unknown)] if unknown else [])]:
        raise LakeMismatch(mismatch.message)


def examine_table(lake: Lake, head: RecordedHead) -> list[Mismatch]:
    """The mismatches of one table: it must have the version of its head, with the recorded publication."""
    tables = table_format(lake)
    if not tables.exists(head.location):
        detail = f"there is no Delta table at {lake.uri(head.location)}, and the head names version {head.version}"
        return [Mismatch(MismatchKind.TABLE_MISSING, head.name, detail)]
    return examine_opened(tables.open(head.name, head.location), head)


def examine_opened(table: Table, head: RecordedHead) -> list[Mismatch]:
    """The same for a table that is open at its newest version. If the table has a later publication than the head, it
    was created again and the database is the older side: the ids of publications are ordered by time."""
    known = head.publication is None or table.has_published(head.publication, head.version)
    behind = head.version is not None and table.version < head.version
    if head.publication and (behind or not known):
        later = [c for c in table.history() if any(name > head.publication for name in c.publications)]
        if later:
            return [lake_ahead(head, later)]
    if head.version is not None and table.version < head.version:
        detail = f"its newest version is {table.version}, and the head names version {head.version}"
        return [Mismatch(MismatchKind.LAKE_BEHIND, head.name, detail)]
    if not known:
        detail = f"version {head.version} is not the publication {head.publication} that the database recorded"
        return [Mismatch(MismatchKind.TABLE_REPLACED, head.name, detail)]
    return []


def lake_ahead(head: RecordedHead, unknown: Sequence[Commit]) -> Mismatch:
    """The mismatch for commits that this database did not prepare."""
    versions = [commit.version for commit in unknown]
    few = ", ".join(map(str, versions[:_LISTED])) + (", ..." if len(versions) > _LISTED else "")
    readers = "readers see nothing of it" if head.version is None else f"readers see version {head.version}"
    noun = "version" if len(versions) == 1 else "versions"
    detail = f"this database did not write its {noun} {few} ({readers})"
    return Mismatch(MismatchKind.LAKE_AHEAD, head.name, detail)


def unknown_tables(lake: Lake, known: Collection[str]) -> list[Mismatch]:
    """The tables of the lake that are not among the known locations."""
    return [
        Mismatch(MismatchKind.UNKNOWN_TABLE, table_name(location), "the database does not know this table of the lake")
        for location in sorted(table_format(lake).locations() - set(known))
    ]


def _records_head(entry: Commit, head: RecordedHead) -> bool:
    return head.publication is None or head.publication in entry.publications


def _head_commits(tables: TableFormat, heads: Sequence[RecordedHead]) -> list[Commit | None]:
    return tables.commits_at([(head.location, head.version or 0) for head in heads])


def _commits_beyond(tables: TableFormat, head: RecordedHead, *, thorough: bool) -> list[Commit]:
    """The commits beyond the head. A thorough search lists the log, because an entry may be missing in the middle."""
    recorded = -1 if head.version is None else head.version
    if not thorough:
        return list(tables.commits_after(head.location, recorded))
    newest = tables.newest_version(head.location)
    return list(tables.commits_after(head.location, recorded, newest)) if newest > recorded else []
