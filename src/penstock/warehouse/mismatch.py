"""A disagreement between the lake and the state database: its kind, and the commands that resolve it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

_LISTED = 5  # tables in a message


class MismatchKind(StrEnum):
    """The kinds of disagreements."""

    LAKE_AHEAD = "lake_ahead"  # the table has versions that the database did not write
    LAKE_BEHIND = "lake_behind"  # the head names a version that the table does not have
    TABLE_MISSING = "table_missing"  # the head names a table that is not there
    TABLE_REPLACED = "table_replaced"  # the version of the head is not the publication that the database recorded
    UNKNOWN_TABLE = "unknown_table"  # the lake has a table that the database does not name
    FOREIGN_LAKE = "foreign_lake"  # the lake carries the identity of another database
    UNMARKED_LAKE = "unmarked_lake"  # the lake carries no identity: it is new, was emptied or was replaced


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One disagreement between the lake and the database."""

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
        """The disagreement, and the commands that resolve it."""
        return messages([self])[0]


def messages(found: Iterable[Mismatch]) -> list[str]:
    """One line for each kind of disagreement: tables, details, and the commands that resolve it."""
    by_kind: dict[MismatchKind, list[Mismatch]] = {}
    for one in found:
        by_kind.setdefault(one.kind, []).append(one)
    return [f"{_finding(kind, ones)}; {_remedy(kind)}" for kind, ones in by_kind.items()]


def _finding(kind: MismatchKind, ones: Sequence[Mismatch]) -> str:
    if len(ones) == 1 or kind in (MismatchKind.FOREIGN_LAKE, MismatchKind.UNMARKED_LAKE):
        return f"table {ones[0].table}: {ones[0].detail}" if ones[0].table else ones[0].detail
    few = ", ".join(str(one.table) for one in ones[:_LISTED]) + (", ..." if len(ones) > _LISTED else "")
    return f"{len(ones):,} tables ({few}): for example {ones[0].table}: {ones[0].detail}"


def _remedy(kind: MismatchKind) -> str:
    match kind:
        case MismatchKind.UNKNOWN_TABLE:
            return (
                "`penstock recover --from lake` adds it to the database; if it is not needed, delete its folder from"
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
