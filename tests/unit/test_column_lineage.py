"""The input columns of each column of a SQL model."""

from __future__ import annotations

import pytest

from penstock.observe.column_lineage import LineageUnknown, Use, column_lineage

KEYS = {"customer_id": "string", "logical_date": "date"}
TABLES = {
    "demo.clicks": {**KEYS, "id": "long", "clicks": "long", "cost": "double", "place": "struct<city: string>"},
    "demo.names": {**KEYS, "id": "long", "name": "string"},
    "models.daily": {**KEYS, "total": "long"},
}


def told(statement: str, *outputs: str) -> dict[str, str]:
    """The inputs of each output as a text; `*` are those of the whole table."""
    found = column_lineage(statement, TABLES, outputs)
    shown = {**found.columns, "*": found.table}
    return {name: " ".join(f"{c.table}.{c.column}:{c.use.lower()}" for c in columns) for name, columns in shown.items()}


def test_a_column_is_copied_computed_or_aggregated() -> None:
    statement = """SELECT logical_date, id, clicks * cost AS x, sum(clicks) AS s, count(*) AS n, 1 AS one
                   FROM demo.clicks GROUP BY ALL"""
    assert told(statement, "id", "x", "s", "n", "one") == {
        "id": "demo.clicks.id:identity",
        "x": "demo.clicks.clicks:transformation demo.clicks.cost:transformation",
        "s": "demo.clicks.clicks:aggregation",
        "n": "",
        "one": "",
        "*": "demo.clicks.clicks:group_by demo.clicks.cost:group_by demo.clicks.id:group_by"
        " demo.clicks.logical_date:group_by",
    }  # fmt: skip


def test_joins_filters_and_common_tables_are_followed_to_the_input_tables() -> None:
    statement = """
        WITH dear AS (SELECT id, logical_date, cost + 1 AS more FROM demo.clicks WHERE cost > 5),
             named AS (SELECT n.name, d.* FROM dear d JOIN demo.names n ON n.id = d.id)
        SELECT logical_date, name, max(more) AS most FROM named GROUP BY logical_date, name HAVING max(more) > 1
    """
    assert told(statement, "name", "most") == {
        "name": "demo.names.name:identity",
        "most": "demo.clicks.cost:aggregation",
        "*": "demo.clicks.cost:filter demo.clicks.id:join demo.clicks.logical_date:group_by"
        " demo.names.id:join demo.names.name:group_by",
    }


def test_a_star_has_the_columns_of_its_tables() -> None:
    assert told("SELECT * FROM demo.names", "name", "id") == {
        "name": "demo.names.name:identity",
        "id": "demo.names.id:identity",
        "*": "",
    }
    assert told("SELECT * EXCEPT (id) FROM (SELECT * FROM demo.names)", "name")["name"] == "demo.names.name:identity"
    assert told("SELECT n.*, clicks FROM demo.clicks JOIN demo.names n USING (id)", "id", "clicks")["*"] == (
        "demo.clicks.id:join demo.names.id:join"
    )


def test_windows_and_conditions_influence_a_value_without_being_part_of_it() -> None:
    statement = """
        SELECT logical_date, sum(clicks) OVER (PARTITION BY id ORDER BY logical_date) AS running,
               CASE WHEN cost > 1 THEN clicks ELSE 0 END AS paid, if(id > 1, cost, 0) AS later
        FROM demo.clicks ORDER BY running
    """
    assert told(statement, "running", "paid", "later") == {
        "running": "demo.clicks.clicks:aggregation demo.clicks.id:window demo.clicks.logical_date:window",
        "paid": "demo.clicks.clicks:transformation demo.clicks.cost:conditional",
        "later": "demo.clicks.cost:transformation demo.clicks.id:conditional",
        "*": "demo.clicks.clicks:sort demo.clicks.id:sort demo.clicks.logical_date:sort",
    }


def test_the_branches_of_a_union_are_matched_by_position() -> None:
    statement = "SELECT id AS a, clicks AS b FROM demo.clicks UNION ALL SELECT total, id FROM models.daily, demo.names"
    assert told(statement, "a", "b") == {
        "a": "demo.clicks.id:identity models.daily.total:identity",
        "b": "demo.clicks.clicks:identity demo.names.id:identity",
        "*": "",
    }


def test_subqueries_are_part_of_their_expression() -> None:
    statement = """
        SELECT logical_date, (SELECT max(n.id) FROM demo.names n WHERE n.name = c.customer_id) AS best
        FROM demo.clicks c WHERE id IN (SELECT total FROM models.daily)
    """
    assert told(statement, "best") == {
        "best": "demo.names.id:aggregation",
        "*": "demo.clicks.customer_id:filter demo.clicks.id:filter demo.names.name:filter models.daily.total:filter",
    }


def test_names_have_no_case_and_structs_have_members() -> None:
    assert told("SELECT C.Clicks AS X FROM DEMO.Clicks C", "x")["x"] == "demo.clicks.clicks:identity"
    assert told("SELECT demo.clicks.clicks AS x FROM demo.clicks", "x")["x"] == "demo.clicks.clicks:identity"
    assert told("SELECT c.place.city AS x FROM demo.clicks c", "x")["x"] == "demo.clicks.place:transformation"


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("SELECT * FROM demo.unknown", "without a single x"),
        ("SELECT x FROM demo.unknown", "could not be resolved"),
        ("SELECT u.x FROM demo.unknown u", "no column of a known table"),
        ("SELECT x FROM demo.clicks", "could not be resolved"),
        ("SELECT id AS x FROM demo.clicks JOIN demo.names", "could not be resolved"),
        ("SELECT id AS y FROM demo.clicks", "without a single x"),
        ("SELECT x FROM demo.clicks LATERAL VIEW explode(array(id)) t AS x", "LATERAL"),
        ("SELECT * FROM demo.clicks UNION SELECT * FROM demo.clicks", "star in a UNION"),
        ("SELECT x FROM (VALUES (1)) t(x)", "VALUES"),
        ("SELECT x FROM", "Expected table name"),
        ("WITH RECURSIVE r AS (SELECT id AS x FROM demo.names UNION ALL SELECT x FROM r) SELECT x FROM r", "unclear"),
    ],
)  # fmt: skip
def test_what_the_text_does_not_show_is_unknown(statement: str, reason: str) -> None:
    with pytest.raises(LineageUnknown, match=reason):
        column_lineage(statement, TABLES, ["x"])


def test_only_uses_of_values_are_direct() -> None:
    assert [use for use in Use if use.is_direct] == [Use.IDENTITY, Use.TRANSFORMATION, Use.AGGREGATION]
