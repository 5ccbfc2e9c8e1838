"""Law of the SQL guard: a statement that it allows reads no table of DuckDB's own catalog.

DuckDB itself tells which names of a statement are tables of its catalog and which are common table expressions. The
statements nest them in every scope: subqueries, lateral joins, set operations, recursive anchors and parts.
"""

from __future__ import annotations

import duckdb
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.warehouse.sql import named_tables

DUCKDB = duckdb.connect()
NAMES = ["secret", '"\u212aey"', "key"]  # the Kelvin sign is a `k` for `str.lower` only

names = st.sampled_from(NAMES)
leaves = st.just("SELECT 'x' AS a") | names.map("SELECT a FROM {}".format)


def nested(queries: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    one, two, three = st.tuples(queries), st.tuples(queries, queries), st.tuples(names, queries, queries)
    recursive = st.tuples(names, queries, queries, queries)
    return st.one_of(
        one.map(lambda q: f"SELECT a FROM ({q[0]}) AS t"),
        one.map(lambda q: f"SELECT (SELECT max(a) FROM ({q[0]}) AS t) AS a"),
        one.map(lambda q: f"SELECT t.a FROM range(2), LATERAL ({q[0]}) AS t"),
        two.map(lambda q: f"({q[0]}) UNION ALL ({q[1]})"),
        two.map(lambda q: f"SELECT a FROM ({q[0]}) AS t WHERE EXISTS ({q[1]})"),
        two.map(lambda q: f"SELECT a FROM ({q[0]}) AS t ORDER BY (SELECT max(a) FROM ({q[1]}) AS u)"),
        three.map(lambda q: f"WITH {q[0]} AS ({q[1]}) {q[2]}"),
        three.map(lambda q: f"WITH {q[0]} AS MATERIALIZED ({q[1]}) SELECT a FROM ({q[2]}) AS t"),
        recursive.map(lambda q: f"WITH RECURSIVE {q[0]} AS (({q[1]}) UNION ALL ({q[2]})) SELECT a FROM ({q[3]}) AS t"),
        recursive.map(lambda q: f"WITH RECURSIVE {q[0]} AS (({q[1]}) UNION ({q[2]})) SELECT a FROM ({q[3]}) AS t"),
    )


statements = st.recursive(leaves, nested, max_leaves=8)


def is_allowed(statement: str) -> bool:
    try:
        return named_tables(statement, set()) == []
    except UsageError:
        return False


@settings(max_examples=150)
@given(statements)
def test_an_allowed_statement_reads_no_table_of_the_catalog(statement: str) -> None:
    if is_allowed(statement):
        try:
            catalog = DUCKDB.get_table_names(statement)
        except duckdb.Error:
            return  # DuckDB does not run it
        assert catalog == set(), statement
