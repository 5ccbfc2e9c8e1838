"""Tables are renamed where the syntax tree has them, and nothing else in the text changes."""

from __future__ import annotations

import pytest

from penstock.sql_guard import spark_statement
from penstock.sql_tables import with_tables_renamed

NAMES = {"system.runs": "inside.runs", "system.tasks": "inside.tasks"}


@pytest.mark.parametrize(
    ("statement", "renamed"),
    [
        ("SELECT * FROM system.runs", "SELECT * FROM inside.runs"),
        ("FROM System . RUNS r SELECT r.a", "FROM inside.runs r SELECT r.a"),
        ('SELECT "system"."runs".a FROM "system".runs', "SELECT inside.runs.a FROM inside.runs"),
        ("SELECT system.runs.a.b.c FROM system.runs", "SELECT inside.runs.a.b.c FROM inside.runs"),
        ("SELECT count(system.runs) FROM system.runs", "SELECT count(inside.runs) FROM inside.runs"),
        ("SUMMARIZE system.runs", "SUMMARIZE inside.runs"),
        ("SELECT 'system.runs', $$system.runs$$ FROM system.runs",
         "SELECT 'system.runs', $$system.runs$$ FROM inside.runs"),
        ("SELECT 1 -- system.runs\nFROM /* é */ system.runs", "SELECT 1 -- system.runs\nFROM /* é */ inside.runs"),
        ("SELECT a.system.runs FROM system.tasks a", "SELECT a.system.runs FROM inside.tasks a"),
        ("SELECT system.runs FROM system.tasks AS system", "SELECT system.runs FROM inside.tasks AS system"),
        ("SELECT * FROM system.runs_of_mine", "SELECT * FROM system.runs_of_mine"),
        # sqlglot cannot parse a hexadecimal literal of DuckDB after another column
        ("SELECT e'a', x'ab', 'system.runs' FROM system.runs", "SELECT e'a', x'ab', 'system.runs' FROM inside.runs"),
        ("SELECT e'a', x'ab', a.system.runs FROM system.tasks a",
         "SELECT e'a', x'ab', a.system.runs FROM inside.tasks a"),
    ],
)  # fmt: skip
def test_tables_are_renamed_and_nothing_else(statement: str, renamed: str) -> None:
    assert with_tables_renamed(statement, NAMES, "duckdb") == renamed


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("SELECT demo.daily.a FROM demo.daily;", "SELECT v.a FROM v"),
        ("SELECT `demo`.`daily`.a FROM Demo.Daily", "SELECT v.a FROM v"),
        ("SELECT 'demo.daily' FROM demo.daily -- demo.daily", "SELECT 'demo.daily' FROM v"),
        ("SELECT /*+ BROADCAST(d) */ d.a FROM demo.daily d", "SELECT /*+ BROADCAST(d) */ d.a FROM v d"),
        ("SELECT demo.daily FROM demo.daily AS demo", "SELECT demo.daily FROM v AS demo"),
        ("SELECT x.demo.daily FROM demo.daily x", "SELECT x.demo.daily FROM v x"),
    ],
)
def test_spark_gets_the_text_that_was_written_with_views_for_tables(statement: str, text: str) -> None:
    checked = spark_statement(statement, {"demo.daily"})
    assert checked.tables == ("demo.daily",)
    assert checked.text({"demo.daily": "v"}) == text
