"""Finds the input columns of each column of a SQL model with sqlglot, without executing it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlglot import exp
    from sqlglot.optimizer.scope import Scope


class Use(StrEnum):
    """How a column is used: the subtypes of OpenLineage, those of values first, from the weakest to the strongest."""

    IDENTITY = "IDENTITY"
    TRANSFORMATION = "TRANSFORMATION"
    AGGREGATION = "AGGREGATION"
    CONDITIONAL = "CONDITIONAL"  # decides which value is taken
    WINDOW = "WINDOW"  # partitions or sorts a window
    JOIN = "JOIN"
    FILTER = "FILTER"
    GROUP_BY = "GROUP_BY"
    SORT = "SORT"

    @property
    def is_direct(self) -> bool:
        """Whether the value of the output is made from the value of the input."""
        return self in (Use.IDENTITY, Use.TRANSFORMATION, Use.AGGREGATION)


@dataclass(frozen=True, slots=True, order=True)
class InputColumn:
    """A column of an input table, and how it is used."""

    table: str
    column: str
    use: Use


@dataclass(frozen=True, slots=True)
class ColumnLineage:
    """The input columns of each output column, and those that decide about the rows of the whole table."""

    columns: dict[str, list[InputColumn]]
    table: list[InputColumn]


class LineageUnknown(Exception):
    """The text of a statement does not show where its columns come from."""


def column_lineage(statement: str, tables: Mapping[str, Mapping[str, str]], outputs: Sequence[str]) -> ColumnLineage:
    """The lineage of these output columns of a Spark SQL statement. `tables` are the types of the columns of each table
    `source.query_name`. Raises LineageUnknown if the statement cannot be analysed."""
    from sqlglot.errors import SqlglotError
    from sqlglot.optimizer.scope import build_scope

    try:
        root = build_scope(_qualified(statement, tables))
        if root is None:
            raise LineageUnknown("it is not a SELECT")
        tracer = _ColumnTracer(tables)
        found = {name: sorted(set(tracer.output(root, name))) for name in outputs}
        return ColumnLineage(found, sorted({one for scope in root.traverse() for one in tracer.row_columns(scope)}))
    except (SqlglotError, RecursionError) as error:
        raise LineageUnknown(str(error).partition("\n")[0] or "it is nested too deeply") from error


def _qualified(statement: str, tables: Mapping[str, Mapping[str, str]]) -> exp.Expr:
    """The syntax tree with the table of each column, and with the columns of each star."""
    import logging

    import sqlglot
    from sqlglot import exp
    from sqlglot.optimizer.qualify import qualify

    logging.getLogger("sqlglot").setLevel(logging.CRITICAL + 1)
    tree = sqlglot.parse_one(statement, dialect="spark")
    if tree.find(exp.SetOperation) and any(select.is_star for select in tree.find_all(exp.Select)):
        # Its branches are matched by position, and a table of several schema versions has no certain order.
        raise LineageUnknown("a star in a UNION does not name its columns")
    if unclear := tree.find(exp.Lateral, exp.Pivot, exp.Unnest, exp.Values):
        raise LineageUnknown(f"{unclear.key.upper()} makes rows from values")
    schema: dict[str, object] = {}
    for name, columns in tables.items():
        source, _, table = name.partition(".")
        group = schema.setdefault(source, {})
        assert isinstance(group, dict)
        group[table] = dict(columns)
    return qualify(tree, schema=schema, dialect="spark", quote_identifiers=False)


class _ColumnTracer:
    """Follows columns through subqueries and common table expressions to the input tables."""

    def __init__(self, tables: Mapping[str, Mapping[str, str]]) -> None:
        self._written = {
            name.lower(): (name, {column.lower(): column for column in columns}) for name, columns in tables.items()
        }

    def output(self, scope: Scope, name: str) -> Iterator[InputColumn]:
        """The inputs of an output column of a query."""
        names = [found.lower() for found in _query(scope).named_selects]
        if names.count(name.lower()) != 1:
            raise LineageUnknown(f"its columns are {', '.join(names)}, without a single {name}")
        yield from self._projection(scope, names.index(name.lower()))

    def _projection(self, scope: Scope, position: int) -> Iterator[InputColumn]:
        """The inputs of a column by its position; a set operation has those of each of its branches."""
        from sqlglot import exp

        if isinstance(scope.expression, exp.SetOperation):
            for branch in scope.set_operation_scopes:
                yield from self._projection(branch, position)
        else:
            yield from self._inputs(_query(scope).selects[position].unalias(), scope)

    def row_columns(self, scope: Scope) -> Iterator[InputColumn]:
        """The columns that decide about rows of a query: joins, filters, groups and order."""
        from sqlglot import exp

        select = _query(scope)
        clauses: list[tuple[Use, exp.Expr | None]] = [
            (Use.FILTER, select.args.get("where")),
            (Use.FILTER, select.args.get("having")),
            (Use.FILTER, select.args.get("qualify")),
            (Use.SORT, select.args.get("order")),
            (Use.GROUP_BY, select.args.get("group")),
            *((Use.JOIN, join.args.get("on")) for join in select.args.get("joins") or ()),
        ]
        if (group := select.args.get("group")) is not None and group.args.get("all"):
            clauses += [(Use.GROUP_BY, one.unalias()) for one in select.selects if not one.find(exp.AggFunc)]
        for use, clause in clauses:
            for found in self._inputs(clause, scope) if clause is not None else ():
                yield InputColumn(found.table, found.column, use)

    def _inputs(self, expression: exp.Expr, scope: Scope) -> Iterator[InputColumn]:
        """The input columns of an expression of a query."""
        from sqlglot import exp

        for node in expression.walk(prune=lambda found: isinstance(found, exp.Query)):
            if isinstance(node, exp.Query):
                query = node.unnest()
                inner = next((one for one in scope.subquery_scopes if one.expression is query), None)
                if inner is None:
                    raise LineageUnknown(f"the columns of {node.sql(dialect='spark')} are unclear")
                for position in range(len(_query(inner).selects)):
                    yield from _stronger(self._projection(inner, position), Use.TRANSFORMATION)
            elif isinstance(node, exp.Column):
                yield from _stronger(self._sources(node, scope), _use_of(node, expression))

    def _sources(self, column: exp.Column, scope: Scope) -> Iterator[InputColumn]:
        """The input columns that a name of a query stands for."""
        from sqlglot import exp
        from sqlglot.optimizer.scope import Scope

        source = scope.sources.get(column.table)
        if not column.table:  # ORDER BY may name a column of the result
            yield from self.output(scope, column.name)
        elif source is None and scope.parent is not None and scope.is_correlated_subquery:
            yield from self._sources(column, scope.parent)
        elif isinstance(source, Scope):
            yield from self.output(source, column.name)
        elif isinstance(source, exp.Table):
            name, columns = self._written.get(f"{source.db}.{source.name}".lower(), ("", {}))
            if column.name.lower() not in columns:
                raise LineageUnknown(f"{column.sql(dialect='spark')} is no column of a known table")
            yield InputColumn(name, columns[column.name.lower()], Use.IDENTITY)
        else:
            raise LineageUnknown(f"the table of {column.sql(dialect='spark')} is unclear")


def _query(scope: Scope) -> exp.Query:
    from sqlglot import exp

    if not isinstance(scope.expression, exp.Query):
        raise LineageUnknown(f"{scope.expression.key.upper()} is no query")
    return scope.expression


def _use_of(column: exp.Column, expression: exp.Expr) -> Use:
    """How an expression uses one of its columns."""
    from sqlglot import exp

    if column is expression:
        return Use.IDENTITY
    use, node = Use.TRANSFORMATION, column.parent
    below: exp.Expr = column
    while node is not None:
        if isinstance(node, exp.Window) and below is not node.this:
            return Use.WINDOW
        if isinstance(node, exp.If) and below is node.this:
            return Use.CONDITIONAL
        if isinstance(node, exp.Case) and below is node.this:
            return Use.CONDITIONAL
        if isinstance(node, exp.AggFunc):
            use = Use.AGGREGATION
        if node is expression:
            break
        below, node = node, node.parent
    return use


def _stronger(found: Iterator[InputColumn], use: Use) -> Iterator[InputColumn]:
    """The columns with their own use or this one, whichever says more about the value."""
    order = list(Use)
    for one in found:
        yield InputColumn(one.table, one.column, max(one.use, use, key=order.index))
