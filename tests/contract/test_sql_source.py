"""The SQL source: rows from a database, refusals, and error classes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import orjson
import pytest
import sqlalchemy as sa

from penstock.config.assets import Query
from penstock.config.checks import Field
from penstock.config.loading import load_settings
from penstock.config.settings import Customer, SourceSettings
from penstock.errors import AuthFailed, ConfigError, DataError, PenstockError, SourceUnavailable
from penstock.partition import new_run_id
from penstock.source.protocol import RunContext
from penstock.source.registry import hooks_of, make_source
from penstock.source.sql import SqlSource
from support.servers import free_port

DAYS = [date(2024, 6, day) for day in (1, 2, 4)]  # with a gap
PASSWORD = "s3cr3t-pass"
N = (Field(name="n", type="long"),)


def fetch(url: str, sql: str, fields: tuple[Field, ...] = N, **options: Any) -> dict[date, list[Any]]:
    source = SqlSource({"url": url}, RunContext(new_run_id()))
    query = Query(name="q", source="shop", fields=fields, options={"sql": sql, **options})
    found: dict[date, list[Any]] = {day: [] for day in DAYS}
    for day, row in source.extract(query, Customer(id="c1"), DAYS):
        assert isinstance(row, bytes)
        found[day].append(orjson.loads(row))
    return found


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """One row for each of the first five days of June, for two customers."""
    database = sqlite3.connect(tmp_path / "shop.db")
    with database:
        database.execute("CREATE TABLE sales (customer, day, n, thing)")
        rows = [(customer, f"2024-06-0{day}", day, None) for customer in ("c1", "c2") for day in range(1, 6)]
        database.executemany("INSERT INTO sales VALUES (?, ?, ?, ?)", rows)
    database.close()
    return f"sqlite:///{tmp_path}/shop.db"


def test_a_gap_between_the_days_is_left_out(shop: str) -> None:
    sql = "SELECT day, n FROM sales WHERE customer = :customer_id AND day BETWEEN :first_date AND :last_date;"
    assert fetch(shop, sql, date_field="day") == {
        DAYS[0]: [{"n": 1}],
        DAYS[1]: [{"n": 2}],
        DAYS[2]: [{"n": 4}],
    }


@pytest.mark.parametrize("days", [":dates", "(:dates)", "( :dates )"])
def test_days_can_be_listed(shop: str, days: str) -> None:
    sql = f"SELECT day AS logical_date, n FROM sales WHERE customer = :customer_id AND day IN {days}"
    assert [row["n"] for rows in fetch(shop, sql).values() for row in rows] == [1, 2, 4]


def test_a_declared_day_stays_in_the_row(shop: str) -> None:
    sql = "SELECT day, n FROM sales WHERE customer = :customer_id AND day = :first_date"
    found = fetch(shop, sql, (Field(name="day", type="date"),), date_field="day")
    assert found[DAYS[0]] == [{"day": "2024-06-01", "n": 1}]


def test_rows_are_not_all_in_memory_at_once(tmp_path: Path) -> None:
    """The source has not read the last row when it yields the first one: it would fail there."""
    url = f"sqlite:///{tmp_path}/numbers.db"
    sqlite3.connect(tmp_path / "numbers.db").close()
    sql = (
        "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 100000)"
        " SELECT :first_date AS logical_date, CASE WHEN n = 100000 THEN abs(-9223372036854775808) ELSE n END AS n"
        " FROM numbers"
    )
    source = SqlSource({"url": url}, RunContext(new_run_id()))
    rows = source.extract(Query(name="q", source="shop", fields=N, options={"sql": sql}), Customer(id="c1"), DAYS)
    assert next(rows) == (DAYS[0], b'{"n":1}')
    with pytest.raises(PenstockError, match="integer overflow"):
        for _ in rows:
            pass


@pytest.mark.parametrize(
    ("sql", "kind", "words"),
    [
        (
            "SELECT * FROM nowhere",
            ConfigError,
            "no such table: nowhere; see the source's url and queries.q.options.sql",
        ),
        ("SELEKT 1", ConfigError, "syntax error"),
        ("SELECT n FROM sales WHERE day = :day", ConfigError, "there is no parameter :day (parameters: :customer_id,"),
        (
            "SELECT n FROM sales",
            ConfigError,
            "queries.q.options: date_field: logical_date is not a column of the result (columns: n)",
        ),
        ("SELECT n, n FROM sales", ConfigError, "the column n occurs twice: rename one with AS"),
        ("DELETE FROM sales", ConfigError, "readonly database"),
        ("CREATE TABLE mine (n)", ConfigError, "readonly database"),
        ("PRAGMA query_only = OFF", ConfigError, "must be a SELECT"),
        ("SELECT '2024-06-09' AS logical_date", DataError, "row 1 of the answer: logical_date is 2024-06-09, outside"),
        ("SELECT day AS logical_date FROM sales", DataError, "row 5 of the answer: logical_date is 2024-06-05"),
        ("SELECT NULL AS logical_date", DataError, "row 1 of the answer: logical_date is missing"),
        ("SELECT 'soon' AS logical_date", DataError, "row 1 of the answer: logical_date 'soon' is not a date"),
        ("SELECT :first_date AS logical_date, CAST(x'ff' AS TEXT) AS t", DataError, "Could not decode to UTF-8"),
    ],
)
def test_what_is_refused_says_why(shop: str, sql: str, kind: type[PenstockError], words: str) -> None:
    with pytest.raises(kind) as refused:
        fetch(shop, sql)
    assert words in str(refused.value)
    assert fetch(shop, "SELECT day AS logical_date FROM sales WHERE day = :last_date")[DAYS[2]] == [{}, {}]


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match=r"there is no SQLite file .*none\.db"):
        fetch(f"sqlite:///{tmp_path}/none.db", "SELECT 1")
    assert not (tmp_path / "none.db").exists()


def test_a_path_in_the_url_starts_at_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text(
        "tenant: a\nworkspace: b\nstate: sqlite:///state.db\nlake: ./lake\n"
        "sources:\n  shop: {kind: sql, url: 'sqlite:///data/shop.db?timeout=5'}\n"
        "  far: {kind: sql, url: 'postgresql+psycopg://h/d'}\n"
    )
    sources = load_settings(tmp_path, {}, hooks_of).sources
    assert sources["shop"].options["url"] == f"sqlite:///{tmp_path}/data/shop.db?timeout=5"
    assert sources["far"].options["url"] == "postgresql+psycopg://h/d"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "url: field required"),
        ({"url": f"postgresql+psycopg://me:{PASSWORD}@host:port/db"}, "url: is not the address of a database"),
        ({"url": f"nonsense {PASSWORD}"}, "url: is not the address of a database"),
        ({"url": f"ledger://me:{PASSWORD}@host/db"}, "url: SQLAlchemy knows no such kind of database"),
        ({"url": f"mysql+nodriver://me:{PASSWORD}@host/db"}, "url: SQLAlchemy knows no such kind of database"),
        ({"url": f"mysql+pymysql://me:{PASSWORD}@host/db"}, "url: needs the driver pymysql: pip install pymysql"),
        ({"url": "sqlite://", "table": PASSWORD}, "table: extra inputs are not permitted (known: url)"),
    ],
)
def test_bad_options_are_refused_without_showing_them(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_source(SourceSettings(name="shop", kind="sql", options=options), RunContext(new_run_id()))
    assert str(refused.value).startswith(f"sources.shop: {words}")
    assert PASSWORD not in "".join(_chain(refused.value))


def _chain(error: BaseException | None) -> Iterator[str]:
    """Everything that `--debug` would show."""
    while error is not None:
        yield f"{error} {error!r} {error.args!r}"
        error = error.__cause__


@pytest.fixture(scope="module")
def locked_url(postgres_url: str) -> str:
    """A login to the shared server that needs its password."""
    server = sa.create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE locked LOGIN PASSWORD '{PASSWORD}'")
        place = connection.exec_driver_sql("SHOW hba_file").scalar_one()
        rule = "host all locked all scram-sha-256"
        connection.exec_driver_sql(f"COPY (SELECT '{rule}' UNION ALL SELECT 'host all all all trust') TO '{place}'")
        connection.exec_driver_sql("SELECT pg_reload_conf()")
    server.dispose()
    return sa.make_url(postgres_url).set(username="locked").render_as_string(hide_password=False)


TODAY = "SELECT CAST(:first_date AS date) AS logical_date"


def test_a_refused_login_is_an_auth_error_that_does_not_show_it(locked_url: str) -> None:
    right = sa.make_url(locked_url).set(password=PASSWORD).render_as_string(hide_password=False)
    assert fetch(right, f"{TODAY}, 1 AS n")[DAYS[0]] == [{"n": 1}]
    wrong = sa.make_url(locked_url).set(password=f"{PASSWORD}x").render_as_string(hide_password=False)
    unknown = sa.make_url(locked_url).set(username="nobody", password=PASSWORD).render_as_string(hide_password=False)
    for url in (wrong, unknown, locked_url):
        with pytest.raises(AuthFailed, match=r"the postgresql database 127\.0\.0\.1.*check the login") as refused:
            fetch(url, TODAY)
        assert PASSWORD not in "".join(_chain(refused.value))


@pytest.mark.parametrize(
    ("sql", "kind", "words"),
    [
        ("SELECT * FROM nowhere", ConfigError, 'relation "nowhere" does not exist'),
        ("DELETE FROM pg_class", ConfigError, "queries.q.options.sql"),
        ("CREATE TABLE mine (n int)", ConfigError, "queries.q.options.sql"),
        (f"{TODAY}, nextval('counter') AS n", ConfigError, "read-only transaction"),
        (f"{TODAY}, 1 / (SELECT 0) AS n", DataError, "division by zero"),
        (f"{TODAY}, pg_sleep(30)::text AS n", SourceUnavailable, "statement timeout"),
        (f"{TODAY}, tstzrange(now(), now()) AS n", DataError, "row 1 of the answer: "),
    ],
)
def test_errors_of_postgresql_have_an_error_class(
    postgres_url: str, sql: str, kind: type[PenstockError], words: str
) -> None:
    admin = sa.create_engine(postgres_url)
    with admin.begin() as connection:
        connection.exec_driver_sql("CREATE SEQUENCE IF NOT EXISTS counter")
    admin.dispose()
    with pytest.raises(kind) as refused:
        fetch(f"{postgres_url}?options=-cstatement_timeout%3D200", sql)
    assert words in str(refused.value)


def test_typed_values_keep_every_digit(postgres_url: str) -> None:
    sql = (
        f"{TODAY}, 123456789012345678901234567890.123456789 AS a, 1e30::numeric AS b, 9223372036854775807 AS c,"
        " 'NaN'::float8 AS d, 'Infinity'::numeric AS e, '\\xff00'::bytea AS f, date '2024-02-29' AS g,"
        " timestamptz '2024-06-01 12:00:00.000001+02' AS h, true AS i, null::text AS j, uuid '" + "0" * 32 + "' AS k,"
        " 0.1::float8 AS l, interval '1 day' AS m"
    )
    query = Query(name="q", source="shop", fields=N, options={"sql": sql})
    source = SqlSource({"url": f"{postgres_url}?options=-ctimezone%3DUTC"}, RunContext(new_run_id()))
    [(_, line)] = source.extract(query, Customer(id="c1"), DAYS)
    assert line == (
        b'{"a":123456789012345678901234567890.123456789,"b":1000000000000000000000000000000,"c":9223372036854775807,'
        b'"d":"nan","e":"Infinity","f":"/wA=","g":"2024-02-29","h":"2024-06-01T10:00:00.000001+00:00","i":true,'
        b'"j":null,"k":"00000000-0000-0000-0000-000000000000","l":0.1,"m":"1 day, 0:00:00"}'
    )


def test_a_database_that_does_not_exist_is_a_mistake_in_the_url(postgres_url: str) -> None:
    missing = sa.make_url(postgres_url).set(database="atlantis").render_as_string(hide_password=False)
    with pytest.raises(ConfigError, match='database "atlantis" does not exist; see the source\'s url'):
        fetch(missing, TODAY)


def test_a_server_that_is_away_is_unavailable() -> None:
    with pytest.raises(SourceUnavailable, match=r"the postgresql database 127\.0\.0\.1: connection failed") as refused:
        fetch(f"postgresql+psycopg://me:{PASSWORD}@127.0.0.1:{free_port()}/db", TODAY)
    assert PASSWORD not in "".join(_chain(refused.value))
