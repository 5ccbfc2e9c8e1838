"""The SQL box of the console: no statement reads more than tables, changes anything, or harms the server."""

from __future__ import annotations

import html
import os
import re
import shlex
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from penstock.app import Workspace
from penstock.app.reader import Reader, open_reader
from penstock.control.select import Selection
from penstock.errors import PenstockError
from penstock.http import sql_limits
from penstock.http.sql_limits import LimitReached, TooManyStatements, execute_sql
from penstock.http.sql_process import StatementLimits, result_of
from penstock.state.tokens import TokenRole
from support import builders
from support.api import ORIGIN, bearer, served
from support.builders import everything
from support.workspaces import open_at, write_workspace

SECRET = "canary-93b1"
TABLE = "demo.campaign_daily"
LIMITS = StatementLimits()
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def workspace() -> Iterator[Workspace]:
    """Two customers with two days each; beside it files that hold a secret."""
    with builders.quick_folder() as folder:
        query = {"checks": [{"unique": ["campaign_id"]}]}
        opened = open_at(write_workspace(Path(folder), customers=2, driver_partitions=100, query=query))
        assert opened.runs.start(Selection(), actor="ada").counts()["loaded"] == 4
        (Path(folder) / "secret.csv").write_text(f"word\n{SECRET}\n")
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def reader(workspace: Workspace) -> Iterator[Reader]:
    """As the process of a statement opens the workspace, from the folder with the secrets."""
    before = Path.cwd()
    os.chdir(workspace.settings.root)
    os.environ["CANARY"] = SECRET
    opened = open_reader(workspace.settings.root)
    yield opened
    opened.close()
    os.chdir(before)
    del os.environ["CANARY"]


@pytest.fixture(scope="module")
def pages(workspace: Workspace) -> Iterator[TestClient]:
    with served(workspace) as client:
        yield client


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file of a workspace but those of the database."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and not file.name.startswith("state.db")
    }


@pytest.fixture
def unchanged(workspace: Workspace) -> Iterator[None]:
    """The test changes neither a row of the database nor a file of the workspace."""
    root, database = workspace.settings.root, workspace.context.database
    before = everything(database), files_of(root)
    yield
    assert (everything(database), files_of(root)) == before


FILES = """
SELECT * FROM 'secret.csv'
SELECT * FROM "secret.csv"
FROM 'secret.csv'
TABLE 'secret.csv'
SELECT * FROM './secret.csv'
SELECT * FROM '*.csv'
SELECT * FROM 'state.db'
SELECT * FROM 'lake/**/*.parquet'
SELECT * FROM 'file:secret.csv'
SELECT * FROM 'https://example.com/x.csv'
SELECT * FROM 's3://bucket/x.parquet'
SELECT * FROM read_csv('secret.csv')
SELECT * FROM read_csv_auto('secret.csv')
SELECT * FROM READ_CSV('secret.csv')
SELECT * FROM "read_csv"('secret.csv')
SELECT * FROM main.read_csv('secret.csv')
SELECT * FROM system.main.read_csv('secret.csv')
SELECT * FROM read_text('secret.csv')
SELECT * FROM read_blob('secret.csv')
SELECT * FROM read_json('secret.csv')
SELECT * FROM read_json_objects('secret.csv')
SELECT * FROM read_ndjson('secret.csv')
SELECT * FROM read_parquet('lake/x.parquet')
SELECT * FROM parquet_scan('lake/x.parquet')
SELECT * FROM parquet_metadata('lake/x.parquet')
SELECT * FROM parquet_schema('lake/x.parquet')
SELECT * FROM sniff_csv('secret.csv')
SELECT * FROM glob('*')
SELECT * FROM sqlite_scan('state.db', 'api_token')
SELECT * FROM postgres_scan('dbname=x', 'public', 'api_token')
SELECT * FROM delta_scan('lake/warehouse')
SELECT * FROM iceberg_scan('lake/warehouse')
SELECT * FROM query('SELECT 1')
SELECT * FROM query_table('secret.csv')
SELECT * FROM arrow_scan(1, 2, 3)
SELECT * FROM python_map_function(1)
SELECT 'secret.csv'.read_text()
SELECT (SELECT content FROM read_text('secret.csv'))
WITH t AS (SELECT * FROM read_text('secret.csv')) SELECT * FROM t
WITH t AS (SELECT * FROM 'secret.csv') SELECT * FROM t
WITH "secret.csv" AS (SELECT 1), u AS (SELECT * FROM './secret.csv') SELECT * FROM u
WITH RECURSIVE t AS (SELECT content FROM read_text('secret.csv') UNION ALL SELECT content FROM t) SELECT * FROM t
WITH "secret.csv" AS (SELECT * FROM "secret.csv") SELECT * FROM "secret.csv"
SELECT * FROM demo.campaign_daily, LATERAL (SELECT * FROM read_text('secret.csv'))
SELECT * FROM demo.campaign_daily WHERE EXISTS (SELECT 1 FROM read_text('secret.csv'))
SELECT clicks FROM demo.campaign_daily UNION ALL SELECT content FROM read_text('secret.csv')
SELECT clicks FROM demo.campaign_daily ORDER BY (SELECT content FROM read_text('secret.csv'))
SELECT list_transform([1], lambda x: (SELECT content FROM read_text('secret.csv')))
VALUES ((SELECT content FROM read_text('secret.csv')))
PIVOT (SELECT * FROM read_csv('secret.csv')) ON word
SUMMARIZE SELECT * FROM read_csv('secret.csv')
DESCRIBE SELECT * FROM read_csv('secret.csv')
SUMMARIZE 'secret.csv'
DESCRIBE 'secret.csv'
""".strip().splitlines()

SETTINGS = """
SELECT getenv('CANARY')
SELECT getvariable('CANARY')
SELECT current_setting('home_directory')
SELECT current_setting('temp_directory')
SELECT * FROM duckdb_settings()
SELECT * FROM duckdb_secrets()
SELECT * FROM duckdb_extensions()
SELECT * FROM duckdb_databases()
SELECT * FROM duckdb_tables()
SELECT * FROM duckdb_views()
SELECT * FROM duckdb_functions()
SELECT * FROM duckdb_variables()
SELECT * FROM duckdb_temporary_files()
SELECT * FROM duckdb_logs()
SELECT * FROM pragma_database_list
SELECT * FROM pragma_version()
SELECT * FROM pragma_platform()
SELECT * FROM pragma_storage_info('x')
SELECT * FROM which_secret('s3://x', 's3')
SELECT * FROM information_schema.tables
SELECT * FROM information_schema.schemata
SELECT * FROM pg_catalog.pg_tables
SELECT * FROM sqlite_master
SELECT * FROM main.sqlite_master
SELECT * FROM system.information_schema.tables
SELECT * FROM temp.information_schema.tables
SELECT * FROM system.main.duckdb_settings
SELECT * FROM penstock_system.runs
SELECT * FROM vouched_demo_campaign_daily
SELECT * FROM memory.demo.campaign_daily
SELECT * FROM api_token
SELECT * FROM main.api_token
SELECT * FROM state.api_token
SELECT * FROM partition_state
SELECT * FROM public.partition_state
SELECT * FROM login_session
SELECT * FROM system.api_token
SELECT current_database()
SELECT nextval('x')
SELECT write_log('x')
SELECT txid_current()
WITH RECURSIVE pg_settings AS (SELECT (SELECT max(name) FROM pg_settings) AS a UNION FROM pg_settings) FROM pg_settings
WITH pg_settings AS (SELECT * FROM pg_settings) SELECT * FROM pg_settings
WITH x AS (SELECT * FROM pg_settings), pg_settings AS (SELECT 1) SELECT * FROM x
WITH "duc\u212adb_databases" AS (SELECT 1) SELECT * FROM duckdb_databases
SHOW TABLES
SHOW ALL TABLES
SHOW DATABASES
""".strip().splitlines()

# The name of a recursive expression is a table of DuckDB's catalog, or a file, in its first part.
ANCHORS = [
    f"WITH RECURSIVE {name} AS (SELECT * FROM {name} {union} SELECT * FROM {name} WHERE false) SELECT * FROM {name}"
    for name in (
        "pg_settings",
        "duckdb_databases",
        "pragma_database_list",
        "sqlite_master",
        "vouched_demo_campaign_daily",
        '"secret.csv"',
        "'secret.csv'",
    )
    for union in ("UNION", "UNION ALL")
]

CHANGES = """
COPY (SELECT 1) TO 'stolen.csv'
COPY demo.campaign_daily TO 'stolen.parquet'
COPY demo.campaign_daily FROM 'secret.csv'
COPY FROM DATABASE memory TO x
/* SELECT 1 */ COPY (SELECT 1) TO 'stolen.csv'
ATTACH 'state.db' AS x (TYPE sqlite)
ATTACH 'stolen.db'
DETACH memory
INSTALL httpfs
INSTALL sqlite FROM community
LOAD httpfs
FORCE INSTALL httpfs
SET enable_external_access = true
SET memory_limit = '100GB'
SET threads = 64
SET VARIABLE x = 1
RESET memory_limit
RESET ALL
PRAGMA enable_profiling
PRAGMA threads = 64
PRAGMA database_list
EXPORT DATABASE 'stolen'
IMPORT DATABASE 'stolen'
CREATE TABLE x AS SELECT 1
CREATE VIEW x AS SELECT 1
CREATE MACRO f() AS 1
CREATE SECRET s (TYPE s3)
CREATE OR REPLACE TEMP TABLE x (a int)
DROP VIEW demo.campaign_daily
ALTER TABLE x RENAME TO y
INSERT INTO demo.campaign_daily SELECT * FROM demo.campaign_daily
UPDATE demo.campaign_daily SET clicks = 0
DELETE FROM demo.campaign_daily
TRUNCATE demo.campaign_daily
MERGE INTO demo.campaign_daily USING demo.campaign_daily ON true WHEN MATCHED THEN DELETE
CALL pragma_version()
CALL read_text('secret.csv')
USE memory
CHECKPOINT
VACUUM
ANALYZE
BEGIN
PREPARE s AS SELECT 1
EXECUTE s
EXPLAIN ANALYZE SELECT 1
EXPLAIN SELECT * FROM read_csv('secret.csv')
SELECT 1 INTO x
SELECT 1; SELECT 2
SELECT 1; DROP VIEW demo.campaign_daily
SELECT 1; COPY (SELECT 1) TO 'stolen.csv'
SELECT 1 -- ; \\n; COPY (SELECT 1) TO 'stolen.csv'
SELECT 1; /* */ SET threads = 64
-- nothing but a comment
/* nothing but a comment
;
SELEC 1
SELECT 'a
SELECT "a
""".strip().splitlines()


@pytest.mark.parametrize("statement", [*FILES, *SETTINGS, *ANCHORS, *CHANGES])
@pytest.mark.usefixtures("unchanged")
def test_a_statement_that_is_no_select_on_tables_is_refused(
    reader: Reader, workspace: Workspace, statement: str
) -> None:
    found = result_of(reader, statement.replace("\\n", "\n"), LIMITS)
    assert set(found) == {"problem"}, found
    assert SECRET not in found["problem"]
    assert str(workspace.settings.root) not in found["problem"]


def test_the_settings_of_duckdb_stay_those_of_the_box() -> None:
    """Were a statement that sets or reads files not refused, DuckDB would refuse it."""
    import duckdb

    from penstock.warehouse.sql import SqlLimits, _isolated_duckdb

    connection = _isolated_duckdb(SqlLimits(10, 64, 1))
    for statement in (
        "SET threads = 8",
        "SET enable_external_access = true",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM '/etc/hostname'",
        "COPY (SELECT 1) TO '/tmp/stolen.csv'",
        "ATTACH '/tmp/stolen.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
    ):
        with pytest.raises(duckdb.Error):
            connection.execute(statement)
    asked = "SELECT current_setting('memory_limit'), current_setting('threads'), current_setting('temp_directory')"
    assert connection.execute(asked).fetchall() == [("64.0 MiB", 1, "")]


@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        (f"SELECT count(*) FROM {TABLE}", [["20"]]),
        (f"SELECT 1 AS a -- a comment\nFROM {TABLE} LIMIT 1;", [["1"]]),
        ("SELECT NULL, true, 1.50::DECIMAL(9,2), DATE '2024-06-09', [1, 2], {'a': 'x'}, 'é'", None),
        ("SELECT count(*) > 0 FROM system.tasks", [["true"]]),
        ("WITH t AS (SELECT range AS n FROM range(5)) SELECT n FROM t ORDER BY n DESC LIMIT 2", [["4"], ["3"]]),
    ],
)
def test_a_select_on_tables_has_its_rows_as_text(reader: Reader, statement: str, rows: Any) -> None:
    found = result_of(reader, statement, LIMITS)
    expected = rows or [[None, "true", "1.50", "2024-06-09", "[1,2]", '{"a":"x"}', "é"]]
    assert (found["rows"], found["cut"], found["cut_values"]) == (expected, None, 0)


def test_more_rows_than_the_limit_are_cut_and_the_result_says_so(reader: Reader) -> None:
    found = result_of(reader, "SELECT range FROM range(100000) ORDER BY range DESC", LIMITS)
    assert ([row[0] for row in found["rows"][:2]], len(found["rows"]), found["cut"]) == (
        ["99999", "99998"],
        1000,
        "rows",
    )
    whole = result_of(reader, "SELECT range FROM range(1000)", LIMITS)
    assert (len(whole["rows"]), whole["cut"]) == (1000, None)


def test_only_the_rows_that_are_shown_are_computed(workspace: Workspace) -> None:
    """All rows would be 20 GB."""
    found = execute_sql(workspace.settings.root, "SELECT repeat('x', 20000) AS a FROM range(1000000)")
    assert (len(found["rows"]), found["cut"], found["cut_values"]) == (1000, "rows", 1000)


def test_a_large_result_is_cut_by_its_size(reader: Reader) -> None:
    long = result_of(reader, "SELECT repeat('x', 5000) AS a FROM range(10)", LIMITS)
    assert (long["cut_values"], {len(row[0]) for row in long["rows"]}) == (10, {1001})
    columns = ", ".join(f"repeat('x', 1000) AS c{number}" for number in range(100))
    wide = result_of(reader, f"SELECT {columns} FROM range(1000)", LIMITS)
    assert (wide["cut"], len(wide["rows"]) < 50) == ("size", True)
    many = ", ".join(f"1 AS c{number}" for number in range(1001))
    assert "1,001 columns: select at most 1,000" in result_of(reader, f"SELECT {many}", LIMITS)["problem"]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT length(repeat('x', 4000000000))",  # outside of DuckDB's own limit
        "SELECT len(range(1000000000))",
        "SELECT list(a.range) FROM range(1000000000) a",
        "SELECT count(DISTINCT a.range * 100000 + b.range) FROM range(100000) a, range(100000) b",
    ],
)
def test_a_statement_that_needs_too_much_memory_ends_and_the_server_has_what_it_had(
    workspace: Workspace, statement: str
) -> None:
    with pytest.raises(LimitReached, match="it may use 512 MiB of memory"):
        execute_sql(workspace.settings.root, statement)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT count(*) FROM generate_series(1, 1000000000000)",
        "SELECT count(*) FROM range(1000000) a, range(1000000) b, range(1000000) c",
        "WITH RECURSIVE t AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM t) SELECT count(*) FROM t",
        "SELECT sum(hash(a.clicks + b.range)) FROM demo.campaign_daily a, range(1000000000000) b",
    ],
)
@pytest.mark.usefixtures("unchanged")
def test_a_statement_without_end_is_stopped_after_its_time(workspace: Workspace, statement: str) -> None:
    began = time.monotonic()
    with pytest.raises(LimitReached, match="it may take 1 seconds"):
        execute_sql(workspace.settings.root, statement, StatementLimits(seconds=1))
    assert time.monotonic() - began < 15


def test_a_deeply_nested_statement_ends_its_process_at_most(workspace: Workspace) -> None:
    deep = "SELECT " + "(" * 4000 + "1" + ")" * 4000
    with pytest.raises(PenstockError):
        execute_sql(workspace.settings.root, deep)


def posted(pages: TestClient, statement: str, **options: Any) -> tuple[int, str]:
    response = pages.post("/sql", data={"statement": statement}, headers={**ORIGIN, **options.pop("headers", {})})
    return response.status_code, response.text


def notices(page: str) -> list[str]:
    found = re.findall(r'<div class="notice notice-(?:bad|warn)"[^>]*>(.*?)</div>', page, re.DOTALL)
    return [html.unescape(text) for text in found if "does not respond" not in text]


def test_the_box_shows_the_rows_of_its_statement(pages: TestClient) -> None:
    filled = pages.get("/sql", params={"statement": f"SELECT '{HOSTILE}' -- a\n, 2"})
    [command] = re.findall(r'<code id="command">(.*?)</code>', filled.text, re.DOTALL)
    assert shlex.split(html.unescape(command)) == ["penstock", "sql", f"SELECT '{HOSTILE}' -- a\n, 2"]
    assert "<textarea" in filled.text
    assert HOSTILE not in filled.text
    status, page = posted(pages, f"SELECT '{HOSTILE}' AS \"{HOSTILE}\", NULL AS b, count(*) AS n FROM {TABLE}")
    assert (status, notices(page)) == (200, [])
    assert HOSTILE not in page
    assert page.count(html.escape(HOSTILE)) >= 2
    assert '<td class="num">20</td>' in page
    assert '<span class="quiet">NULL</span>' in page
    _, cut = posted(pages, "SELECT range FROM range(2000)")
    assert notices(cut) == [
        "The result has more rows: only the first 1,000 are shown. Add a filter, or use the command below."
    ]


def test_the_box_explains_why_a_statement_is_refused(pages: TestClient) -> None:
    status, page = posted(pages, "COPY (SELECT 1) TO 'stolen.csv'")
    assert (status, notices(page)) == (400, ["only SELECT statements are allowed: readers change nothing"])
    assert "COPY (SELECT 1)" in page
    assert posted(pages, "   ")[0] == 400
    assert posted(pages, "SELECT " + "1" * 10_000)[0] == 400
    assert posted(pages, "SELECT '\x00'")[0] == 400


def test_the_name_of_the_user_is_a_constant_of_duckdb(reader: Reader) -> None:
    assert result_of(reader, "SELECT current_user, session_user", LIMITS)["rows"] == [["duckdb", "duckdb"]]


def test_at_most_two_statements_are_executed_at_the_same_time(workspace: Workspace, pages: TestClient) -> None:
    endless, limits = "SELECT count(*) FROM range(1000000000000)", StatementLimits(seconds=3)
    ended: list[BaseException] = []

    def execute() -> None:
        try:
            execute_sql(workspace.settings.root, endless, limits)
        except LimitReached as error:
            ended.append(error)

    threads = [threading.Thread(target=execute) for _ in range(sql_limits.MOST_STATEMENTS)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 5
    while sql_limits._SLOTS._value and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(TooManyStatements):
        execute_sql(workspace.settings.root, "SELECT 1")
    status, page = posted(pages, "SELECT 1")
    assert (status, notices(page)) == (503, ["2 statements are being executed: try again in some seconds"])
    assert pages.get("/health/live").status_code == 200
    for thread in threads:
        thread.join()
    assert len(ended) == 2
    assert execute_sql(workspace.settings.root, "SELECT 1 AS n")["rows"] == [["1"]]


def test_a_viewer_may_use_the_box_also_on_a_read_only_server_and_other_sites_may_not(tmp_path: Path) -> None:
    workspace = open_at(write_workspace(tmp_path))
    text = workspace.tokens.create("eve", TokenRole.VIEWER, actor="ada")[1]
    with served(workspace, read_only=True) as pages:
        assert pages.get("/sql", headers=bearer(text)).status_code == 200
        status, page = posted(pages, "SELECT 41 + 1 AS n", headers=bearer(text))
        assert (status, ">42<" in page) == (200, True)
        csrf = pages.post("/login", json={"token": text}, headers=ORIGIN).json()["csrf_token"]
        form = {"statement": "SELECT 1", "csrf_token": csrf}
        assert posted(pages, "SELECT 1")[0] == 403
        assert pages.post("/sql", data=form, headers={"Origin": "http://evil.example"}).status_code == 403
        assert pages.post("/sql", data=form, headers=ORIGIN).status_code == 200
        pages.cookies.clear()
        answer = pages.post("/sql", data=form, headers=ORIGIN, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    workspace.close()
