"""Valid workspace files, and the error messages for invalid ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pydantic
import pytest

from penstock.config.assets import Model, Query, Restate, Retry, query_to_mapping
from penstock.config.checks import (
    Allowed,
    Expression,
    Field,
    Range,
    Required,
    Rows,
    Shrink,
    Unique,
    check_from_mapping,
    check_to_mapping,
)
from penstock.config.freshness import Freshness
from penstock.config.loading import find_workspace, load_settings
from penstock.config.rates import RateLimit, RateWindow
from penstock.config.settings import Customer, Settings, SourceSettings, SparkSettings, StateSettings
from penstock.contract.contract import Contract
from penstock.contract.odcs import to_odcs
from penstock.errors import ConfigError, UsageError
from penstock.source.registry import hooks_of

# Four lines, so that the lines of a test start on line 5.
HEAD = "tenant: acme\nworkspace: ads\nstate: sqlite:///state.db\nlake: ./lake\n"

# Lines 5 to 15; the lines that a test adds to the query start on line 16.
QUERY = """\
sources:
  demo: {kind: demo}
queries:
  daily:
    source: demo
    fields:
      - {name: campaign_id, type: long}
      - {name: clicks, type: long}
      - {name: status, type: string}
      - {name: day, type: date}
      - {name: paid, type: boolean}
"""
FIELDS = "campaign_id, clicks, status, day, paid"
QUERY_KEYS = (
    "source, schema_version, start_date, fields, checks, unknown_fields, missing_fields, freshness, restate, retry, "
    "options, customers"
)
MODEL_KEYS = (
    "sql, python, schema_version, depends_on, per, needs, require, refresh, on_demotion, checks, freshness, retry"
)
CHECKS = "required, unique, expression, rows, shrink, range, allowed, not_null_share, freshness, references, compare"

Files = Mapping[str, str]


def load(folder: Path, text: str, environ: Mapping[str, str] | None = None, files: Files | None = None) -> Settings:
    written = {f"models/{name}.sql": "SELECT 1" for name in ("a", "b", "c", "self", "fine", "one", "sum", "m", "A")}
    for name, content in {**written, "penstock.yaml": text, **(files or {})}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    return load_settings(folder / "penstock.yaml", environ or {}, hooks_of)


def refusals(
    folder: Path, text: str, environ: Mapping[str, str] | None = None, files: Files | None = None
) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(folder, text, environ, files)
    return str(caught.value).split("\n")


def refused_query(folder: Path, *lines: str) -> list[str]:
    return refusals(folder, HEAD + QUERY + "".join(f"    {line}\n" for line in lines))


def refused_check(folder: Path, check: str) -> list[str]:
    """The check is on line 17."""
    return refused_query(folder, "checks:", f"  - {check}")


def refused_field(folder: Path, field: str) -> list[str]:
    """The field is on line 16, after the other five."""
    return refused_query(folder, f"  - {field}")


def refused_customer(folder: Path, customer: str) -> list[str]:
    """The customer is on line 6."""
    return refusals(folder, HEAD + f"customers:\n  - {customer}\n")


# Valid files


def test_the_file_of_the_interface_page_is_read_as_written(tmp_path: Path) -> None:
    text = """\
tenant: acme
workspace: ads
state: sqlite:///state.db
lake: ./lake
spark:
  master: "local[*]"
  config: {}
customers:
  - {id: "1000000001", name: Example, time_zone: Europe/Berlin, active_from: 2024-01-01}
sources:
  demo: {kind: demo, seed: 7, failure_rate: 0.05}
queries:
  campaign_daily:
    source: demo
    schema_version: v1
    start_date: 2024-06-01
    fields:
      - {name: campaign_id, type: long, required: true}
      - {name: campaign_name, type: string}
      - {name: clicks, type: long}
      - {name: impressions, type: long}
    checks:
      - unique: [campaign_id]
      - expression: clicks <= impressions
      - rows: {min: 1}
      - shrink: {max_drop: 0.5}
    freshness: {max_lag: 36h}
    restate: {days: 3}
    retry: {max_attempts: 4, backoff: [30s, 2h], jitter: 0, max_age: 7d}
models:
  daily_spend: {sql: models/daily_spend.sql, depends_on: [demo.campaign_daily], per: date, checks: [{rows: {min: 1}}]}
"""
    expected = Settings(
        root=tmp_path,
        tenant="acme",
        workspace="ads",
        state=StateSettings(url=f"sqlite:///{tmp_path}/state.db", schema_name=None),
        lake=f"{tmp_path}/lake",
        spark=SparkSettings(master="local[*]", remote=None, config={}),
        customers=(
            Customer(
                id="1000000001",
                name="Example",
                time_zone="Europe/Berlin",
                active_from=date(2024, 1, 1),
                active_to=None,
            ),
        ),
        sources={"demo": SourceSettings(name="demo", kind="demo", options={"seed": 7, "failure_rate": 0.05})},
        queries={
            "campaign_daily": Query(
                name="campaign_daily",
                source="demo",
                schema_version="v1",
                start_date=date(2024, 6, 1),
                fields=(
                    Field(name="campaign_id", type="long", required=True),
                    Field(name="campaign_name", type="string"),
                    Field(name="clicks", type="long"),
                    Field(name="impressions", type="long"),
                ),
                checks=(
                    Unique(fields=("campaign_id",)),
                    Expression(expression="clicks <= impressions"),
                    Rows(min=1, max=None),
                    Shrink(max_drop=0.5),
                ),
                freshness=Freshness(max_lag=timedelta(hours=36)),
                restate=Restate(days=3),
                retry=Retry(
                    max_attempts=4,
                    backoff=(timedelta(seconds=30), timedelta(hours=2)),
                    jitter=0.0,
                    max_age=timedelta(days=7),
                ),
            )
        },
        models={
            "daily_spend": Model(
                name="daily_spend",
                sql="models/daily_spend.sql",
                depends_on=("demo.campaign_daily",),
                per="date",
                checks=(Rows(min=1),),
            )
        },
    )
    assert load(tmp_path, text, files={"models/daily_spend.sql": "SELECT 1"}) == expected


def test_a_short_file_gets_the_documented_defaults(tmp_path: Path) -> None:
    settings = load(tmp_path, HEAD + QUERY)
    query = settings.query("daily")
    assert settings.spark == SparkSettings(master="local[*]", remote=None, config={})
    assert (settings.customers, settings.models) == ((), {})
    assert query.model_dump(exclude={"name", "source", "fields"}) == {
        "schema_version": "v1",
        "start_date": None,
        "checks": (),
        "unknown_fields": "reject",
        "missing_fields": "ignore",
        "freshness": None,
        "restate": None,
        "retry": {
            "max_attempts": 5,
            "backoff": (timedelta(minutes=5), timedelta(minutes=30), timedelta(hours=2)),
            "jitter": 0.2,
            "max_age": timedelta(days=30),
            "errors": ("transient", "internal"),
        },
        "options": {},
        "customers": None,
    }


def test_sections_that_were_left_empty_are_empty(tmp_path: Path) -> None:
    settings = load(tmp_path, HEAD + "spark:\ncustomers:\nsources:\nqueries:\nmodels:\ninclude:\n")
    assert (settings.customers, settings.sources, settings.queries, settings.models) == ((), {}, {}, {})


def test_a_folder_may_be_named_instead_of_its_file(tmp_path: Path) -> None:
    by_file = load(tmp_path, HEAD)
    assert load_settings(tmp_path, {}, hooks_of) == by_file


def test_a_query_keeps_its_options_and_its_customers(tmp_path: Path) -> None:
    text = HEAD + QUERY + "    options: {gaql: SELECT 1}\n    customers: ['1']\ncustomers: [{id: '1'}, {id: '2'}]\n"
    query = load(tmp_path, text).query("daily")
    assert (query.options, query.customers) == ({"gaql": "SELECT 1"}, ("1",))


def test_a_decimal_is_written_in_one_way(tmp_path: Path) -> None:
    settings = load(tmp_path, HEAD + QUERY + '      - {name: cost, type: "decimal(38, 0)"}\n')
    assert settings.query("daily").fields[-1] == Field(name="cost", type="decimal(38,0)")


def test_spark_config_is_text_whatever_yaml_made_of_it(tmp_path: Path) -> None:
    text = HEAD + "spark:\n  remote: sc://host:15002\n  config: {a: 8, b: true, c: 0.5, d: x}\n"
    assert load(tmp_path, text).spark == SparkSettings(
        remote="sc://host:15002", config={"a": "8", "b": "true", "c": "0.5", "d": "x"}
    )


def test_a_model_per_customer_may_be_written_as_a_list(tmp_path: Path) -> None:
    text = HEAD + QUERY + "models:\n  one: {depends_on: [demo.daily], per: [customer, date]}\n"
    assert load(tmp_path, text).models == {
        "one": Model(name="one", sql=None, depends_on=("demo.daily",), per="customer,date", checks=())
    }


def test_anchors_aliases_and_merge_keys_are_followed(tmp_path: Path) -> None:
    text = HEAD + "sources:\n  a: &base {kind: demo, seed: 1, rows: 2}\n  b: *base\n  c:\n    <<: *base\n    seed: 3\n"
    assert {name: source.options for name, source in load(tmp_path, text).sources.items()} == {
        "a": {"seed": 1, "rows": 2},
        "b": {"seed": 1, "rows": 2},
        "c": {"seed": 3, "rows": 2},
    }


def test_what_a_source_may_be_asked_is_read_apart_from_its_own_options(tmp_path: Path) -> None:
    text = HEAD + "sources:\n  demo: {kind: demo, seed: 1, parallelism: 4, rate: 600/m}\n"
    assert load(tmp_path, text).sources["demo"] == SourceSettings(
        name="demo", kind="demo", options={"seed": 1}, parallelism=4, rate=(RateLimit(600, RateWindow.MINUTE),)
    )
    [rate, parallelism] = refusals(tmp_path, HEAD + "sources:\n  demo: {kind: demo, rate: fast, parallelism: 0}\n")
    assert "sources.demo.rate: 'fast' is not a rate: write 10/s, 600/m, 5000/h or 15000/d" in rate + parallelism
    assert "sources.demo.parallelism: must be greater than or equal to 1" in rate + parallelism


DAY, HOUR, SECOND = RateWindow.DAY, RateWindow.HOUR, RateWindow.SECOND


@pytest.mark.parametrize(
    ("written", "limits", "pace", "quotas"),
    [
        ("15000/d", (RateLimit(15_000, DAY),), None, (RateLimit(15_000, DAY),)),
        ("[50/s, 15000/d]", (RateLimit(50, SECOND), RateLimit(15_000, DAY)), 50.0, (RateLimit(15_000, DAY),)),
        ("[600/m, 5000/h, 20/s]", None, 10.0, (RateLimit(5_000, HOUR),)),
        ("[5000/h, 9000/d]", None, None, (RateLimit(9_000, DAY), RateLimit(5_000, HOUR))),
        ("2.5", (RateLimit(2.5, SECOND),), 2.5, ()),
        ("null", (), None, ()),
    ],
)
def test_a_rate_is_one_limit_or_a_list_of_limits(
    tmp_path: Path,
    written: str,
    limits: tuple[RateLimit, ...] | None,
    pace: float | None,
    quotas: tuple[RateLimit, ...],
) -> None:
    source = load(tmp_path, HEAD + f"sources:\n  demo: {{kind: demo, rate: {written}}}\n").sources["demo"]
    assert limits is None or source.rate == limits
    assert (source.pace, source.quotas) == (pace, quotas)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("0/d", "sources.demo.rate: '0/d' is not a rate: write 10/s, 600/m, 5000/h or 15000/d"),
        ("5/w", "sources.demo.rate: '5/w' is not a rate: write 10/s, 600/m, 5000/h or 15000/d"),
        ("x", "sources.demo.rate: 'x' is not a rate: write 10/s, 600/m, 5000/h or 15000/d"),
        ("0", "sources.demo.rate: 0 is not a rate: write 10/s, 600/m, 5000/h or 15000/d"),
        (".inf", "sources.demo.rate: inf is not a rate: write 10/s, 600/m, 5000/h or 15000/d"),
        ("true", "sources.demo.rate: True is not a rate: write 10/s, 600/m, 5000/h or 15000/d"),
        ("[]", "sources.demo.rate: must not be empty: write 10/s, 600/m, 5000/h or 15000/d, or leave out the key"),
        ("[50/s, 5/w]", "sources.demo.rate[1]: '5/w' is not a rate: write 10/s, 600/m, 5000/h or 15000/d"),
        ("[50/d, 9/s, 70/d]", "sources.demo.rate[2]: 70/d is a second limit for each day, after 50/d: keep one"),
    ],
)
def test_a_bad_rate_is_refused_with_its_place(tmp_path: Path, written: str, expected: str) -> None:
    [line] = refusals(tmp_path, HEAD + f"sources:\n  demo:\n    kind: demo\n    rate: {written}\n")
    number = HEAD.count("\n") + 4
    assert line.endswith(expected)
    assert f"penstock.yaml:{number}: " in line


def test_windows_begin_at_full_hours_and_at_midnight_utc() -> None:
    now = datetime(2026, 11, 17, 22, 59, 59, 999_999, tzinfo=ZoneInfo("America/New_York"))
    assert DAY.start(now) == datetime(2026, 11, 18, tzinfo=UTC)
    assert HOUR.start(now) == datetime(2026, 11, 18, 3, tzinfo=UTC)
    assert [str(limit) for limit in (RateLimit(15_000, DAY), RateLimit(2.5, SECOND))] == ["15000/d", "2.5/s"]


# The state and the lake


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("state: sqlite:////var/lib/s.db", StateSettings(url="sqlite:////var/lib/s.db", schema_name=None)),
        (
            "state: postgresql+psycopg://u@h/db\nschema: ads",
            StateSettings(url="postgresql+psycopg://u@h/db", schema_name="ads"),
        ),
        ("state: postgresql://u@h/db", StateSettings(url="postgresql+psycopg://u@h/db", schema_name=None)),
        (
            "state: {url: 'postgresql://u@h/db', schema: ads}",
            StateSettings(url="postgresql+psycopg://u@h/db", schema_name="ads"),
        ),
    ],
)
def test_the_state_may_be_a_url_or_a_map(tmp_path: Path, state: str, expected: StateSettings) -> None:
    assert load(tmp_path, f"tenant: acme\nworkspace: ads\nlake: lake\n{state}\n").state == expected


def test_a_relative_sqlite_file_and_its_options_belong_to_the_workspace(tmp_path: Path) -> None:
    settings = load(tmp_path, "tenant: a\nworkspace: b\nlake: ../lake\nstate: sqlite:///db/../s.db?timeout=5\n")
    assert settings.state.url == f"sqlite:///{tmp_path}/s.db?timeout=5"
    assert settings.lake == f"{tmp_path.parent}/lake"


@pytest.mark.parametrize(
    ("state", "complaint"),
    [
        ("mysql://u:hunter2@h/db", "must start with sqlite:/// or postgresql+psycopg://"),
        (
            "postgresql+psycopg2://h/db",
            "must start with sqlite:/// or postgresql+psycopg://",
        ),
        ("state.db", "must start with sqlite:/// or postgresql+psycopg://"),
        (
            "'sqlite:///:memory:'",
            "a database in memory is lost with the process: name a file, for example sqlite:///state.db",
        ),
        (
            "postgresql://u:pass/word:x@h/db",
            "is not a database URL: check the port, and percent-encode special characters in the user and the password",
        ),
        ("5", "must be text; put a number, a date or a word like yes in quotes"),
    ],
)
def test_other_databases_are_refused_without_showing_the_url(tmp_path: Path, state: str, complaint: str) -> None:
    text = f"tenant: acme\nworkspace: ads\nlake: lake\nstate: {state}\n"
    assert refusals(tmp_path, text) == [f"penstock.yaml:4: state: {complaint}"]


@pytest.mark.parametrize(
    ("text", "where"), [("schema: ads\n", "penstock.yaml:5: schema"), ("", "penstock.yaml:3: state.schema")]
)
def test_a_schema_is_refused_with_sqlite(tmp_path: Path, text: str, where: str) -> None:
    head = HEAD if text else HEAD.replace("sqlite:///state.db", "{url: 'sqlite:///state.db', schema: ads}")
    assert refusals(tmp_path, head + text) == [
        f"{where}: a schema is for PostgreSQL only; a SQLite state has a file of its own"
    ]


def test_a_schema_given_twice_is_refused(tmp_path: Path) -> None:
    head = HEAD.replace("sqlite:///state.db", "{url: 'postgresql://h/db', schema: ads}")
    assert refusals(tmp_path, head + "schema: other\n") == [
        "penstock.yaml:5: schema: is already given at penstock.yaml:3"
    ]


@pytest.mark.parametrize(
    ("lake", "expected"), [("s3://bucket/some/prefix/", "s3://bucket/some/prefix"), ("/data/lake", "/data/lake")]
)
def test_the_lake_may_be_a_bucket_or_a_folder(tmp_path: Path, lake: str, expected: str) -> None:
    assert load(tmp_path, HEAD.replace("./lake", lake)).lake == expected


@pytest.mark.parametrize(
    ("lake", "complaint"),
    [
        ("gs://bucket", "must be a folder or s3://bucket/prefix"),
        ("s3:///prefix", "names no bucket: write s3://bucket/prefix"),
        ("''", "must not be empty"),
    ],
)
def test_other_lakes_are_refused(tmp_path: Path, lake: str, complaint: str) -> None:
    assert refusals(tmp_path, HEAD.replace("./lake", lake)) == [f"penstock.yaml:4: lake: {complaint}"]


def test_the_password_of_the_database_is_in_no_repr(tmp_path: Path) -> None:
    url = "postgresql://me:p@ss:w0rd@host:5432/db?sslpassword=other&application_name=x"
    settings = load(tmp_path, HEAD.replace("sqlite:///state.db", url))
    shown = "postgresql+psycopg://me:***@host:5432/db?sslpassword=***&application_name=x"
    assert repr(settings.state) == f"StateSettings(url={shown!r}, schema_name=None)"
    assert str(settings.state) == f"url={shown!r} schema_name=None"
    assert settings.state.masked_url == shown
    assert "p@ss" not in repr(settings)
    assert "w0rd" not in str(settings)


def test_options_that_may_hold_secrets_are_in_no_repr(tmp_path: Path) -> None:
    text = HEAD + "spark: {config: {key: hunter2}}\nsources:\n  demo: {kind: demo, token: hunter2}\n"
    assert "hunter2" not in repr(load(tmp_path, text))


# YAML itself


def test_a_syntax_error_names_its_line(tmp_path: Path) -> None:
    [line] = refusals(tmp_path, HEAD + "customers: [\n  {id: 'a'\n")
    assert line.startswith("penstock.yaml:7: is not valid YAML: ")


def test_a_character_that_yaml_forbids_names_its_line(tmp_path: Path) -> None:
    [line] = refusals(tmp_path, HEAD + "x: \x01\n")
    assert line == "penstock.yaml:5: is not valid YAML: control characters are not allowed"


def test_a_variable_inside_braces_is_refused_with_the_way_out(tmp_path: Path) -> None:
    [line] = refusals(tmp_path, HEAD + "sources:\n  demo: {kind: demo, seed: ${SEED}}\n", {"SEED": "7"})
    assert line == (
        "penstock.yaml:6: is not valid YAML: did not find expected ',' or '}'; "
        "inside { } and [ ] put ${NAME} in quotes if it is text, or else on a line of its own"
    )


def test_a_key_written_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    assert refusals(tmp_path, HEAD + "sources:\n  demo: {kind: demo}\n  demo: {kind: sql}\ntenant: b\n") == [
        "penstock.yaml:7: sources: the key 'demo' is written twice, first at penstock.yaml:6",
        "penstock.yaml:8: the key 'tenant' is written twice, first at penstock.yaml:1",
    ]


def test_a_key_that_is_no_string_is_refused(tmp_path: Path) -> None:
    assert refusals(tmp_path, HEAD + "sources:\n  1: {kind: demo}\n  demo: {kind: demo, yes: 1}\n  [a]: 2\n") == [
        "penstock.yaml:6: sources: a key must be a string: put the key '1' in quotes",
        "penstock.yaml:7: sources.demo: a key must be a string: put the key 'yes' in quotes",
        "penstock.yaml:8: sources: a key must be a string: put the key of several parts in quotes",
    ]


def test_a_file_that_is_no_map_is_refused(tmp_path: Path) -> None:
    assert refusals(tmp_path, "\n- a\n") == ["penstock.yaml:2: the file must be a map of keys and values"]


def test_an_empty_file_lacks_everything(tmp_path: Path) -> None:
    assert refusals(tmp_path, "# nothing\n") == [
        f"penstock.yaml:1: {key!r} is missing" for key in ("tenant", "workspace", "state", "lake")
    ]


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_bytes(HEAD.encode() + b"x: \xff\n")
    with pytest.raises(ConfigError, match=r"^penstock.yaml:5: is not UTF-8 text$"):
        load_settings(tmp_path, {}, hooks_of)


def test_a_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^penstock.yaml:1: 'penstock.yaml' cannot be read: No such file"):
        load_settings(tmp_path / "penstock.yaml", {}, hooks_of)


def test_an_alias_inside_itself_is_refused(tmp_path: Path) -> None:
    assert refusals(tmp_path, HEAD + "sources:\n  demo: &loop\n    kind: demo\n    again: *loop\n") == [
        "penstock.yaml:8: sources.demo.again: is an alias that contains itself"
    ]


@pytest.mark.parametrize("opened", ["[" * 5000 + "]" * 5000, "[" * 200_000, "\n      " + "- " * 5000 + "x"])
def test_lists_that_are_nested_without_end_are_refused_with_their_line(tmp_path: Path, opened: str) -> None:
    [refused] = refusals(tmp_path, HEAD + f"sources:\n  demo:\n    kind: demo\n    x: {opened}\n")
    line = 9 if opened.startswith("\n") else 8
    assert refused == f"penstock.yaml:{line}: is nested too deeply: at most 64 maps and lists in each other"


def test_aliases_that_multiply_are_refused_with_their_line(tmp_path: Path) -> None:
    bomb = "    a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"    a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))
    words = "its aliases make more than 200,000 values: write less with *aliases"
    assert refusals(tmp_path, HEAD + f"sources:\n  demo:\n    kind: demo\n{bomb}") == [f"penstock.yaml:13: {words}"]
    merged = "    m0: &m0 {k: v}\n"
    merged += "".join(f"    m{n}: &m{n} {{a: *m{n - 1}, b: *m{n - 1}}}\n" for n in range(1, 40))
    [refused] = refusals(tmp_path, HEAD + "include: [more.yaml]\n", files={"more.yaml": f"sources:\n  demo:\n{merged}"})
    assert refused.startswith("more.yaml:")
    assert refused.endswith(words)
    chain = "    c0: &c0 [x]\n" + "".join(f"    c{n}: &c{n} [*c{n - 1}]\n" for n in range(1, 3000))
    [refused] = refusals(tmp_path, HEAD + f"sources:\n  demo:\n    kind: demo\n{chain}")
    assert "is nested too deeply by its aliases" in refused


def test_what_is_large_but_written_out_is_read(tmp_path: Path) -> None:
    base = "sources:\n  base: &base {kind: demo, x: [1, 2, 3]}\n" + "".join(f"  s{n}: *base\n" for n in range(2000))
    customers = "customers:\n" + "".join(f"  - {{id: '{n}', name: n}}\n" for n in range(5000))
    settings = load(tmp_path, HEAD + base + customers)
    assert (len(settings.sources), len(settings.customers)) == (2001, 5000)


def test_variables_in_the_options_of_a_query_are_stored_by_name_and_not_by_value(tmp_path: Path) -> None:
    options = (
        "    options: {key: '${SECRET}', limit: '${N:-5}', deep: [{a: 'x-${SECRET}'}], text: 'a$${b}', plain: 1}\n"
    )
    query = load(tmp_path, HEAD + QUERY + options, {"SECRET": "hunter2hunter2"}).query("daily")
    assert query.options == {
        "key": "hunter2hunter2",
        "limit": "5",
        "deep": [{"a": "x-hunter2hunter2"}],
        "text": "a${b}",
        "plain": 1,
    }
    stored = {"key": "${SECRET}", "limit": "${N:-5}", "deep": [{"a": "x-${SECRET}"}], "text": "a${b}", "plain": 1}
    contract = Contract.of(query)
    assert contract.body()["options"] == stored
    assert query_to_mapping(query)["options"] == stored
    assert "hunter2" not in repr(query) + str(to_odcs(query)) + str(contract.body())
    other = load(tmp_path, HEAD + QUERY + options, {"SECRET": "another", "N": "7"}).query("daily")
    assert other.options["limit"] == "7"
    assert Contract.of(other).fingerprint == contract.fingerprint


def test_options_without_variables_are_stored_as_they_always_were(tmp_path: Path) -> None:
    query = load(tmp_path, HEAD + QUERY + "    options: {gaql: SELECT 1, text: 'a$${b}'}\n").query("daily")
    assert query.stored_options is None
    assert Contract.of(query).body()["options"] == query.options == {"gaql": "SELECT 1", "text": "a${b}"}
    [refused] = refusals(tmp_path, HEAD + QUERY + "    stored_options: {a: 1}\n")
    assert "unknown key 'stored_options'" in refused


@pytest.mark.parametrize("merged", ["5", "[5]", "*me", "{<<: *me}"])
def test_a_merge_of_something_else_than_another_map_is_refused(tmp_path: Path, merged: str) -> None:
    assert refusals(tmp_path, HEAD + f"sources:\n  demo: &me\n    <<: {merged}\n    kind: demo\n") == [
        "penstock.yaml:7: sources.demo: '<<' merges other maps only"
    ]


def test_a_tag_of_another_language_is_refused(tmp_path: Path) -> None:
    assert refusals(tmp_path, HEAD + "sources:\n  demo: {kind: demo, x: !secret a}\n") == [
        "penstock.yaml:6: sources.demo.x: the tag !secret is not understood here"
    ]


def test_a_date_that_the_calendar_does_not_have_is_refused(tmp_path: Path) -> None:
    assert refused_query(tmp_path, "start_date: 2024-02-31") == [
        "penstock.yaml:16: queries.daily.start_date: '2024-02-31' looks like a date but is none"
    ]


# Variables


def test_variables_are_expanded_and_typed_as_if_they_had_been_written_there(tmp_path: Path) -> None:
    text = """\
sources:
  demo:
    kind: ${KIND}
    share: ${SHARE:-0.05}
    quoted: "${SHARE:-0.05}"
    seed: ${SEED}
    empty: ${EMPTY:-fallback}
    since: ${SINCE:-2024-06-01}
    joined: a-${KIND}-${SEED}-b
    literal: $${KIND}
    block: |
      ${SEED}
"""
    settings = load(tmp_path, HEAD + text, {"KIND": "demo", "SEED": "7", "EMPTY": ""})
    assert settings.sources["demo"] == SourceSettings(
        name="demo",
        kind="demo",
        options={
            "share": 0.05,
            "quoted": "0.05",
            "seed": 7,
            "empty": "fallback",
            "since": date(2024, 6, 1),
            "joined": "a-demo-7-b",
            "literal": "${KIND}",
            "block": "7\n",
        },
    )


def test_a_value_from_the_environment_cannot_add_structure(tmp_path: Path) -> None:
    settings = load(tmp_path, HEAD + "sources:\n  demo:\n    kind: demo\n    x: ${X}\n", {"X": "{a: [1]}"})
    assert settings.sources["demo"].options == {"x": "{a: [1]}"}


def test_every_unset_variable_is_refused_once(tmp_path: Path) -> None:
    text = HEAD.replace("sqlite:///state.db", "${URL}") + "sources:\n  demo:\n    kind: ${KIND}-${OTHER}\n"
    assert refusals(tmp_path, text) == [
        "penstock.yaml:3: state: the environment variable URL is not set; set it, or write ${URL:-default}",
        "penstock.yaml:7: sources.demo.kind: the environment variable KIND is not set; "
        "set it, or write ${KIND:-default}",
        "penstock.yaml:7: sources.demo.kind: the environment variable OTHER is not set; "
        "set it, or write ${OTHER:-default}",
    ]


@pytest.mark.parametrize("written", ["${1A}", "${A", "${A-b}", "${}"])
def test_a_malformed_variable_is_refused(tmp_path: Path, written: str) -> None:
    assert refusals(tmp_path, HEAD + f"sources:\n  demo:\n    kind: '{written}'\n") == [
        "penstock.yaml:7: sources.demo.kind: '${' must be ${NAME} or ${NAME:-default}; "
        "write $${ for the two characters themselves"
    ]


def test_no_refusal_shows_what_a_variable_held(tmp_path: Path) -> None:
    text = """\
customers:
  - id: ${ID}
    time_zone: ${ZONE}
    active_from: ${DAY}
sources:
  demo: {kind: demo}
queries:
  daily:
    source: ${SOURCE}
    schema_version: x${SOURCE}y
    start_date: ${BROKEN_DAY}
    restate: {days: "${DAYS}"}
    freshness:
      max_lag: ${DAYS}
    fields: [{name: a, type: "${TYPE}"}]
    checks:
      - rows:
          min: ${DAYS}
          max: 1
      - "${TYPE}": 1
"""
    secrets = {
        "ID": "hunter2/../x",
        "ZONE": "Hunter2/Zone",
        "DAY": "hunter2day",
        "SOURCE": "HUNTER2 source",
        "BROKEN_DAY": "2024-02-31",
        "DAYS": "77",
        "TYPE": "hunter2type",
    }
    lines = refusals(tmp_path, HEAD + text, secrets)
    assert not [line for line in lines for secret in secrets.values() if secret in line.split(":", 2)[2]]
    types = "long, double, string, boolean, date, timestamp, decimal(p,s), array<T>, struct<name: T, ...>"
    name_rule = "use lower-case letters, digits and underscores, starting with a letter, at most 63 of them"
    assert lines == [
        "penstock.yaml:6: customers[0].id: customer id '${ID}' is not valid: "
        "use letters, digits, '.', '_' or '-', at most 63 of them",
        "penstock.yaml:7: customers[0].time_zone: '${ZONE}' is not a known time zone: "
        "write a name such as Europe/Berlin",
        "penstock.yaml:8: customers[0].active_from: date '${DAY}' is not a date: "
        "write YYYY-MM-DD, for example 2024-06-01",
        "penstock.yaml:13: queries.daily.source: '${SOURCE}' is not a known source (known: demo)",
        f"penstock.yaml:14: queries.daily.schema_version: name 'x${{SOURCE}}y' is not valid: {name_rule}",
        "penstock.yaml:15: queries.daily.start_date: '${BROKEN_DAY}' looks like a date but is none",
        "penstock.yaml:16: queries.daily.restate.days: must be a whole number",
        "penstock.yaml:18: queries.daily.freshness.max_lag: ${DAYS} is not a duration: write 30s, 5m, 2h or 30d",
        f"penstock.yaml:19: queries.daily.fields[0].type: '${{TYPE}}' is not a type (types: {types})",
        "penstock.yaml:21: queries.daily.checks[0].rows: max 1 is below min ${DAYS}",
        f"penstock.yaml:24: queries.daily.checks[1]: '${{TYPE}}' is not a check (checks: {CHECKS})",
    ]


def test_the_password_from_a_variable_is_in_no_refusal(tmp_path: Path) -> None:
    head = HEAD.replace("sqlite:///state.db", "mysql://me:${PASSWORD}@host/db")
    [line] = refusals(tmp_path, head, {"PASSWORD": "hunter2"})
    assert line == "penstock.yaml:3: state: must start with sqlite:/// or postgresql+psycopg://"


def test_names_that_came_from_variables_are_hidden_in_lists_and_file_names_too(tmp_path: Path) -> None:
    text = HEAD + QUERY + "    customers: [abd]\ncustomers: ${FILE}\nmodels:\n  m: {depends_on: [x.y]}\n"
    text += "include: ['${PART}.yaml']\n"
    files = {"q.csv": "id\nabc\na b\n", "p.yaml": "customers:\n  - id: ${ID}\n  - id: 5\n"}
    assert refusals(tmp_path, text, {"FILE": "q.csv", "PART": "p", "ID": "hush"}, files) == [
        "penstock.yaml:16: queries.daily.customers[0]: "
        "'abd' is not a known customer (known: abc, a b, ${ID}); did you mean 'abc'?",
        "penstock.yaml:19: models.m.depends_on[0]: 'x.y' is not a known table (known: demo.daily, models.m)",
        "${FILE}:3: customers[1].id: customer id 'a b' is not valid: "
        "use letters, digits, '.', '_' or '-', at most 63 of them",
        '${PART}.yaml:3: customers[3].id: must be text: put the id in quotes, for example id: "1000000001"',
    ]


# Included files


def test_included_files_add_sources_queries_models_and_customers(tmp_path: Path) -> None:
    files = {
        "parts/one.yaml": "sources:\n  other: {kind: '${KIND}'}\ncustomers:\n  - {id: b}\n",
        "parts/two.yaml": (
            "queries:\n  hourly: {source: other, fields: [{name: a, type: long}]}\n"
            "models:\n  sum: {depends_on: [other.hourly]}\ncustomers: more.csv\n"
        ),
        "parts/more.csv": "id\nc\n",
    }
    text = HEAD + QUERY + "customers: [{id: a}]\ninclude: [parts/one.yaml, parts/two.yaml]\n"
    settings = load(tmp_path, text, {"KIND": "sql"}, files)
    assert [customer.id for customer in settings.customers] == ["a", "b", "c"]
    assert {name: source.kind for name, source in settings.sources.items()} == {"demo": "demo", "other": "sql"}
    assert [query.source for query in settings.queries.values()] == ["demo", "other"]
    assert settings.models == {"sum": Model(name="sum", depends_on=("other.hourly",))}


def test_a_name_defined_in_two_files_is_refused_with_both_places(tmp_path: Path) -> None:
    files = {"more.yaml": "sources:\n\n  demo: {kind: sql}\ncustomers:\n  - {id: a}\n"}
    text = HEAD + QUERY + "customers:\n  - {id: a}\ninclude: [more.yaml]\n"
    assert refusals(tmp_path, text, files=files) == [
        "more.yaml:3: sources.demo: 'demo' is already defined at penstock.yaml:6",
        "more.yaml:5: customers[1].id: customer 'a' is already defined at penstock.yaml:17",
    ]


def test_problems_inside_an_included_file_name_that_file(tmp_path: Path) -> None:
    files = {"parts/more.yaml": "queries:\n  hourly:\n    source: demo\n    fields: []\n"}
    text = HEAD + QUERY + "include: [parts/more.yaml]\n"
    assert refusals(tmp_path, text, files=files) == ["parts/more.yaml:4: queries.hourly.fields: must not be empty"]


def test_an_included_file_may_hold_only_what_is_merged(tmp_path: Path) -> None:
    files = {"more.yaml": "sources: {}\ntenant: b\ninclude: [x.yaml]\n"}
    assert refusals(tmp_path, HEAD + "include: [more.yaml]\n", files=files) == [
        f"more.yaml:{line}: '{key}' belongs in the workspace file; "
        "an included file may hold only sources, queries, models, customers"
        for line, key in ((2, "tenant"), (3, "include"))
    ]


def test_an_included_file_that_cannot_be_read_is_the_only_thing_reported(tmp_path: Path) -> None:
    text = HEAD + "include:\n  - gone.yaml\n  - bad.yaml\nmodels: {m: {depends_on: [in.gone]}}\n"
    assert refusals(tmp_path, text, files={"bad.yaml": "a: b: c\n"}) == [
        "penstock.yaml:6: include[0]: 'gone.yaml' cannot be read: No such file or directory",
        "bad.yaml:1: is not valid YAML: mapping values are not allowed in this context",
    ]


def test_a_file_included_twice_is_refused(tmp_path: Path) -> None:
    text = HEAD + "include:\n  - more.yaml\n  - ./more.yaml\n  - penstock.yaml\n"
    assert refusals(tmp_path, text, files={"more.yaml": "sources: {demo: {kind: demo}}\n"}) == [
        "penstock.yaml:7: include[1]: './more.yaml' is included twice",
        "penstock.yaml:8: include[2]: 'penstock.yaml' is included twice",
    ]


@pytest.mark.parametrize("value", ["more.yaml", "[1]"])
def test_include_takes_a_list_of_names(tmp_path: Path, value: str) -> None:
    assert refusals(tmp_path, HEAD + f"include: {value}\n") == [
        "penstock.yaml:5: include: must be a list of file names, for example [queries.yaml]"
    ]


@pytest.mark.parametrize("section", ["sources", "queries", "models"])
def test_a_section_that_is_no_map_is_refused(tmp_path: Path, section: str) -> None:
    assert refusals(tmp_path, HEAD + f"{section}: [a]\n") == [f"penstock.yaml:5: {section}: must be a map of names"]


# customers.csv


def test_customers_may_stand_in_a_csv_file(tmp_path: Path) -> None:
    content = (
        "\ufeffid,name,time_zone,active_from,active_to\n"
        '1000000001,"Bread, and more",Europe/Berlin,2024-01-01,2024-12-31\n\n 007 ,,,,\n'
    )
    assert load(tmp_path, HEAD + "customers: c/customers.csv\n", files={"c/customers.csv": content}).customers == (
        Customer(
            id="1000000001",
            name="Bread, and more",
            time_zone="Europe/Berlin",
            active_from=date(2024, 1, 1),
            active_to=date(2024, 12, 31),
        ),
        Customer(id="007"),
    )


def test_problems_in_a_csv_file_name_the_file_and_the_line(tmp_path: Path) -> None:
    content = 'id,name,active_from\n"a b",,\nb,"two\nlines",\nb,,\nc,,2024-13-01\n,x,\nd\n'
    assert refusals(tmp_path, HEAD + "customers: customers.csv\n", files={"customers.csv": content}) == [
        "customers.csv:2: customers[0].id: customer id 'a b' is not valid: "
        "use letters, digits, '.', '_' or '-', at most 63 of them",
        "customers.csv:5: customers[2].id: customer 'b' is already defined at customers.csv:3",
        "customers.csv:6: customers[3].active_from: date '2024-13-01' is not a date: "
        "write YYYY-MM-DD, for example 2024-06-01",
        "customers.csv:7: customers[4]: 'id' is missing",
        "customers.csv:8: customers[5]: has 1 cells, the first line names 3 columns",
    ]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("1000000001,Example\n", "found '1000000001,Example'"),
        ("name,time_zone\n", "found 'name,time_zone'"),
        ("id;name\n", "found 'id;name'"),
        ("id,id\n", "found 'id,id'"),
        ("", "the file is empty"),
    ],
)
def test_a_csv_file_needs_its_header(tmp_path: Path, content: str, found: str) -> None:
    assert refusals(tmp_path, HEAD + "customers: customers.csv\n", files={"customers.csv": content}) == [
        "customers.csv:1: the first line must name columns out of id,name,time_zone,active_from,active_to, "
        f"with id and each once; {found}"
    ]


def test_a_broken_csv_file_names_its_line(tmp_path: Path) -> None:
    content = 'id,name\na,b\nc,"open\n'
    assert refusals(tmp_path, HEAD + "customers: customers.csv\n", files={"customers.csv": content}) == [
        "customers.csv:3: is not valid CSV: unexpected end of data"
    ]


def test_a_csv_file_that_is_missing_is_refused_where_it_is_named(tmp_path: Path) -> None:
    assert refusals(tmp_path, HEAD + "customers: customers.csv\n") == [
        "penstock.yaml:5: customers: 'customers.csv' cannot be read: No such file or directory"
    ]


@pytest.mark.parametrize("value", ["customers.txt", "5", "{id: a}"])
def test_customers_that_are_neither_list_nor_csv_are_refused(tmp_path: Path, value: str) -> None:
    assert refusals(tmp_path, HEAD + f"customers: {value}\n") == [
        "penstock.yaml:5: customers: must be a list of customers, or the path of a .csv file"
    ]


# Customers


@pytest.mark.parametrize(
    ("customer", "where", "complaint"),
    [
        ("{id: 1000000001}", ".id", 'must be text: put the id in quotes, for example id: "1000000001"'),
        (
            "{id: a/b}",
            ".id",
            "customer id 'a/b' is not valid: use letters, digits, '.', '_' or '-', at most 63 of them",
        ),
        ("{name: x}", "", "'id' is missing"),
        ("a", "", "must be a map"),
        (
            "{id: a, currency: EUR}",
            ".currency",
            "unknown key 'currency' (known: id, name, time_zone, active_from, active_to)",
        ),
        (
            "{id: a, timezone: UTC}",
            ".timezone",
            "unknown key 'timezone' (known: id, name, time_zone, active_from, active_to); did you mean 'time_zone'?",
        ),
        (
            "{id: a, time_zone: Europe/Berlino}",
            ".time_zone",
            "'Europe/Berlino' is not a known time zone; did you mean 'Europe/Berlin'?",
        ),
        (
            "{id: a, time_zone: Europe}",
            ".time_zone",
            "'Europe' is not a known time zone; did you mean 'Europe/Rome'?",
        ),
        (
            "{id: a, time_zone: ../x}",
            ".time_zone",
            "'../x' is not a known time zone: write a name such as Europe/Berlin",
        ),
        (
            "{id: a, active_from: 2024-02-01, active_to: 2024-01-31}",
            ".active_to",
            "'2024-01-31' is before active_from '2024-02-01'",
        ),
        (
            "{id: a, active_from: 2024-02-01 10:00:00}",
            ".active_from",
            "must be a date without a time: write YYYY-MM-DD",
        ),
        (
            "{id: a, active_from: 20240201}",
            ".active_from",
            "date '20240201' is not a date: write YYYY-MM-DD, for example 2024-06-01",
        ),
        ("{id: a, name: 5}", ".name", "must be text; put a number, a date or a word like yes in quotes"),
    ],
)
def test_a_customer_that_cannot_be_meant_is_refused(tmp_path: Path, customer: str, where: str, complaint: str) -> None:
    assert refused_customer(tmp_path, customer) == [f"penstock.yaml:6: customers[0]{where}: {complaint}"]


def test_a_customer_may_be_active_for_one_day(tmp_path: Path) -> None:
    text = HEAD + "customers:\n  - {id: a, active_from: 2024-02-01, active_to: '2024-02-01'}\n"
    assert load(tmp_path, text).customer("a") == Customer(
        id="a", active_from=date(2024, 2, 1), active_to=date(2024, 2, 1)
    )


def test_a_repeated_customer_is_refused_with_both_lines(tmp_path: Path) -> None:
    assert refusals(tmp_path, HEAD + "customers:\n  - {id: a}\n  - {id: b}\n  - id: a\n") == [
        "penstock.yaml:8: customers[2].id: customer 'a' is already defined at penstock.yaml:6"
    ]


def google_ads(*query: str) -> str:
    """Customers on lines 6 and 7, one of them with hyphens."""
    lines = "".join(f"    {line}\n" for line in query)
    text = "customers:\n  - {id: '1234567890'}\n  - {id: 123-456-7890}\nsources:\n  ads: {kind: google_ads}\n"
    other = QUERY.removeprefix("sources:\n")
    return HEAD + text + other + lines


def test_hyphens_in_ids_of_google_ads_customers_do_not_matter(tmp_path: Path) -> None:
    asked = google_ads().replace("source: demo", "source: ads")
    assert refusals(tmp_path, asked) == [
        "penstock.yaml:7: customers[1].id: customer '1234567890' is already defined at penstock.yaml:6"
    ]
    one = google_ads("customers: [123-456-7890]").replace("source: demo", "source: ads")
    settings = load(tmp_path, one.replace("  - {id: '1234567890'}\n", ""))
    assert [customer.id for customer in settings.customers] == ["1234567890"]
    assert settings.queries["daily"].customers == ("1234567890",)


def test_google_ads_customers_are_digits(tmp_path: Path) -> None:
    asked = google_ads().replace("source: demo", "source: ads").replace("123-456-7890", "acme")
    assert refusals(tmp_path, asked) == [
        "penstock.yaml:7: customers[1].id: 'acme' must be digits, because daily fetches it from Google Ads"
    ]


def test_other_ids_are_fine_while_no_query_asks_google_ads_for_them(tmp_path: Path) -> None:
    ids = ["1234567890", "123-456-7890"]
    assert [customer.id for customer in load(tmp_path, google_ads()).customers] == ids
    narrowed = google_ads("customers: ['1234567890']").replace("source: demo", "source: ads")
    assert [customer.id for customer in load(tmp_path, narrowed).customers] == ids


# Top level, sources, Spark


@pytest.mark.parametrize("key", ["tenant", "workspace", "state", "lake"])
def test_a_key_that_every_workspace_needs_is_missed(tmp_path: Path, key: str) -> None:
    text = "".join(f"{line}\n" for line in HEAD.splitlines() if not line.startswith(key))
    assert refusals(tmp_path, text) == [f"penstock.yaml:1: {key!r} is missing"]


@pytest.mark.parametrize("key", ["tenant", "workspace"])
def test_tenant_and_workspace_are_names(tmp_path: Path, key: str) -> None:
    text = HEAD.replace(f"{key}: ", f"{key}: No-")
    line = {"tenant": 1, "workspace": 2}[key]
    value = {"tenant": "No-acme", "workspace": "No-ads"}[key]
    assert refusals(tmp_path, text) == [
        f"penstock.yaml:{line}: {key}: name '{value}' is not valid: "
        "use lower-case letters, digits and underscores, starting with a letter, at most 63 of them"
    ]


def test_an_unknown_key_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    known = (
        "tenant, workspace, state, lake, spark, raw, control, ledger, lineage, console, alerts, customers, sources, "
        "queries, models, schema, include"
    )
    assert refusals(tmp_path, HEAD + "querys: {}\nroot: /\n") == [
        f"penstock.yaml:5: querys: unknown key 'querys' (known: {known}); did you mean 'queries'?",
        f"penstock.yaml:6: root: unknown key 'root' (known: {known})",
    ]


def test_spark_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    assert refusals(tmp_path, HEAD + "spark:\n  mastr: x\n  config: {a: [1]}\n") == [
        "penstock.yaml:6: spark.mastr: unknown key 'mastr' (known: master, remote, python, environment,"
        " executor_timeout, driver_partitions, config); did you mean 'master'?",
        "penstock.yaml:7: spark.config.a: must be text; put a number, a date or a word like yes in quotes",
    ]


def test_spark_has_a_master_or_a_remote(tmp_path: Path) -> None:
    assert refusals(tmp_path, HEAD + "spark: {master: yarn, remote: 'sc://host'}\n") == [
        "penstock.yaml:5: spark: master and remote exclude each other: remote names a Spark Connect server"
    ]


@pytest.mark.parametrize(
    "remote",
    [
        "sc://host:15002/;token=c2VjcmV0==",
        "sc://host:15002;token=c2VjcmV0",
        "sc://host:secret",
        "http://c2VjcmV0",
        "sc://",
    ],
)
def test_the_address_of_a_connect_server_is_checked_and_its_token_never_shown(tmp_path: Path, remote: str) -> None:
    [line] = refusals(tmp_path, HEAD + f"spark: {{remote: '{remote}'}}\n")
    assert line.startswith("penstock.yaml:5: spark.remote: ")
    assert "c2VjcmV0" not in line
    assert "secret" not in line


def test_an_address_of_a_connect_server_may_have_a_token(tmp_path: Path) -> None:
    for remote in ("sc://host", "sc://host:15002", "sc://host:15002/;token=c2VjcmV0%3D;use_ssl=true", "local[2]"):
        settings = load(tmp_path, HEAD + f"spark: {{remote: '{remote}'}}\n").spark
        assert settings.remote == remote
        assert "c2VjcmV0" not in f"{settings!r} {settings.where}"


def test_the_python_of_executors_is_for_a_cluster_and_named_once(tmp_path: Path) -> None:
    local = "python and environment are for a cluster: the workers of a local master run the driver's interpreter"
    for key in ("python", "environment"):
        assert refusals(tmp_path, HEAD + f"spark: {{{key}: /a}}\n") == [f"penstock.yaml:5: spark: {local}"]
    assert refusals(tmp_path, HEAD + "spark: {master: yarn, python: /a, environment: /b}\n") == [
        "penstock.yaml:5: spark: python and environment exclude each other: the environment has its own interpreter"
    ]


def test_a_packed_environment_is_found_from_the_workspace_file(tmp_path: Path) -> None:
    written = load(tmp_path, HEAD + "spark: {remote: 'sc://host', environment: packed/env.tar.gz}\n")
    assert written.spark.environment == str(tmp_path / "packed" / "env.tar.gz")
    elsewhere = load(tmp_path, HEAD + "spark: {master: yarn, environment: 's3://bucket/env.tar.gz'}\n")
    assert elsewhere.spark.environment == "s3://bucket/env.tar.gz"


@pytest.mark.parametrize(
    ("source", "where", "complaint"),
    [
        ("demo: {seed: 7}", "demo", "'kind' is missing"),
        ("demo: {kind: 7}", "demo.kind", "must be text; put a number, a date or a word like yes in quotes"),
        ("demo: {kind: ''}", "demo.kind", "must not be empty"),
        ("demo:", "demo", "must be a map"),
        (
            "models: {kind: demo}",
            "models",
            "'models' cannot name a source: its tables would be ambiguous with models.name",
        ),
        (
            "My-Ads: {kind: demo}",
            "My-Ads",
            "name 'My-Ads' is not valid: use lower-case letters, digits and underscores, starting with a letter,"
            " at most 63 of them",
        ),
    ],
)
def test_a_source_that_cannot_be_meant_is_refused(tmp_path: Path, source: str, where: str, complaint: str) -> None:
    assert refusals(tmp_path, HEAD + f"sources:\n  {source}\n") == [f"penstock.yaml:6: sources.{where}: {complaint}"]


# Queries


@pytest.mark.parametrize(
    ("line", "where", "complaint"),
    [
        ("chekcs: []", "chekcs", f"unknown key 'chekcs' (known: {QUERY_KEYS}); did you mean 'checks'?"),
        ("name: x", "name", f"unknown key 'name' (known: {QUERY_KEYS}); the name is 'daily'"),
        (
            "schema_version: V 1",
            "schema_version",
            "name 'V 1' is not valid: use lower-case letters, digits and underscores, starting with a letter,"
            " at most 63 of them",
        ),
        (
            "start_date: June",
            "start_date",
            "date 'June' is not a date: write YYYY-MM-DD, for example 2024-06-01",
        ),
        ("unknown_fields: rejct", "unknown_fields", "must be 'reject', 'ignore' or 'keep'; did you mean 'reject'?"),
        ("missing_fields: no", "missing_fields", "must be 'reject' or 'ignore'"),
        ("freshness: {max_lag: 36}", "freshness.max_lag", "36 is not a duration: write 30s, 5m, 2h or 30d"),
        ("freshness: {max_lag: 0h}", "freshness.max_lag", "'0h' is not a duration: write 30s, 5m, 2h or 30d"),
        (
            "freshness: {max_lag: 99999999999d}",
            "freshness.max_lag",
            "'99999999999d' is not a duration: write 30s, 5m, 2h or 30d",
        ),
        ("freshness: {}", "freshness", "must have max_lag, complete_by or both"),
        ("freshness: {time_zone: UTC}", "freshness", "time_zone belongs to a deadline: add complete_by"),
        ("freshness: {max_lag: 1h, require: 9}", "freshness", "require belongs to a deadline: add complete_by"),
        (
            "freshness: {complete_by: 10:30}",
            "freshness.complete_by",
            '630 is not a time of day: write it in quotes, from "00:00" to "23:59"',
        ),
        (
            'freshness: {complete_by: "24:00"}',
            "freshness.complete_by",
            '\'24:00\' is not a time of day: write it in quotes, from "00:00" to "23:59"',
        ),
        (
            'freshness: {complete_by: "09:00", time_zone: Europe/Berln}',
            "freshness.time_zone",
            "'Europe/Berln' is not a known time zone; did you mean 'Europe/Berlin'?",
        ),
        (
            'freshness: {complete_by: "09:00", require: 101%}',
            "freshness.require",
            "'101%' is not a rule: write all, any, a number, or a share such as 95%",
        ),
        (
            'freshness: {complete_by: "09:00", complete_after_days: 0}',
            "freshness.complete_after_days",
            "must be greater than or equal to 1",
        ),
        ("freshness: 36h", "freshness", "must be a map"),
        ("restate: {days: 0}", "restate.days", "must be greater than or equal to 1"),
        ("restate: {days: 1.5}", "restate.days", "must be a whole number"),
        ("restate: {days: '3'}", "restate.days", "must be a whole number"),
        ("retry: {max_attempts: true}", "retry.max_attempts", "must be a whole number"),
        ("retry: {backoff: []}", "retry.backoff", "must not be empty"),
        ("retry: {backoff: [5m, 1w]}", "retry.backoff[1]", "'1w' is not a duration: write 30s, 5m, 2h or 30d"),
        ("retry: {jitter: 1.5}", "retry.jitter", "must be less than or equal to 1"),
        ("retry: {jitter: a}", "retry.jitter", "must be a number"),
        (
            "retry: {attempts: 3}",
            "retry.attempts",
            "unknown key 'attempts' (known: max_attempts, backoff, jitter, max_age, errors);"
            " did you mean 'max_attempts'?",
        ),
        ("options: [a]", "options", "must be a map"),
        ("customers: []", "customers", "must not be empty"),
        ("customers: [nobody]", "customers[0]", "'nobody' is not a known customer (known: none)"),
        ("checks: {unique: [a]}", "checks", "must be a list"),
    ],
)
def test_a_query_that_cannot_be_meant_is_refused(tmp_path: Path, line: str, where: str, complaint: str) -> None:
    assert refused_query(tmp_path, line) == [f"penstock.yaml:16: queries.daily.{where}: {complaint}"]


def test_a_query_needs_a_known_source_and_fields(tmp_path: Path) -> None:
    text = HEAD + "sources:\n  demo: {kind: demo}\nqueries:\n  a: {source: dmo, fields: []}\n  b: {}\n  c: 5\n"
    assert refusals(tmp_path, text) == [
        "penstock.yaml:8: queries.a.fields: must not be empty",
        "penstock.yaml:8: queries.a.source: 'dmo' is not a known source (known: demo); did you mean 'demo'?",
        "penstock.yaml:9: queries.b: 'source' is missing",
        "penstock.yaml:9: queries.b: 'fields' is missing",
        "penstock.yaml:10: queries.c: must be a map",
    ]


def test_the_name_of_a_query_is_checked(tmp_path: Path) -> None:
    assert refusals(tmp_path, HEAD + QUERY.replace("  daily:", "  Daily:")) == [
        "penstock.yaml:8: queries.Daily: name 'Daily' is not valid: "
        "use lower-case letters, digits and underscores, starting with a letter, at most 63 of them"
    ]


def test_an_unknown_customer_of_a_query_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    text = HEAD + QUERY + "    customers:\n      - alpha\n      - betta\ncustomers: [{id: alpha}, {id: beta}]\n"
    assert refusals(tmp_path, text) == [
        "penstock.yaml:18: queries.daily.customers[1]: "
        "'betta' is not a known customer (known: alpha, beta); did you mean 'beta'?"
    ]


# Fields

TYPES = "long, double, string, boolean, date, timestamp, decimal(p,s), array<T>, struct<name: T, ...>"
RESERVED = "Penstock adds columns of its own: customer_id, logical_date, schema_version and names that start with _"


@pytest.mark.parametrize(
    ("field", "where", "complaint"),
    [
        ("{name: customer_id, type: long}", ".name", f"'customer_id' is reserved; {RESERVED}"),
        ("{name: logical_date, type: date}", ".name", f"'logical_date' is reserved; {RESERVED}"),
        ("{name: schema_version, type: long}", ".name", f"'schema_version' is reserved; {RESERVED}"),
        ("{name: _run_id, type: long}", ".name", f"'_run_id' is reserved; {RESERVED}"),
        (
            "{name: Clicks, type: long}",
            ".name",
            "name 'Clicks' is not valid: use lower-case letters, digits and underscores, starting with a letter,"
            " at most 63 of them",
        ),
        ("{name: yes, type: long}", ".name", "must be text; put a number, a date or a word like yes in quotes"),
        ("{name: a, type: strng}", ".type", f"'strng' is not a type (types: {TYPES}); did you mean 'string'?"),
        ("{name: a, type: int}", ".type", f"'int' is not a type (types: {TYPES})"),
        (
            "{name: a, type: 'decimal(39,2)'}",
            ".type",
            "'decimal(39,2)' is not possible: decimal(p,s) needs 1 <= p <= 38 and 0 <= s <= p",
        ),
        (
            "{name: a, type: 'decimal(0,0)'}",
            ".type",
            "'decimal(0,0)' is not possible: decimal(p,s) needs 1 <= p <= 38 and 0 <= s <= p",
        ),
        (
            "{name: a, type: 'decimal(4,5)'}",
            ".type",
            "'decimal(4,5)' is not possible: decimal(p,s) needs 1 <= p <= 38 and 0 <= s <= p",
        ),
        ("{name: a, type: long, required: 1}", ".required", "must be true or false"),
        ("{name: a}", "", "'type' is missing"),
        (
            "{name: a, type: long, typ: x}",
            ".typ",
            "unknown key 'typ' (known: name, type, required, default); did you mean 'type'?",
        ),
        ("clicks", "", "must be a map"),
    ],
)
def test_a_field_that_cannot_be_meant_is_refused(tmp_path: Path, field: str, where: str, complaint: str) -> None:
    assert refused_field(tmp_path, field) == [f"penstock.yaml:16: queries.daily.fields[5]{where}: {complaint}"]


def test_a_decimal_that_a_comma_cut_in_two_is_refused_with_the_way_out(tmp_path: Path) -> None:
    assert refused_field(tmp_path, "{name: a, type: decimal(10,2)}") == [
        "penstock.yaml:16: queries.daily.fields[5].type: "
        f"'decimal(10' is not a type (types: {TYPES}); inside {{ }} put it in quotes",
        "penstock.yaml:16: queries.daily.fields[5].2): unknown key '2)' (known: name, type, required, default)",
    ]


def test_a_field_listed_twice_is_refused_on_its_line(tmp_path: Path) -> None:
    assert refused_field(tmp_path, "{name: clicks, type: double}") == [
        "penstock.yaml:16: queries.daily.fields[5]: 'clicks' is listed twice"
    ]


# Checks


@pytest.mark.parametrize(
    ("check", "where", "complaint"),
    [
        (
            "unique: [clickz]",
            "",
            f"'clickz' is not a field of daily (fields: {FIELDS}); did you mean 'clicks'?",
        ),
        (
            "required: [clicks, nothing]",
            "",
            f"'nothing' is not a field of daily (fields: {FIELDS})",
        ),
        ("range: {field: cost, min: 0}", "", f"'cost' is not a field of daily (fields: {FIELDS})"),
        ("allowed: {field: cost, values: [1]}", "", f"'cost' is not a field of daily (fields: {FIELDS})"),
        ("unique: []", ".unique", "must not be empty"),
        ("unique: clicks", ".unique", "must be a list"),
        ("unique: [clicks, clicks]", ".unique[1]", "'clicks' is listed twice"),
        (
            "expression: '  '",
            ".expression",
            "must not be empty: write a Spark SQL predicate, for example clicks <= impressions",
        ),
        ("expression: 5", ".expression", "must be text; put a number, a date or a word like yes in quotes"),
        ("rows: {}", ".rows", "needs min, max or both"),
        ("rows: {min: -1}", ".rows.min", "must be greater than or equal to 0"),
        ("rows: {min: 2, max: 1}", ".rows", "max 1 is below min 2"),
        ("rows: 5", "", "rows takes a map of min, max"),
        ("rows: {minimum: 5}", ".rows.minimum", "unknown key 'minimum' (known: min, max); did you mean 'min'?"),
        ("rows: {min: 1, name: x}", "", "'name' does not belong inside rows: put name and severity next to it"),
        ("rows: {min: 1, kind: unique}", "", "'kind' does not belong inside rows: put name and severity next to it"),
        ("shrink: {max_drop: 0}", ".shrink.max_drop", "must be greater than 0"),
        ("shrink: {max_drop: 1.1}", ".shrink.max_drop", "must be less than or equal to 1"),
        ("shrink: {max_drop: .nan}", ".shrink.max_drop", "must be less than or equal to 1"),
        ("shrink: {}", ".shrink", "'max_drop' is missing"),
        ("range: {field: clicks}", ".range", "needs min, max or both"),
        ("range: {field: clicks, min: 1, max: 0.5}", ".range", "max 0.5 is below min 1"),
        (
            "range: {field: day, min: 2024-06-02, max: '2024-06-01'}",
            ".range",
            "max '2024-06-01' is below min '2024-06-02'",
        ),
        (
            "range: {field: day, min: 2024-06-02, max: 5}",
            ".range",
            "min and max must both be numbers or both be dates",
        ),
        (
            "range: {field: clicks, min: true}",
            ".range.min",
            "True is no bound: write a number, or a date as YYYY-MM-DD",
        ),
        (
            "range: {field: clicks, min: few}",
            ".range.min",
            "'few' is no bound: write a number, or a date as YYYY-MM-DD",
        ),
        ("range: {field: clicks, max: .inf}", ".range.max", "must be text, a number, true, false or a date"),
        (
            "range: {field: status, min: 0}",
            "",
            "range does not suit status, which is a string; use allowed or expression",
        ),
        (
            "range: {field: paid, min: 0}",
            "",
            "range does not suit paid, which is a boolean; use allowed or expression",
        ),
        (
            "range: {field: clicks, min: 2024-06-01}",
            "",
            "'2024-06-01' cannot be a bound of clicks, which is a long",
        ),
        ("range: {field: day, min: 5}", "", "5 cannot be a bound of day, which is a date"),
        ("allowed: {field: status, values: []}", ".allowed.values", "must not be empty"),
        ("allowed: {field: status, values: [A, A]}", ".allowed.values[1]", "'A' is listed twice"),
        (
            "allowed: {field: status, values: [A, null]}",
            ".allowed.values[1]",
            "must be text, a number, true, false or a date",
        ),
        ("allowed: {field: status, values: [ON]}", "", "True cannot be a value of status, which is a string"),
        ("allowed: {field: clicks, values: ['1']}", "", "'1' cannot be a value of clicks, which is a long"),
        ("allowed: {field: clicks, values: [1.5]}", "", "1.5 cannot be a value of clicks, which is a long"),
        ("allowed: {field: paid, values: [1]}", "", "1 cannot be a value of paid, which is a boolean"),
        ("allowed: {field: day, values: [soon]}", "", "'soon' cannot be a value of day, which is a date"),
        ("uniqe: [clicks]", "", f"'uniqe' is not a check (checks: {CHECKS}); did you mean 'unique'?"),
        ("{unique: [clicks], rows: {min: 1}}", "", f"a check has exactly one of the keys {CHECKS}"),
        ("name: x", "", f"a check has exactly one of the keys {CHECKS}"),
        (
            "clicks > 0",
            "",
            f"a check is a map with one of the keys {CHECKS}, for example {{unique: [campaign_id]}}",
        ),
        ("{unique: [clicks], name: ''}", ".name", "must not be empty"),
        (
            "{unique: [clicks], severity: warning}",
            ".severity",
            "must be 'reject' or 'warn'; did you mean 'warn'?",
        ),
        ("not_null_share: {field: clicks, min: 0}", ".not_null_share.min", "must be greater than 0"),
        ("not_null_share: {field: clicks}", ".not_null_share", "'min' is missing"),
        (
            "freshness: {field: day, max_lag: 2h}",
            "",
            "freshness does not suit day, which is a date; it needs a timestamp",
        ),
        (
            "freshness: {field: day, max_lag: soon}",
            ".freshness.max_lag",
            "'soon' is not a duration: write 30s, 5m, 2h or 30d",
        ),
        (
            "compare: {field: status, function: sum, max_change: 0.5}",
            "",
            "compare does not suit status, which is a string; sum needs numbers",
        ),
        (
            "compare: {function: avg, max_change: 0.5}",
            ".compare",
            "avg needs a field; only count can do without one, it counts rows then",
        ),
        ("compare: {function: count, max_change: 0}", ".compare.max_change", "must be greater than 0"),
        (
            "references: {field: clicks, fields: [clicks], to: demo.daily}",
            ".references",
            "field and fields exclude each other",
        ),
        (
            "references: {fields: [clicks, status], to: demo.daily, to_field: clicks}",
            ".references",
            "2 fields cannot be found in 1 of demo.daily",
        ),
        ("references: {field: clicks}", ".references", "'to' is missing"),
    ],
)
def test_a_check_that_cannot_hold_is_refused(tmp_path: Path, check: str, where: str, complaint: str) -> None:
    assert refused_check(tmp_path, check) == [f"penstock.yaml:17: queries.daily.checks[0]{where}: {complaint}"]


def test_checks_on_fields_are_refused_even_when_a_field_is_wrong_too(tmp_path: Path) -> None:
    assert refused_query(tmp_path, "  - {name: cost, type: money}", "checks:", "  - unique: [clickz]") == [
        f"penstock.yaml:16: queries.daily.fields[5].type: 'money' is not a type (types: {TYPES})",
        "penstock.yaml:18: queries.daily.checks[0]: "
        f"'clickz' is not a field of daily (fields: {FIELDS}, cost); did you mean 'clicks'?",
    ]


OTHER = "  other: {source: demo, fields: [{name: clicks, type: double}, {name: word, type: string}]}\n"


@pytest.mark.parametrize(
    ("check", "where", "complaint"),
    [
        (
            "references: {field: clicks, to: demo.othr}",
            ".references.to",
            "'demo.othr' is not a known table (known: demo.daily, demo.other); did you mean 'demo.other'?",
        ),
        (
            "references: {field: status, to: demo.other, to_field: wrd}",
            ".references",
            "'wrd' is not a field of demo.other (fields: clicks, word); did you mean 'word'?",
        ),
        (
            "references: {field: clicks, to: demo.other}",
            ".references",
            "clicks is a long, clicks of demo.other is a double: they are never equal",
        ),
    ],
)
def test_a_reference_that_leads_nowhere_is_refused(tmp_path: Path, check: str, where: str, complaint: str) -> None:
    text = HEAD + QUERY + f"    checks:\n      - {check}\n" + OTHER
    assert refusals(tmp_path, text) == [f"penstock.yaml:17: queries.daily.checks[0]{where}: {complaint}"]


def test_tables_that_refer_to_each_other_are_refused(tmp_path: Path) -> None:
    mine = "    checks:\n      - references: {field: status, to: demo.other, to_field: word}\n"
    back = "    checks: [{references: {field: word, to: demo.daily, to_field: status}}]\n"
    other = "  other:\n    source: demo\n    fields: [{name: word, type: string}]\n"
    assert refusals(tmp_path, HEAD + QUERY + mine + other + back) == [
        "penstock.yaml:16: queries.daily.checks: tables refer to each other in a circle:"
        " demo.daily -> demo.other -> demo.daily"
    ]
    assert load(tmp_path, HEAD + QUERY + mine + other).queries["daily"].checks[0].kind == "references"
    itself = "    checks:\n      - references: {field: status, to: demo.daily}\n"
    assert "in a circle: demo.daily -> demo.daily" in refusals(tmp_path, HEAD + QUERY + itself)[0]


@pytest.mark.parametrize(
    "check",
    [
        "unique: [tags]",
        "range: {field: tags, min: 0}",
        "allowed: {field: tags, values: [a]}",
        "references: {field: tags, to: demo.daily}",
        "compare: {field: tags, function: count, max_change: 1}",
    ],
)
def test_what_is_inside_nested_fields_is_for_expressions(tmp_path: Path, check: str) -> None:
    kind = check.partition(":")[0]
    words = f"{kind} does not suit tags, which is a array<string>; use expression"
    assert refused_query(tmp_path, "  - {name: tags, type: array<string>}", "checks:", f"  - {check}") == [
        f"penstock.yaml:18: queries.daily.checks[0]: {words}"
    ]


def test_nested_types_and_defaults_are_read(tmp_path: Path) -> None:
    more = """\
      - {name: tags, type: array<string>, default: [a]}
      - name: geo
        type: "struct<zone:long,since: date>"
        default: {zone: 1, since: 2024-06-01}
      - {name: seen, type: timestamp, default: 2024-06-01T10:00:00Z}
    checks:
      - required: [geo]
      - not_null_share: {field: tags, min: 0.5}
      - expression: size(tags) > 0
"""
    *_, tags, geo, seen = load(tmp_path, HEAD + QUERY + more).queries["daily"].fields
    assert (tags.default, geo.type) == (["a"], "struct<zone: long, since: date>")
    assert geo.default == {"zone": 1, "since": "2024-06-01"}
    assert seen.default == "2024-06-01T10:00:00+00:00"
    assert refused_field(tmp_path, "{name: a, type: long, default: x}") == [
        "penstock.yaml:16: queries.daily.fields[5].default: 'x' is not a value of the type long"
    ]
    assert refused_field(tmp_path, "{name: a, type: 'array<long'}") == [
        f"penstock.yaml:16: queries.daily.fields[5].type: 'array<long' is not a type (types: {TYPES});"
        " inside { } put it in quotes"
    ]


@pytest.mark.parametrize(
    ("mapping", "check"),
    [
        ({"required": ["a", "b"]}, Required(fields=("a", "b"))),
        ({"unique": ["a"], "name": "one row per a"}, Unique(fields=("a",), name="one row per a")),
        ({"expression": "a > 0"}, Expression(expression="a > 0")),
        ({"rows": {"min": 1}}, Rows(min=1)),
        ({"rows": {"min": 0, "max": 9}}, Rows(min=0, max=9)),
        ({"shrink": {"max_drop": 0.5}}, Shrink(max_drop=0.5)),
        ({"range": {"field": "a", "min": 0, "max": 0.5}}, Range(field="a", min=0, max=0.5)),
        ({"range": {"field": "a", "max": "2024-06-01"}}, Range(field="a", max="2024-06-01")),
        ({"allowed": {"field": "a", "values": ["x", 1, 1.5, True]}}, Allowed(field="a", values=("x", 1, 1.5, True))),
    ],
)
def test_a_check_survives_its_way_through_json(mapping: dict[str, Any], check: Any) -> None:
    assert check_from_mapping(mapping) == check
    assert json.loads(json.dumps(check_to_mapping(check))) == mapping
    assert check_from_mapping(json.loads(json.dumps(check_to_mapping(check)))) == check


def test_dates_in_a_check_become_text(tmp_path: Path) -> None:
    text = HEAD + QUERY + "    checks:\n      - range: {field: day, min: 2024-06-01}\n"
    text += "      - allowed: {field: day, values: [2024-06-01, '2024-06-02']}\n"
    assert load(tmp_path, text).query("daily").checks == (
        Range(field="day", min="2024-06-01"),
        Allowed(field="day", values=("2024-06-01", "2024-06-02")),
    )


def test_a_mapping_that_is_no_check_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"^'uniq' is not a check .* did you mean 'unique'\?$"):
        check_from_mapping({"uniq": ["a"]})
    with pytest.raises(ConfigError, match=r"^unknown key 'mn' \(known: min, max\); did you mean 'min'\?$"):
        check_from_mapping({"rows": {"mn": 1}})


# Models


def refused_model(folder: Path, *models: str) -> list[str]:
    """The first model is on line 17."""
    lines = "".join(f"  {model}\n" for model in models)
    return refusals(folder, HEAD + QUERY + "models:\n" + lines, files={"m.sql": "SELECT 1"})


@pytest.mark.parametrize(
    ("model", "where", "complaint"),
    [
        (
            "a: {depends_on: [demo.daly]}",
            ".depends_on[0]",
            "'demo.daly' is not a known table (known: demo.daily, models.a); did you mean 'demo.daily'?",
        ),
        (
            "a: {depends_on: [models.b]}",
            ".depends_on[0]",
            "'models.b' is not a known table (known: demo.daily, models.a); did you mean 'models.a'?",
        ),
        (
            "a: {depends_on: [other.daily]}",
            ".depends_on[0]",
            "'other.daily' is not a known table (known: demo.daily, models.a); did you mean 'demo.daily'?",
        ),
        ("a: {depends_on: []}", ".depends_on", "must not be empty"),
        (
            "a: {depends_on: [demo.daily], sql: m.sql, python: m.sql}",
            "",
            "sql and python exclude each other: a model has one definition",
        ),
        ("a: {depends_on: [demo.daily], needs: a week}", ".needs", "'a week' is not a number of days: write 7 days"),
        (
            "a: {depends_on: [demo.daily], require: most}",
            ".require",
            "'most' is not a rule: write all, any, a number, or a share such as 95%",
        ),
        ("a: {sql: m.sql}", "", "'depends_on' is missing"),
        ("a: {depends_on: [demo.daily, demo.daily]}", ".depends_on[1]", "'demo.daily' is listed twice"),
        ("a: {depends_on: [demo.daily], per: month}", ".per", "must be 'date' or 'customer,date'"),
        ("a: {depends_on: [demo.daily], checks: [{rows: {}}]}", ".checks[0].rows", "needs min, max or both"),
        (
            "a: {depends_on: [demo.daily], sq: m.sql}",
            ".sq",
            f"unknown key 'sq' (known: {MODEL_KEYS}); did you mean 'sql'?",
        ),
        (
            "a: {depends_on: [demo.daily], name: b}",
            ".name",
            f"unknown key 'name' (known: {MODEL_KEYS}); the name is 'a'",
        ),
    ],
)
def test_a_model_that_cannot_be_made_is_refused(tmp_path: Path, model: str, where: str, complaint: str) -> None:
    assert refused_model(tmp_path, model) == [f"penstock.yaml:17: models.a{where}: {complaint}"]


def test_the_name_of_a_model_is_checked(tmp_path: Path) -> None:
    assert refused_model(tmp_path, "A: {depends_on: [demo.daily]}") == [
        "penstock.yaml:17: models.A: name 'A' is not valid: "
        "use lower-case letters, digits and underscores, starting with a letter, at most 63 of them"
    ]


def test_models_that_depend_on_each_other_in_a_circle_are_refused(tmp_path: Path) -> None:
    lines = refused_model(
        tmp_path,
        "c: {depends_on: [models.a]}",
        "a: {depends_on: [demo.daily, models.b]}",
        "b: {depends_on: [models.c]}",
        "self: {depends_on: [models.self]}",
        "fine: {depends_on: [models.c]}",
    )
    circle = "models depend on each other in a circle"
    assert lines == [
        f"penstock.yaml:18: models.a.depends_on: {circle}: models.a -> models.b -> models.c -> models.a",
        f"penstock.yaml:20: models.self.depends_on: {circle}: models.self -> models.self",
    ]


def test_names_and_customers_of_models_are_distinct_from_others(tmp_path: Path) -> None:
    text = HEAD + QUERY + 'customers: [{id: "all"}]\nmodels:\n  daily: {depends_on: [demo.daily], sql: m.sql}\n'
    assert refusals(tmp_path, text, files={"m.sql": "SELECT 1"}) == [
        "penstock.yaml:16: customers[0].id: 'all' is the customer id of models over all customers: choose another id",
        "penstock.yaml:18: models.daily: 'daily' is the name of a query already, at penstock.yaml:8",
    ]


def test_a_model_needs_customers_if_it_is_made_for_each_and_its_file_only_when_it_is_made(tmp_path: Path) -> None:
    models = (
        "other: {depends_on: [demo.daily]}",
        "b: {depends_on: [models.a], per: [customer, date]}",
        "a: {depends_on: [demo.daily]}",
    )
    assert refused_model(tmp_path, *models) == [
        "penstock.yaml:18: models.b.per: none of the tables that it depends on has customers: write per: date",
    ]


def test_windows_and_rules_of_models_are_read(tmp_path: Path) -> None:
    text = HEAD + QUERY + "models:\n  a: {depends_on: [demo.daily], needs: 7 days, require: 95%, refresh: false}\n"
    model = load(tmp_path, text).models["a"]
    assert (model.needs, model.require, model.refresh, model.definition) == (7, "95%", False, "models/a.sql")


def test_checks_of_a_model_may_name_any_field(tmp_path: Path) -> None:
    text = HEAD + QUERY + "models:\n  a: {depends_on: [demo.daily], checks: [{range: {field: spend, min: 0}}]}\n"
    assert load(tmp_path, text).models["a"].checks == (Range(field="spend", min=0),)


# All at once, and looking things up


def test_every_problem_is_reported_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = """\
tenant: Acme
workspace: ads
state: oracle://x
lake: lake
customers:
  - {id: 5}
  - {id: a, time_zone: Mars/Base}
sources:
  demo: {}
queries:
  daily:
    source: nowhere
    fields:
      - {name: a, type: long}
    checks:
      - unique: [b]
      - rows: {min: x}
models:
  m: {depends_on: [demo.daily], sql: gone.sql}
"""
    starts = [line.split(": ")[0] + " " + line.split(": ")[1] for line in refusals(tmp_path, text)]
    assert starts == [
        "penstock.yaml:1 tenant",
        "penstock.yaml:3 state",
        "penstock.yaml:6 customers[0].id",
        "penstock.yaml:7 customers[1].time_zone",
        "penstock.yaml:9 sources.demo",
        "penstock.yaml:12 queries.daily.source",
        "penstock.yaml:16 queries.daily.checks[0]",
        "penstock.yaml:17 queries.daily.checks[1].rows.min",
        "penstock.yaml:19 models.m.depends_on[0]",
    ]


def test_what_was_asked_for_is_found_by_its_name(tmp_path: Path) -> None:
    settings = load(tmp_path, HEAD + QUERY + "customers: [{id: a}]\n")
    assert settings.customer("a") == Customer(id="a")
    assert settings.query("daily") is settings.queries["daily"]
    assert settings.queries_of("demo") == (settings.queries["daily"],)


def test_what_is_not_there_is_refused_with_what_is(tmp_path: Path) -> None:
    customers = ", ".join(f"{{id: c{number}}}" for number in range(30))
    settings = load(tmp_path, HEAD + QUERY + f"customers: [{customers}]\n")
    known = ", ".join(f"c{number}" for number in range(20)) + " and 10 more"
    with pytest.raises(UsageError) as caught:
        settings.customer("x")
    assert str(caught.value) == f"'x' is not a known customer (known: {known})"
    with pytest.raises(UsageError) as caught:
        settings.query("daly")
    assert str(caught.value) == "'daly' is not a known query (known: daily); did you mean 'daily'?"
    with pytest.raises(UsageError) as caught:
        settings.queries_of("x")
    assert str(caught.value) == "'x' is not a known source (known: demo)"


def test_settings_cannot_be_changed(tmp_path: Path) -> None:
    settings = load(tmp_path, HEAD + QUERY)
    with pytest.raises(pydantic.ValidationError):
        settings.tenant = "other"


def test_the_workspace_is_the_nearest_folder_upwards(tmp_path: Path) -> None:
    load(tmp_path, HEAD)
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert find_workspace(inner) == tmp_path
    load(tmp_path / "a", HEAD)
    assert find_workspace(inner) == tmp_path / "a"


def test_without_a_workspace_the_way_to_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        find_workspace(tmp_path)
    assert str(caught.value) == (
        f"there is no penstock.yaml in {tmp_path} or any folder above it: run `penstock init` to create one"
    )


def test_settings_import_no_engine() -> None:
    program = (
        "import sys, penstock.config.settings; "
        "print([m for m in ('pyspark', 'pyarrow', 'sqlalchemy', 'deltalake', 'pandas') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
