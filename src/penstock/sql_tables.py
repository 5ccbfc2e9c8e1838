"""Finds and renames the tables that SQL reads. sqlglot's syntax tree finds the names, and only they change in the text.

The text is not generated from the tree: sqlglot would normalise functions, literals and hints, and the engine has to
run what its user wrote.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sqlglot import exp


class TableReference(NamedTuple):
    """The name of a table in a text, from `start` up to `end`: as a table, or as the qualifier of a column."""

    start: int
    end: int
    table: str


def table_references(tree: exp.Expr, tables: Container[str]) -> Iterator[TableReference]:
    """Every occurrence of these tables (`source.query_name` in lower case) in the text from which `tree` was parsed. In
    `source.column` the first part is no source if the statement has an alias of that name."""
    from sqlglot import exp

    aliases = {alias.name.lower() for alias in tree.find_all(exp.TableAlias)}
    named: list[exp.Table | exp.Column] = [*tree.find_all(exp.Table), *tree.find_all(exp.Column)]
    for node in named:
        parts = [part for part in node.parts[:2] if isinstance(part, exp.Identifier)]
        table = ".".join(part.name for part in parts).lower()
        if table in tables and not (isinstance(node, exp.Column) and parts[0].name.lower() in aliases):
            yield TableReference(parts[0].meta["start"], parts[1].meta["end"] + 1, table)


def is_common_table(table: exp.Table) -> bool:
    """Whether a name without a source is a common table expression that is visible at its position."""
    from sqlglot import exp

    name = table.name.lower()
    node: exp.Expr = table
    own: exp.Expr | None = None  # the expression of the WITH clause that contains the table
    while node.parent is not None:
        parent = node.parent
        if isinstance(node, exp.CTE):
            own = node
        if isinstance(node, exp.With):
            visible = []
            for one in node.expressions:
                if one is own and not node.recursive:
                    break
                visible.append(one.alias.lower())
                if one is own:
                    break
            if name in visible:
                return True
        else:
            clause = next((value for value in parent.args.values() if isinstance(value, exp.With)), None)
            if clause is not None and name in [one.alias.lower() for one in clause.expressions]:
                return True
        node = parent
    return False


def with_tables_renamed(statement: str, names: Mapping[str, str], dialect: str) -> str:
    """The statement with these tables (in lower case) renamed. Literals and comments do not change."""
    import logging

    import sqlglot
    from sqlglot.errors import SqlglotError

    logging.getLogger("sqlglot").setLevel(logging.CRITICAL + 1)
    try:
        trees = [tree for tree in sqlglot.parse(statement, dialect=dialect) if tree is not None]
        found = [reference for tree in trees for reference in table_references(tree, names)]
    except (SqlglotError, RecursionError):  # the engine accepts more than sqlglot can parse
        found = list(_references_in_tokens(statement, names, dialect))
    parts, at = [], 0
    for start, end, table in sorted(found):
        parts += [statement[at:start], names[table]]
        at = end
    return "".join([*parts, statement[at:]])


def _references_in_tokens(statement: str, tables: Container[str], dialect: str) -> Iterator[TableReference]:
    """Every `source.query_name` among the tokens of the statement, without knowledge of aliases."""
    import sqlglot

    tokens = sqlglot.tokenize(statement, read=dialect)
    kinds = ["", *(token.token_type.name for token in tokens)]
    for before, dot, first, second in zip(kinds, kinds[2:], tokens, tokens[2:], strict=False):
        table = f"{first.text}.{second.text}".lower()
        if before != "DOT" and dot == "DOT" and table in tables:
            yield TableReference(first.start, second.end + 1, table)
