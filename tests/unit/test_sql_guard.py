"""SQL of analysts, models and contracts reads only trusted tables, with listed functions."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from penstock.config.assets import Model
from penstock.config.checks import check_from_mapping
from penstock.config.loading import load_queries
from penstock.contract.contract import Contract
from penstock.contract.evaluation import row_rules
from penstock.errors import ConfigError, UsageError
from penstock.pipeline.model import checked_sql
from penstock.source.registry import hooks_of
from penstock.sql_guard import SqlRefused, check_spark_expression, expression_problems, spark_statement
from penstock.warehouse.sql import query

TABLES = {"demo.daily", "models.spend"}
LISTED = "it is not among those of docs/reference/sql-functions.md"


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT demo.daily.a FROM demo.daily -- it's\nLIMIT 1;",
        "/* don't */ SELECT a FROM `demo` . `Daily`",
        r"SELECT 'it\'s', 'it''s', r'\', \"a\" FROM demo.daily".replace('\\"', '"'),
        "WITH t(a) AS (SELECT 1), u AS (SELECT a FROM t) SELECT * FROM u JOIN (VALUES (1)) AS v(c) ON c = a",
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r",
        "SELECT /*+ BROADCAST(c) */ x FROM demo.daily c LATERAL VIEW explode(c.tags) t AS x",
        "SELECT sum(a) FILTER (WHERE a > 1) OVER (PARTITION BY b) FROM demo.daily UNION ALL SELECT 1 FROM models.spend",
        "SELECT transform(array(1), x -> x + 1), extract(day FROM d), INTERVAL '1' DAY FROM demo.daily",
        "SELECT CAST(a AS DECIMAL(3, 1)), 7L, x'ff', DATE '2024-06-01' FROM demo.daily",
        "SELECT * FROM range(3) AS t(x) WHERE EXISTS (SELECT 1 FROM demo.daily) AND x IN (1, 2)",
        "SELECT * EXCEPT (a) FROM demo.daily PIVOT (sum(a) FOR b IN ('x'))",
        "SELECT count(*) FROM demo.daily GROUP BY GROUPING SETS ((a), (b)) HAVING count(*) > 1 ORDER BY ALL",
    ],
)
def test_a_select_over_known_tables_may_run_on_spark(statement: str) -> None:
    assert set(spark_statement(statement, TABLES).tables) <= TABLES


def test_spark_gets_the_text_that_was_checked_with_views_for_tables() -> None:
    text = "SELECT demo.daily.a, 'demo.daily' FROM demo /* - */ . daily -- demo.daily\nJOIN Models.`spend` s; -- end"
    checked = spark_statement(text, TABLES)
    assert checked.tables == ("demo.daily", "models.spend")
    written = " ".join(checked.text({"demo.daily": "v1", "models.spend": "v2"}).split())
    assert written == "SELECT v1.a, 'demo.daily' FROM v1 JOIN v2 s"


HIDDEN = [
    "SELECT reflect('java.lang.System', 'getenv', 'HOME')",
    "SELECT `reflect`('a', 'b')",
    "SELECT reflect /* - */ -- -\n ('a', 'b')",
    "-- a comment ends here for Spark \rSELECT reflect('a', 'b')",
    "SELECT r'\\', reflect('a', 'b') -- '",
    "WITH reflect(a) AS (SELECT 1) SELECT reflect(a) FROM reflect",
    "SELECT 1, reflect(a, b) AS (c) FROM demo.daily",
]


@pytest.mark.parametrize("statement", HIDDEN)
def test_a_function_that_is_not_listed_is_found_wherever_it_is_hidden(statement: str) -> None:
    with pytest.raises(SqlRefused) as refused:
        spark_statement(statement, TABLES)
    assert str(refused.value) == f"the function reflect is not allowed: {LISTED}"


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("SELECT java_method('a', 'b')", "the function java_method is not allowed"),
        ("SELECT system.builtin.reflect('a', 'b')", "the function reflect with a qualifier is not allowed"),
        ("SELECT current_user", "the function current_user is not allowed"),
        ("SELECT input_file_name() FROM demo.daily", "the function input_file_name is not allowed"),
        ("SELECT * FROM IDENTIFIER('demo.daily')", "the function identifier is not allowed"),
        ("SELECT TRANSFORM(a) USING 'cat' FROM demo.daily", "would run a command"),
        ("FROM demo.daily MAP a USING 'cat'", "would run a command"),
        ("SELECT '${env:HOME}'", "'${' is not allowed"),
        ("SELECT $$a$$", "the character '$' on line 1"),
        ("SELECT reflect\u200b('a')", "the character '\\u200b' on line 1"),
        ("SELECT 1 /* /* */ , reflect('a') */", "a comment inside a comment"),
        ("SELECT * FROM text.`/etc/passwd`", "text./etc/passwd is a file, and files cannot be read as tables"),
        ("SELECT * FROM range((SELECT count(*) FROM csv.`s3://a/b`))", "csv.s3://a/b is a file"),
        ("FROM json.`/a` |> SELECT value", "json./a is a file"),
        ("SELECT * FROM demo.other", "unknown table demo.other (tables: demo.daily, models.spend)"),
        ("SELECT * FROM a.demo.daily", "unknown table a.demo.daily"),
        ("SELECT * FROM (WITH x AS (SELECT 1) SELECT * FROM x), x", "unknown table x"),
        ("WITH x AS (SELECT * FROM x) SELECT * FROM x", "unknown table x"),
        ("WITH x AS (SELECT * FROM y), y AS (SELECT 1) SELECT * FROM x", "unknown table y"),
        ("INSERT INTO demo.daily SELECT 1", "only SELECT statements are allowed"),
        ("WITH a AS (INSERT INTO x SELECT 1) SELECT 1", "only SELECT statements are allowed"),
        ("CACHE TABLE x", "only SELECT statements are allowed"),
        ("SET x = 1", "only SELECT statements are allowed"),
        ("SELECT 1; SELECT 2", "one SELECT at a time"),
        ("-- nothing", "there is no SELECT"),
        ("SELEC 1", "not valid"),
        ("SELECT FROM WHERE", "the SQL is not valid: Expected table name but got WHERE. Line 1"),
        (f"SELECT {'(' * 5000}1{')' * 5000}", "nested too deeply"),
    ],
)
def test_anything_else_is_refused_before_spark_sees_it(statement: str, words: str) -> None:
    with pytest.raises(SqlRefused) as refused:
        spark_statement(statement, TABLES)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "text",
    ["a <= b", "size(tags) < 2", "`A` > length(word)", "exists(tags, t -> t = 'a')", "(map('a', 1))['a'] IN (1, 2)"],
)
def test_an_expression_may_call_listed_functions(text: str) -> None:
    check_spark_expression(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("reflect('java.lang.System', 'exit', 1) IS NULL", f"the function reflect is not allowed: {LISTED}"),
        ("a IN (SELECT value FROM text.`/etc/passwd`)", "an expression cannot contain a query"),
        ("a IN (TABLE text.`/etc/passwd`)", "an expression cannot contain a query"),
        ("EXISTS (FROM text.`/etc/passwd` |> LIMIT 1)", "an expression cannot contain a query"),
        ("1) OR (SELECT 1", "an expression cannot contain a query"),
        ("a = '${env:HOME}'", "'${' is not allowed"),
        ("true; DROP TABLE x", "cannot contain ';'"),
    ],
)
def test_an_expression_that_reaches_further_is_refused_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "query.yaml"
    quoted = text.replace("'", "''").replace("${", "$${")
    file.write_text(f"fields:\n  - {{name: a, type: string}}\nchecks:\n  - expression: '{quoted}'\n")
    with pytest.raises(ConfigError) as refused:
        load_queries(file, {}, hooks_of)
    assert "query.yaml:4: checks[0]: " in str(refused.value)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a >", "cannot be parsed: an operand is missing"),
        ("a = = 1", "cannot be parsed: '=' is not expected after 'a ='"),
        ("(a > 1", "cannot be parsed: a bracket is not closed"),
        ("a > 1)", "cannot be parsed: ')' is not expected after 'a > 1)'"),
        ("a > 1 a < 5", "cannot be parsed: '<' is not expected after 'a > 1 a'"),
        ("a > 1 s", "cannot be parsed: 's' is not expected after 'a > 1'"),
        ("s = 'x", "cannot be parsed: a text or a quoted name does not end"),
        ("drop table a", "cannot be parsed: 'drop' is not expected"),
        ("x > 1 and y > 1", "names x, y, which is no field of the query (fields: a, s, ok)"),
        ("a", "must be true or false, it is long"),
        ("((S))", "must be true or false, it is string"),
        ("cast(ok as string)", "must be true or false, it is string"),
        ("a > 1, ok", "must be true or false, it is a list"),
        ("s || 'x'", "must be true or false, it is text"),
        ("length(s)", "must be true or false, it is a number"),
    ],
)
def test_what_is_wrong_with_an_expression_is_known_without_spark(text: str, problem: str) -> None:
    fields = {"a": "long", "s": "string", "ok": "boolean"}
    assert expression_problems(text, fields) == [problem]
    if not problem.startswith("names"):
        assert expression_problems(text, None) in ([problem], [])  # types of columns are not known then


def test_an_expression_that_an_older_release_kept_stays_readable_and_is_not_run() -> None:
    check = check_from_mapping({"expression": "reflect('java.lang.System', 'exit', 1) IS NULL", "name": "old"})
    kept = Contract("demo", "daily", "v1", (), (check,), "reject", "reject", {})
    assert Contract.from_body(kept.body()) == kept
    with pytest.raises(ConfigError, match=r"queries\.daily: the check old is not valid: the function reflect"):
        row_rules(kept)[0].spark_rule(kept)


def test_a_model_in_sql_reads_only_its_declared_inputs() -> None:
    model = Model(name="spend", depends_on=("demo.daily",))
    assert checked_sql(model, "SELECT * FROM demo.daily JOIN penstock.partitions").tables == (
        "demo.daily",
        "penstock.partitions",
    )
    for code, words in {
        "SELECT value FROM text.`/etc/passwd`": "text./etc/passwd is a file",
        "SELECT * FROM demo.other": "unknown table demo.other (tables: demo.daily, penstock.partitions)",
        "SELECT java_method('a', 'b')": "the function java_method is not allowed",
    }.items():
        with pytest.raises(ConfigError) as refused:
            checked_sql(model, code)
        assert str(refused.value).startswith(f"models.spend (models/spend.sql): {words}")


class Numbers:
    def duckdb(self, connection: duckdb.DuckDBPyConnection, /) -> duckdb.DuckDBPyRelation:
        return connection.from_arrow(pa.table({"a": [1, 2, 3]}))


def on_duckdb(statement: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = (
        query(statement, {"demo.daily": Numbers, "system.runs": Numbers}).read_all().to_pylist()
    )
    return rows


@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        ("WITH t AS (SELECT * FROM demo.daily) SELECT sum(a)::int AS n FROM t", [{"n": 6}]),
        ("SELECT count(*) AS n FROM system.runs JOIN demo.daily USING (a)", [{"n": 3}]),
        (
            "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT max(n) AS n FROM r",
            [{"n": 3}],
        ),
        (
            "WITH RECURSIVE R(n) AS (SELECT 1 UNION ALL (WITH s AS (FROM r) SELECT n + (SELECT count(*) FROM r) FROM s,"
            " LATERAL (SELECT 1 FROM r) WHERE n < 3)) SELECT max(n) AS n FROM r",
            [{"n": 3}],
        ),
        ("FROM range(2) SELECT list_sum([range, 1])::int AS n ORDER BY ALL", [{"n": 1}, {"n": 2}]),
        ("SELECT column_name FROM (DESCRIBE demo.daily)", [{"column_name": "a"}]),
        ("SELECT rank() OVER (ORDER BY a) AS n FROM demo.daily WHERE a NOT IN (1, 2)", [{"n": 1}]),
    ],
)
def test_a_select_over_known_tables_may_run_on_duckdb(statement: str, rows: list[dict[str, object]]) -> None:
    assert on_duckdb(statement) == rows


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        *(
            (f"SELECT * FROM {name}('/etc/passwd')", f"the function {name} is not allowed: {LISTED}")
            for name in (
                "read_csv",
                "read_text",
                "read_blob",
                "read_parquet",
                "read_json",
                "glob",
                "sniff_csv",
                "query",
            )
        ),
        *(
            (f"SELECT {name}('HOME')", f"the function {name} is not allowed: {LISTED}")
            for name in ("getenv", "current_setting", "getvariable", "pg_sleep", "json_serialize_plan", "nextval")
        ),
        ("SELECT * FROM duckdb_settings()", "the function duckdb_settings is not allowed"),
        ("SELECT * FROM arrow_scan(1, 2, 3)", "the function arrow_scan is not allowed"),
        ("SELECT (SELECT max(x) FROM glob('/*') AS t(x))", "the function glob is not allowed"),
        (
            "WITH t AS (SELECT * FROM demo.daily) SELECT getenv('A') OVER () FROM t",
            "the function getenv is not allowed",
        ),
        ("SELECT * FROM '/etc/passwd'", "/etc/passwd is a file"),
        ("SELECT * FROM duckdb_settings", "unknown table duckdb_settings"),
        ("SELECT * FROM sqlite_master", "unknown table sqlite_master"),
        ("SELECT * FROM information_schema.tables", "unknown table information_schema.tables"),
        ("SELECT * FROM memory.demo.daily", "unknown table memory.demo.daily"),
        ("SELECT * FROM (WITH x AS (SELECT 1) SELECT * FROM x), x", "unknown table x"),
        *(
            (
                f"WITH RECURSIVE {name} AS (SELECT * FROM {name} UNION ALL SELECT * FROM {name} WHERE false)"
                f" SELECT * FROM {name}",
                text,
            )
            for name, text in {
                "pg_settings": "unknown table pg_settings",
                "duckdb_databases": "unknown table duckdb_databases",
                "pragma_database_list": "unknown table pragma_database_list",
                "sqlite_master": "unknown table sqlite_master",
                "vouched_demo_daily": "unknown table vouched_demo_daily",
                '"/etc/passwd"': "/etc/passwd is a file",
            }.items()
        ),
        *(
            (statement, "unknown table pg_settings")
            for statement in (
                "WITH pg_settings AS (SELECT * FROM pg_settings) SELECT * FROM pg_settings",
                "WITH pg_settings AS MATERIALIZED (SELECT * FROM pg_settings) SELECT * FROM pg_settings",
                "WITH x AS (SELECT * FROM pg_settings), pg_settings AS (SELECT 1) SELECT * FROM x",
                "WITH x AS (WITH pg_settings AS (SELECT 1) FROM pg_settings) SELECT * FROM x, pg_settings",
                "SELECT * FROM (WITH pg_settings AS (SELECT 1) FROM pg_settings), LATERAL (FROM pg_settings)",
                "(WITH pg_settings AS (SELECT 1) FROM pg_settings) UNION ALL SELECT name FROM pg_settings",
                "SELECT (SELECT max(name) FROM pg_settings) WHERE EXISTS (WITH pg_settings AS (SELECT 1) SELECT 1)",
                "WITH RECURSIVE pg_settings AS (SELECT * FROM pg_settings) SELECT * FROM pg_settings",
                "WITH RECURSIVE pg_settings AS ((SELECT * FROM pg_settings UNION ALL SELECT 1) UNION"
                " FROM pg_settings) SELECT * FROM pg_settings",
                "WITH RECURSIVE pg_settings AS (SELECT (SELECT max(name) FROM pg_settings) AS a UNION"
                " SELECT a FROM pg_settings) SELECT * FROM pg_settings",
                "WITH RECURSIVE pg_settings AS (SELECT t.name FROM range(1), LATERAL (FROM pg_settings) AS t UNION"
                " FROM pg_settings) SELECT * FROM pg_settings",
                "WITH RECURSIVE x AS (SELECT '' AS name UNION (WITH RECURSIVE pg_settings AS (SELECT name FROM"
                " pg_settings UNION FROM pg_settings) SELECT name FROM pg_settings WHERE name IN (FROM x))) FROM x",
                "WITH RECURSIVE x AS ((WITH pg_settings AS (SELECT '' AS name) FROM pg_settings) UNION"
                " SELECT pg_settings.name FROM x, pg_settings) SELECT * FROM x",
            )
        ),
        # DuckDB ignores the case of ASCII letters only: the Kelvin sign is no `k`.
        ('WITH "duc\u212adb_databases" AS (SELECT 1) FROM duckdb_databases', "unknown table duckdb_databases"),
        ("SHOW TABLES", "SHOW is not allowed"),
        ("COPY (SELECT 1) TO '/tmp/x'", "only SELECT statements are allowed"),
        ("ATTACH '/tmp/x.db'", "only SELECT statements are allowed"),
        ("PRAGMA version", "only SELECT statements are allowed"),
        ("INSTALL httpfs", "only SELECT statements are allowed"),
        ("SET enable_external_access = true", "only SELECT statements are allowed"),
        ("CALL pragma_version()", "only SELECT statements are allowed"),
        ("SELECT 1; SELECT 2", "one SELECT at a time"),
    ],
)
def test_duckdb_runs_nothing_else(statement: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        on_duckdb(statement)
    assert words in str(refused.value)
