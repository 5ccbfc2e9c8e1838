"""Translates a violated constraint or a refusing trigger of the state database into a domain error, by its name.

PostgreSQL reports the name of a constraint. SQLite reports the name of a CHECK constraint, the columns of a unique one,
and nothing for a foreign key.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import sqlalchemy as sa

from penstock.db.schema import metadata
from penstock.db.triggers import REFUSALS
from penstock.errors import HistoryProtected, ImpossibleRow, PenstockError, StateConflict


def constraint_error(error: Exception, database: object) -> PenstockError | None:
    """The domain error for the driver's error; None if it violates no constraint and no trigger of the schema."""
    name = violated_constraint(error)
    if name is None or (kind := _domain_errors().get(name)) is None:
        return None
    text = str(error).strip()
    message = f"the state database {database} refused a change: {text if name in text else f'{name}: {text}'}"
    if kind is StateConflict:
        message = f"{' '.join(message.split())}; another process wrote the same rows first: run the command again"
    return kind(message)


def violated_constraint(error: Exception) -> str | None:
    """The name of the constraint or trigger that the driver's error reports; None if it reports none."""
    diagnosis = getattr(error, "diag", None)  # psycopg
    if diagnosis is not None and diagnosis.constraint_name:
        return str(diagnosis.constraint_name)
    subject, _, rest = str(error).partition("\n")[0].partition(": ")
    match subject:
        case "CHECK constraint failed":
            return rest
        case "UNIQUE constraint failed":
            return _unique_names().get(frozenset(rest.split(", ")))
        case _:
            return subject if rest and subject in {refusal.name for refusal in REFUSALS} else None


@cache
def _domain_errors() -> dict[str, type[PenstockError]]:
    found: dict[str, type[PenstockError]] = {refusal.name: HistoryProtected for refusal in REFUSALS}
    for table in metadata.tables.values():
        for constraint in table.constraints:
            if isinstance(constraint, sa.CheckConstraint | sa.ForeignKeyConstraint) and constraint.name:
                found[str(constraint.name)] = ImpossibleRow
    return found | {name: StateConflict for name, _ in _unique_constraints()}


@cache
def _unique_names() -> dict[frozenset[str], str]:
    """The names of unique constraints by the columns that SQLite reports, `table.column`."""
    return {columns: name for name, columns in _unique_constraints()}


def _unique_constraints() -> Iterator[tuple[str, frozenset[str]]]:
    for table in metadata.tables.values():
        keys = [c for c in table.constraints if isinstance(c, sa.PrimaryKeyConstraint | sa.UniqueConstraint) and c.name]
        for key in [*keys, *(index for index in table.indexes if index.unique)]:
            yield str(key.name), frozenset(f"{table.name}.{column.name}" for column in key.columns)
