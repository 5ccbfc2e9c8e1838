"""Our own mutation operators: the changes they make to SQL text and calls, and the code they leave alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "scripts" / "mutate"))

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from mutants import mutants
from operators import RemoveCall, ReplaceInSql


def changed(source: str) -> list[str]:
    """The text of every mutant of the SQL in a statement."""
    positions = [p for node in ast_nodes(get_ast(source)) for p in ReplaceInSql().mutation_positions(node)]
    return [str(mutate_code(source, ReplaceInSql(), number)) for number in range(len(positions))]


@pytest.mark.parametrize(
    ("sql", "mutants"),
    [
        ("SELECT 1 WHERE a = b", ["SELECT 1 WHERE a <> b"]),
        ("WHERE a <> b", ["WHERE a = b"]),
        ("WHERE a < b", ["WHERE a <= b", "WHERE a >= b"]),
        ("WHERE a >= b", ["WHERE a > b", "WHERE a < b"]),
        ("WHERE a AND b", ["WHERE a OR b"]),
        ("WHERE a OR b", ["WHERE a AND b"]),
        ("WHERE a IS NOT NULL", ["WHERE a IS NULL"]),
        ("WHERE NOT EXISTS (x)", ["WHERE EXISTS (x)"]),
        ("WHERE a IN ('x')", ["WHERE a NOT IN ('x')"]),
        ("SELECT MAX(a) FROM b", ["SELECT min(a) FROM b"]),
        ("SELECT a LEFT JOIN b", ["SELECT a JOIN b"]),
        ("SELECT a ORDER BY b DESC", ["SELECT a ORDER BY b"]),
        ("UPDATE a SET b = 1 WHERE c = 2", ["UPDATE a SET b = 1 WHERE c <> 2"]),
        ("WHERE a BETWEEN b AND c", []),
        ("SELECT a ->> 0 -- a = b", []),
        ("a message, and nothing else = 1", []),
    ],
)
def test_conditions_in_sql_text_are_changed_and_nothing_else(sql: str, mutants: list[str]) -> None:
    assert changed(f"x = {sql!r}\n") == [f"x = {mutant!r}\n" for mutant in mutants]


def test_the_text_of_an_f_string_is_changed_and_its_expressions_are_not() -> None:
    source = 'x = f"SELECT 1 WHERE {a == b} = {c}" " AND d"\n'
    assert changed(source) == [
        'x = f"SELECT 1 WHERE {a == b} <> {c}" " AND d"\n',
        'x = f"SELECT 1 WHERE {a == b} = {c}" " OR d"\n',
    ]


def test_docstrings_are_left_alone() -> None:
    assert changed('def f():\n    """WHERE a = b"""\n') == []


def test_a_call_whose_value_nobody_uses_is_left_out() -> None:
    assert mutate_code("def f():\n    g(1)\n    x = g(2)\n", RemoveCall(), 0) == "def f():\n    pass\n    x = g(2)\n"
    assert mutate_code("def f():\n    x = g(2)\n", RemoveCall(), 0) is None


def test_what_changes_no_promise_on_sqlite_is_no_mutant(tmp_path: Path) -> None:
    source = """
from penstock.db.locks import lock_rows
TEXT = {"sqlite": "SELECT 1 WHERE a = b", "postgresql": "SELECT 1 WHERE a = b"}
PAGE = 5_000
_PAUSE, _LONGEST = timedelta(seconds=2), 3 * 1.5


@dataclass(frozen=True)
class A:
    x: int | None = None


def f(a: int | None, *, connection) -> int | None:
    assert a == 1
    log.info("said %s", a == 1)
    if connection.dialect.name == "postgresql":
        connection.execute("SELECT 1 WHERE a = b")
    lock_rows(connection, "a JOIN b ON a.x = b.x WHERE a.y IS NULL", "a")
    return a
"""
    file = tmp_path / "a.py"
    file.write_text(source)
    found = list(mutants("control", file, tmp_path))
    assert [(mutant.operator, mutant.line) for mutant in found] == [("ReplaceInSql", 3)]
