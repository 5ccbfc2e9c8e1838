"""Decides which SQL may run: one SELECT over known tables with listed functions, without access to files or commands.

Spark and sqlglot parse the same text by different rules, so a statement could mean one thing to the guard and another
to the engine. Therefore the text is first split into tokens by the rules of Spark's own lexer, comments are removed,
and ambiguous text is refused. Function calls are found in the tokens. sqlglot finds the shape of the statement and its
tables in the same tokens, with all string literals replaced. Spark executes the text that was checked.

For DuckDB the guard checks DuckDB's own parse tree, so that only one parser interprets the statement.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from string import ascii_lowercase, ascii_uppercase
from typing import TYPE_CHECKING, Any

from penstock import sql_functions
from penstock.sql_tables import TableReference, is_common_table, table_references

if TYPE_CHECKING:
    from sqlglot import exp

LIST = "docs/reference/sql-functions.md"


def _names(groups: Iterable[str]) -> frozenset[str]:
    return frozenset(name for names in groups for name in names.split())


SPARK_FUNCTIONS = _names(sql_functions.SPARK.values())
DUCKDB_FUNCTIONS = _names(sql_functions.DUCKDB.values())
DUCKDB_TABLE_FUNCTIONS = _names([sql_functions.DUCKDB_TABLES])

# Keywords before a parenthesis that are no function call.
_SPARK_KEYWORDS = _names(
    [
        """
        all and anti any array as between by case cast char character cross cube dec decimal distinct div else
        escape except exclude exists extend filter for from full group having ilike in include inner intersect
        join lateral left like limit map minus natural not numeric offset on or order outer over pivot qualify
        regexp repeatable right rlike rollup select semi sets some struct tablesample then timestamp_ltz
        timestamp_ntz union unpivot using values varchar when where with within
        """
    ]
)
_SESSION_WORDS = {"current_user", "session_user"}  # functions that Spark calls without parentheses
_QUERY_WORDS = {"from", "table", "values", "with", "map", "reduce"}  # first words of a subquery besides SELECT

_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
    | (?P<comment>--(?:\\\n|[^\r\n])*)
    | (?P<hint>/\*\+[\w\s,().]*\*/)
    | (?P<block>/\*.*?\*/)
    | (?P<string>[rR]'[^']*'|[rR]"[^"]*"|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")
    | (?P<quoted>`(?:[^`]|``)*`)
    | (?P<word>\w+)
    | (?P<sign>[-.,;()\[\]+*/%<>=!~^&|:])
    """,
    re.VERBOSE | re.DOTALL,
)
_SPARK_OPERATORS = {
    "!>": "<=",
    "!<": ">=",
    ">>>": ">>",
}  # sqlglot cannot parse the first of each pair
_ASCII_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)
_ANY_TEXT = "'01'"  # valid as a string, a date, an interval and hexadecimal digits


class SqlRefused(ValueError):
    """A statement or an expression that may not run, with the reason."""


class UnknownTable(SqlRefused):
    """A statement that reads a table that is not among the known ones."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str

    @property
    def name(self) -> str | None:
        """The identifier in lower case; None for other tokens."""
        if self.kind == "quoted":
            return self.text[1:-1].replace("``", "`").lower()
        return self.text.lower() if self.kind == "word" else None


@dataclass(frozen=True, slots=True)
class SparkStatement:
    """A SELECT that may run on Spark, and the tables that it reads."""

    tables: tuple[str, ...]
    _tokens: tuple[_Token, ...]
    _references: tuple[TableReference, ...]  # by number of the token

    def text(self, views: Mapping[str, str]) -> str:
        """The statement with its tables replaced by views, also in column references such as `source.query.column`."""
        parts, at = [], 0
        for first, end, table in self._references:
            parts += [*(token.text for token in self._tokens[at:first]), views[table]]
            at = end
        return "".join([*parts, *(token.text for token in self._tokens[at:])])


def spark_statement(text: str, known: Collection[str]) -> SparkStatement:
    """Check that `text` is one SELECT for Spark that reads only `known` tables. Raises SqlRefused otherwise."""
    tokens = _tokens(text)
    unlisted = _unlisted_calls(tokens)
    pieces = [_ANY_TEXT if t.kind == "string" else " " if t.kind == "hint" else t.text for t in tokens]
    tree = _parsed("".join(pieces))
    for name in unlisted - _aliases_with_columns(tree):
        raise _unlisted(name)
    tables = _tables(tree, known)
    number = {start: at for at, start in enumerate(accumulate(map(len, pieces), initial=0))}
    references = [
        TableReference(number[start], number[end], table) for start, end, table in table_references(tree, tables)
    ]
    return SparkStatement(tuple(sorted(tables)), tuple(_without_end(tokens)), tuple(sorted(references)))


def check_spark_expression(text: str) -> None:
    """Raise SqlRefused for an expression that calls an unlisted function or contains a query."""
    tokens = _tokens(text)
    for name in _unlisted_calls(tokens):
        raise _unlisted(name)
    code = [token for token in tokens if token.kind not in ("space", "hint")]
    for token, following, second in zip(code, [*code[1:], None], [*code[2:], None, None], strict=False):
        if token.kind == "word" and token.name == "select":
            raise SqlRefused("an expression cannot contain a query")
        if token.text == "(" and following is not None and following.kind == "word" and following.name in _QUERY_WORDS:
            called = second is not None and second.text == "(" and following.name in ("map", "reduce")
            if not called:
                raise SqlRefused("an expression cannot contain a query")
        if token.text == ";":
            raise SqlRefused("an expression cannot contain ';'")


def expression_problems(text: str, fields: Mapping[str, str] | None) -> list[str]:
    """The mistakes in a check expression that can be found without Spark: a syntax error, an unknown column, or a type
    other than boolean. `fields` are types by name; None if they are not known. Spark may still refuse the expression,
    because it checks the types of functions and arguments, too."""
    from sqlglot import exp

    try:
        tree = _parsed_expression(text)
    except SqlRefused as error:
        return [f"cannot be parsed: {error}"]
    except RecursionError:
        return []
    if fields is None:
        kind = _not_boolean(tree, {})
        return [f"must be true or false, it is {kind}"] if kind else []
    variables = {name.name.lower() for found in tree.find_all(exp.Lambda) for name in found.expressions}
    columns = {column.parts[0].name for column in tree.find_all(exp.Column)}
    types = {name.lower(): type_ for name, type_ in fields.items()}
    if unknown := sorted(name for name in columns if name.lower() not in variables and name.lower() not in types):
        return [f"names {', '.join(unknown)}, which is no field of the query (fields: {', '.join(fields)})"]
    kind = _not_boolean(tree, types)
    return [f"must be true or false, it is {kind}"] if kind else []


def _parsed_expression(text: str) -> exp.Expr:
    """Parse the expression in parentheses, as Spark gets it. Raises SqlRefused if it is not valid."""
    import logging

    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    logging.getLogger("sqlglot").setLevel(logging.CRITICAL + 1)
    for ours, known in _SPARK_OPERATORS.items():
        text = text.replace(ours, known)
    try:
        tree = sqlglot.parse_one(f"({text})", dialect="spark").unnest()
    except SqlglotError as error:
        raise SqlRefused(_where(error)) from error
    if isinstance(tree, exp.Alias):  # as in `SELECT a b`, which is no expression
        raise SqlRefused(f"{tree.alias!r} is not expected after {tree.this.sql('spark')!r}")
    return tree


def _where(error: Exception) -> str:
    """The place of a syntax error in the text without the added parentheses."""
    problems = getattr(error, "errors", None)
    if not problems:
        return "a text or a quoted name does not end"
    [first, *_] = problems
    if first["end_context"] or first["description"].startswith("Invalid expression"):
        before = first["start_context"].removeprefix("(").strip()
        return f"{first['highlight']!r} is not expected" + (f" after {before!r}" if before else "")
    return "a bracket is not closed" if first["description"] == "Expecting )" else "an operand is missing"


def _not_boolean(tree: exp.Expr, types: Mapping[str, str]) -> str | None:
    """The type of an expression that is certainly not boolean; None if it may be. Considers only the outermost
    operator."""
    from sqlglot import exp

    match tree:
        case exp.Column() if len(tree.parts) == 1:
            type_ = types.get(tree.name.lower(), "boolean")
            return None if type_ == "boolean" else type_
        case exp.Literal():
            return "text" if tree.is_string else "a number"
        case exp.Cast():
            return None if tree.to.is_type("boolean") else tree.to.sql("spark").lower()
        case exp.Add() | exp.Sub() | exp.Mul() | exp.Div() | exp.IntDiv() | exp.Mod() | exp.Neg():
            return "a number"  # or a date, an interval: never boolean
        case exp.BitwiseAnd() | exp.BitwiseOr() | exp.BitwiseXor() | exp.BitwiseNot() | exp.Length() | exp.Abs():
            return "a number"
        case exp.DPipe() | exp.Lower() | exp.Upper():
            return "text"
        case exp.Tuple():
            return "a list"
        case _:
            return None


def _tokens(text: str) -> list[_Token]:
    """The tokens by the rules of Spark's lexer, without comments. Raises SqlRefused for ambiguous text and for
    variables that Spark would substitute."""
    if "${" in text:
        raise SqlRefused("'${' is not allowed: Spark would replace it by a variable of the environment or the session")
    found: list[_Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise SqlRefused(f"the character {text[at]!r} on line {text.count(chr(10), 0, at) + 1} is not expected")
        kind, piece = str(match.lastgroup), match.group()
        if kind == "block":
            if piece.startswith("/*+"):
                raise SqlRefused("a hint may hold names, numbers, commas and brackets only")
            if "/*" in piece[2:]:
                raise SqlRefused("a comment inside a comment is not allowed")
        if kind in ("comment", "block"):
            kind, piece = "space", re.sub(r"[^\n]", " ", piece) or " "
        found.append(_Token(kind, piece))
        at = match.end()
    return found


def _unlisted_calls(tokens: Iterable[_Token]) -> Counter[str]:
    """The names before a parenthesis that are neither listed functions nor keywords, with the number of occurrences."""
    found: Counter[str] = Counter()
    code = [token for token in tokens if token.kind not in ("space", "hint")]
    for before, token, after in zip([None, *code], code, [*code[1:], None], strict=False):
        qualified = before is not None and before.text == "."
        if token.kind == "word" and token.name == "using" and after is not None and after.kind == "string":
            raise SqlRefused("USING with a script is not allowed: it would run a command")
        if token.kind == "word" and token.name in _SESSION_WORDS and not qualified:
            raise _unlisted(token.name)
        if after is None or after.text != "(":
            continue
        if token.kind == "string":
            raise SqlRefused(f"{token.text} cannot be called")
        if token.name is None or (token.kind == "word" and token.name in _SPARK_KEYWORDS and not qualified):
            continue
        if qualified:  # a function of a catalog, also if its name is listed
            raise _unlisted(f"{token.name} with a qualifier")
        if token.name not in SPARK_FUNCTIONS:
            found[token.name] += 1
    return found


def _unlisted(name: str) -> SqlRefused:
    return SqlRefused(f"the function {name} is not allowed: it is not among those of {LIST}")


def _parsed(text: str) -> exp.Query:
    """Parse one SELECT. Raises SqlRefused for other statements and syntax errors."""
    import logging

    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    logging.getLogger("sqlglot").setLevel(logging.CRITICAL + 1)
    try:
        found = [tree for tree in sqlglot.parse(text, dialect="spark") if tree is not None]
    except SqlglotError as error:
        raise SqlRefused(f"the SQL is not valid: {_first_line(error)}") from error
    except RecursionError as error:
        raise SqlRefused("the SQL is nested too deeply") from error
    if len(found) != 1:
        raise SqlRefused("one SELECT at a time" if found else "there is no SELECT")
    [tree] = found
    if not isinstance(tree, exp.Query):
        raise SqlRefused("only SELECT statements are allowed: readers change nothing")
    for node in tree.walk():
        if isinstance(node, exp.DDL | exp.DML | exp.Command | exp.Into | exp.QueryTransform) and not isinstance(
            node, exp.Query
        ):
            raise SqlRefused("only SELECT statements are allowed: readers change nothing")
    return tree


def _aliases_with_columns(tree: exp.Query) -> Counter[str]:
    """Names before a parenthesis that are no function call: `WITH t(a) AS (...)`, `FROM ... AS t(a)`."""
    from sqlglot import exp

    return Counter(alias.name.lower() for alias in tree.find_all(exp.TableAlias) if alias.columns)


def _first_line(error: Exception) -> str:
    """The message of sqlglot, without its colours and the names of its classes."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).partition("\n")[0].rstrip(". ")
    text = re.sub(r"<Token [^>]*?text: ([^,]*),[^>]*>", r"\1", text)
    return re.sub(r"<class '[\w.]*?(\w+)'>", r"\1", text)


def _tables(tree: exp.Query, known: Collection[str]) -> set[str]:
    from sqlglot import exp

    found = set()
    for table in tree.find_all(exp.Table):
        if isinstance(table.this, exp.Func):
            continue  # `_unlisted_calls` has checked its name
        if not isinstance(table.this, exp.Identifier):
            raise SqlRefused(f"{table.sql()} is not the name of a table")
        if table.db:
            found.add(vouched_name([part.name for part in table.parts], known))
        elif not is_common_table(table):
            raise unknown_table(table.name, known)
    return found


def vouched_name(path: list[str], known: Collection[str]) -> str:
    """`source.query_name` in lower case. Raises SqlRefused if it is not a known table."""
    name = ".".join(path).lower()
    if name not in known:
        raise unknown_table(".".join(path), known)
    return name


def unknown_table(name: str, known: Collection[str]) -> SqlRefused:
    """The error for an unknown table or a file path."""
    if "/" in name or ":" in name:
        return SqlRefused(f"{name} is a file, and files cannot be read as tables (tables: {_listed(known)})")
    return UnknownTable(f"unknown table {name} (tables: {_listed(known)})")


def _listed(known: Collection[str]) -> str:
    return ", ".join(sorted(known)) or "none"


def _without_end(tokens: list[_Token]) -> Iterator[_Token]:
    """The tokens without the semicolons at the end."""
    last = max(n for n, token in enumerate(tokens) if token.kind != "space" and token.text != ";")
    yield from tokens[: last + 1]


def duckdb_tables(parsed: Any, known: Collection[str]) -> list[str]:
    """The tables that a statement reads, from DuckDB's own parse tree. Raises SqlRefused for unlisted functions, and
    for tables that are neither known nor common table expressions."""
    return sorted(set(_duckdb_tables(parsed, known, frozenset())))


def _duckdb_tables(node: Any, known: Collection[str], common: frozenset[str]) -> Iterator[str]:
    if isinstance(node, list):
        for item in node:
            yield from _duckdb_tables(item, known, common)
    if not isinstance(node, dict):
        return
    if isinstance(node.get("cte_map"), dict):
        for entry in node["cte_map"].get("map") or ():
            yield from _duckdb_tables(entry["value"], known, common)
            common |= {_folded(entry["key"])}
    if node.get("type") == "SHOW_REF" and not node.get("query"):
        raise SqlRefused('SHOW is not allowed: `penstock sql "DESCRIBE source.query"` describes a table')
    if node.get("type") == "BASE_TABLE":
        path = [str(part) for part in (node.get("catalog_name"), node.get("schema_name"), node["table_name"]) if part]
        if len(path) > 1:
            yield vouched_name(path, known)
        elif _folded(path[0]) not in common:
            raise unknown_table(path[0], known)
    if node.get("type") == "TABLE_FUNCTION":
        function = node["function"]
        if str(function.get("function_name")).lower() not in DUCKDB_TABLE_FUNCTIONS:
            raise _unlisted(str(function.get("function_name")))
        yield from _duckdb_tables(function.get("arguments"), known, common)
        yield from _duckdb_tables({**node, "type": "", "function": None}, known, common)
        return
    if "function_name" in node:
        name = str(node["function_name"])
        if re.match(r"\w", name) and name.lower() not in DUCKDB_FUNCTIONS:
            raise _unlisted(name)
    for key, child in node.items():
        if key == "right" and node.get("type") == "RECURSIVE_CTE_NODE":
            # Only the recursive part sees the name: in the anchor it is a table of DuckDB's catalog, or a file.
            yield from _duckdb_tables(child, known, common | {_folded(node["cte_name"])})
        elif key != "cte_map":
            yield from _duckdb_tables(child, known, common)


def _folded(name: Any) -> str:
    """The name of a common table expression as DuckDB compares it: it ignores the case of ASCII letters only. For
    `str.lower`, a name with the Kelvin sign would be the same name with a `k`."""
    return str(name).translate(_ASCII_LOWER)
