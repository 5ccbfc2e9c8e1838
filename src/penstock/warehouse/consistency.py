"""Whether the lake and the state database belong together, table by table.

A lake belongs to one database: both carry the same identity. A database knows each publication before its Delta commit
is made. A version beyond the recorded head that changes files and names no known publication is therefore the work of
another database, or of this one before it was restored from an older backup.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

import orjson
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from penstock.db import schema
from penstock.db.engine import Database
from penstock.errors import LakeMismatch
from penstock.lake import Lake
from penstock.lake.protocol import LakeObjectMissing
from penstock.warehouse.delta_log import Commit, commits_after, log_path, table_locations

if TYPE_CHECKING:
    from penstock.warehouse.tables import Table

IDENTITY = "penstock.json"
_NAMES = 10_000  # in one statement
_LISTED = 5


class MismatchKind(StrEnum):
    LAKE_AHEAD = "lake_ahead"  # the table has versions that the database did not write
    LAKE_BEHIND = "lake_behind"  # the head names a version that the table does not have
    TABLE_MISSING = "table_missing"  # the head names a table that is not there
    TABLE_REPLACED = "table_replaced"  # the version of the head is not the publication that the database recorded
    UNKNOWN_TABLE = "unknown_table"  # the lake has a table that the database does not name
    FOREIGN_LAKE = "foreign_lake"  # the lake carries the identity of another database
    UNMARKED_LAKE = "unmarked_lake"  # the lake carries no identity: it is new, was emptied or was replaced


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One disagreement between the lake and the database, and the commands that resolve it."""

    kind: MismatchKind
    table: str | None
    detail: str

    @property
    def asset(self) -> str | None:
        """`source.query_name`; None if the whole lake is concerned."""
        return self.table.rpartition(".")[0] if self.table else None

    @property
    def source(self) -> str | None:
        return self.table.partition(".")[0] if self.table else None

    @property
    def message(self) -> str:
        return messages([self])[0]


def messages(found: Iterable[Mismatch]) -> list[str]:
    """One line for each kind of disagreement: the tables, what was found, and the commands that resolve it."""
    by_kind: dict[MismatchKind, list[Mismatch]] = {}
    for one in found:
        by_kind.setdefault(one.kind, []).append(one)
    return [f"{_what(kind, ones)}; {_remedy(kind)}" for kind, ones in by_kind.items()]


def _what(kind: MismatchKind, ones: Sequence[Mismatch]) -> str:
    if len(ones) == 1 or kind in (MismatchKind.FOREIGN_LAKE, MismatchKind.UNMARKED_LAKE):
        return f"table {ones[0].table}: {ones[0].detail}" if ones[0].table else ones[0].detail
    few = ", ".join(str(one.table) for one in ones[:_LISTED]) + (", ..." if len(ones) > _LISTED else "")
    return f"{len(ones):,} tables ({few}): for example {ones[0].table}: {ones[0].detail}"


def _remedy(kind: MismatchKind) -> str:
    match kind:
        case MismatchKind.UNKNOWN_TABLE:
            return (
                "`penstock recover --from lake` takes it into the database; if nobody needs it, delete its folder from"
                " the lake"
            )
        case MismatchKind.LAKE_AHEAD:
            return (
                "nothing is published there until `penstock recover --from lake` (the database is lost or older:"
                " bring it forward) or `penstock recover --from database` (the database is right: rebuild from raw)"
            )
        case MismatchKind.FOREIGN_LAKE:
            return (
                "point `lake:` and `state:` in penstock.yaml at a lake and a database that belong together; if the"
                " database of this lake is lost, `penstock recover --from lake` rebuilds it"
            )
        case MismatchKind.UNMARKED_LAKE:
            return "`penstock db migrate` marks it as the lake of this database"
        case MismatchKind.LAKE_BEHIND | MismatchKind.TABLE_MISSING | MismatchKind.TABLE_REPLACED:
            return "`penstock recover --from database --table TABLE` rebuilds a table from raw"
        case _:
            assert_never(kind)


@dataclass(frozen=True, slots=True)
class RecordedHead:
    """A table as the database records it. `version` is None before the first publication."""

    name: str
    location: str
    version: int | None
    publication: str | None


def recorded_heads(connection: Connection, tables: Collection[str] | None = None) -> list[RecordedHead]:
    """The heads of these tables (all tables by default), by name."""
    t = schema.warehouse_table.c
    statement = sa.select(t.table_name, t.location, t.version, t.publication).order_by(t.table_name)
    if tables is not None:
        statement = statement.where(t.table_name.in_(sorted(tables)))
    return [RecordedHead(*row) for row in connection.execute(statement)]


def known_publications(connection: Connection, publications: Iterable[str]) -> set[str]:
    """Those of these publications that the database prepared or published."""
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
    """Where the lake and the database disagree. Reads two log entries for each table; with `everything` it lists the
    logs, and the warehouse for tables that the database does not name. A publication under way is no disagreement."""
    found = _identity_mismatches(database, lake)
    with database.snapshot() as connection:
        heads = recorded_heads(connection)
    later = [_commits_beyond(lake, head, thorough=everything) for head in heads]
    with database.snapshot() as connection:  # taken after the log was read: it knows every publication seen there
        now = {head.name: head for head in recorded_heads(connection)}
        for head, entry, commits in zip(heads, _head_entries(lake, heads), later, strict=True):
            current = now.get(head.name, head)
            if current.version != head.version:
                continue  # published meanwhile, by a publisher that made the same check
            if head.version is not None and (entry is None or not _is_of(entry, head)):
                found += examine_table(lake, head)
            if unknown := unknown_commits(connection, commits):
                found.append(lake_ahead(head, unknown))
    if everything:
        found += unknown_tables(lake, {head.location for head in now.values()})
    return found


def lake_without_database(lake: Lake, database: str) -> list[Mismatch]:
    """What a lake holds of a database that does not exist or has no schema; nothing if the lake is new."""
    if identity := lake_identity(lake):
        detail = (
            f"the lake {lake.url} belongs to a state database with the identity {identity}, and {database} is empty"
            " or does not exist"
        )
        return [Mismatch(MismatchKind.FOREIGN_LAKE, None, detail)]
    return unknown_tables(lake, ())


def refuse_mismatch(database: Database, lake: Lake, table: str) -> None:
    """Raise LakeMismatch if this table disagrees with the database. The caller holds the table's lease."""
    with database.snapshot() as connection:
        [head] = recorded_heads(connection, [table])
        unknown = unknown_commits(connection, _commits_beyond(lake, head, thorough=True))
    for mismatch in [*examine_table(lake, head), *([lake_ahead(head, unknown)] if unknown else [])]:
        raise LakeMismatch(mismatch.message)


def examine_table(lake: Lake, head: RecordedHead) -> list[Mismatch]:
    """Whether the table has the version of its head, made by the recorded publication. Opens the table."""
    from penstock.warehouse.tables import Table, table_exists

    if not table_exists(lake, head.location):
        detail = f"there is no Delta table at {lake.uri(head.location)}, and the head names version {head.version}"
        return [Mismatch(MismatchKind.TABLE_MISSING, head.name, detail)]
    return examine_opened(Table(lake, head.name, head.location), head)


def examine_opened(table: Table, head: RecordedHead) -> list[Mismatch]:
    """The same for a table that is open at its newest version. A table whose newest publication is later than the one
    of the head was created again since: the database is the older side. Publications are named in order of time."""
    known = head.publication is None or table.has_published(head.publication)
    behind = head.version is not None and table.version < head.version
    if head.publication and (behind or not known):
        commits = list(commits_after(table.lake, head.location, -1, table.version))
        later = [c for c in commits if any(name > head.publication for name in c.publications)]
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
    versions = [commit.version for commit in unknown]
    few = ", ".join(map(str, versions[:_LISTED])) + (", ..." if len(versions) > _LISTED else "")
    readers = "readers see nothing of it" if head.version is None else f"readers see version {head.version}"
    noun = "version" if len(versions) == 1 else "versions"
    detail = f"this database did not write its {noun} {few} ({readers})"
    return Mismatch(MismatchKind.LAKE_AHEAD, head.name, detail)


def unknown_tables(lake: Lake, known: Collection[str]) -> list[Mismatch]:
    """The tables of the lake that are not among the known locations."""
    return [
        Mismatch(MismatchKind.UNKNOWN_TABLE, _table_name(location), "the database does not know this table of the lake")
        for location in sorted(table_locations(lake) - set(known))
    ]


# --- identity ---------------------------------------------------------------------------------------------------------


def lake_identity(lake: Lake) -> str | None:
    """The identity that the lake carries; None if it carries none."""
    try:
        data = lake.read(IDENTITY)
    except LakeObjectMissing:
        return None
    try:
        return str(orjson.loads(data)["identity"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise LakeMismatch(
            f"{lake.url}/{IDENTITY} is damaged ({error}): delete it, then run `penstock db migrate`"
        ) from error


def database_identity(connection: Connection) -> str | None:
    found: str | None = connection.scalar(sa.select(schema.workspace.c.identity))
    return found


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
        names = ", ".join(str(one.table) for one in unknown[:5]) + (", ..." if len(unknown) > 5 else "")
        raise LakeMismatch(
            f"the lake {lake.url} has tables that this database does not know ({names}): if the database is lost or"
            " older than the lake, `penstock recover --from lake` rebuilds it; otherwise give this workspace its own"
            " `lake:`"
        )


def claim_lake(database: Database, lake: Lake) -> None:
    """Write the database's identity into a lake that carries none; another database that was first is refused."""
    with database.snapshot() as connection:
        identity = database_identity(connection)
    if lake_identity(lake) is None:
        lake.create(IDENTITY, orjson.dumps({"format": 1, "identity": identity}))
        lake.sync()
    require_own_lake(database, lake)


def require_own_lake(database: Database, lake: Lake) -> None:
    """Raise LakeMismatch unless the lake carries the identity of this database."""
    for mismatch in _identity_mismatches(database, lake):
        raise LakeMismatch(mismatch.message)


def _identity_mismatches(database: Database, lake: Lake) -> list[Mismatch]:
    found = lake_identity(lake)
    with database.snapshot() as connection:
        own = database_identity(connection)
    if found == own:
        return []
    if found is None:
        detail = f"the lake {lake.url} carries no identity: it is new, was emptied or was replaced"
        return [Mismatch(MismatchKind.UNMARKED_LAKE, None, detail)]
    detail = f"the lake {lake.url} belongs to another database (its identity is {found}, this one's is {own})"
    return [Mismatch(MismatchKind.FOREIGN_LAKE, None, detail)]


# --- inside -----------------------------------------------------------------------------------------------------------


def _is_of(entry: Commit, head: RecordedHead) -> bool:
    return head.publication is None or head.publication in entry.publications


def _head_entries(lake: Lake, heads: Sequence[RecordedHead]) -> list[Commit | None]:
    paths = [log_path(head.location, head.version or 0) for head in heads]
    return [
        None if data is None else Commit.parse(head.version or 0, data, path)
        for head, path, data in zip(heads, paths, lake.read_many(paths), strict=True)
    ]


def _commits_beyond(lake: Lake, head: RecordedHead, *, thorough: bool) -> list[Commit]:
    """The commits beyond the head. A thorough look lists the log, because an entry may be missing in the middle."""
    recorded = -1 if head.version is None else head.version
    if not thorough:
        return list(commits_after(lake, head.location, recorded))
    folder = f"{head.location}/_delta_log"
    numbers = [entry.path.rpartition("/")[2].partition(".")[0] for entry in lake.list(folder)]
    newest = max((int(number) for number in numbers if number.isdigit()), default=-1)
    return list(commits_after(lake, head.location, recorded, newest)) if newest > recorded else []


def _table_name(location: str) -> str:
    return location.removeprefix("warehouse/").replace("/", ".")
