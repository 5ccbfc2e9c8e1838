"""dbt reads the file of `penstock dbt sources`: freshness from publications, and exactly the accepted rows."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from dbt_project import DbtProject

PENSTOCK = Path(os.environ["PENSTOCK_BIN"]) / "penstock"

_WORKSPACE = """\
tenant: acme
workspace: shop
state: sqlite:///state.db
lake: ./lake
spark: {master: "local[2]", config: {spark.sql.shuffle.partitions: "2"}}
customers:
  - {id: "1000000001", time_zone: UTC, active_from: 2024-06-01, active_to: 2024-06-02}
  - {id: "1000000002", time_zone: UTC, active_from: 2024-06-01, active_to: 2024-06-02}
sources:
  demo:
    kind: demo
    seed: 7
    rows: 5
    faults: [{fault: wrong_type, customer: "1000000002", query: campaign_daily, date: 2024-06-02}]
queries:
  campaign_daily: &query
    source: demo
    start_date: 2024-06-01
    fields:
      - {name: campaign_id, type: long, required: true}
      - {name: clicks, type: long}
      - {name: conversions, type: double}
      - {name: spend, type: "decimal(12,2)"}
      - {name: seen_at, type: timestamp}
      - {name: tags, type: "array<struct<name: string, weight: double>>"}
    unknown_fields: ignore
    freshness: {max_lag: 36h}
  clicks_daily: {<<: *query, freshness: {max_lag: 1m}}
  never_warned: {<<: *query, start_date: 2999-01-01, freshness: {max_lag: 1d}}
  never_late: {<<: *query, start_date: 2999-01-01, freshness: {complete_by: "09:00"}}
models:
  daily: {depends_on: [demo.campaign_daily], per: date}
"""
_MODEL = "SELECT logical_date, sum(clicks) AS clicks FROM demo.campaign_daily GROUP BY logical_date\n"


def penstock(folder: Path, *arguments: str, code: int = 0) -> str:
    done = subprocess.run([PENSTOCK, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def accepted(folder: Path, table: str) -> list[dict[str, Any]]:
    """The rows that Penstock vouches for, with their types."""
    file = folder / "accepted.parquet"
    penstock(folder, "read", table, "--format", "parquet", "--output", str(file))
    found = duckdb.sql(f"SELECT * FROM read_parquet('{file}')")
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


def unordered(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in rows)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace after one run, in which one partition was rejected."""
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "penstock.yaml").write_text(_WORKSPACE)
    (folder / "models").mkdir()
    (folder / "models" / "daily.sql").write_text(_MODEL)
    penstock(folder, "db", "migrate")
    penstock(folder, "run", code=1)
    return folder


@pytest.fixture(scope="module")
def project(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DbtProject]:
    """A project with the sources of the workspace, and a model for each table that has rows."""
    made = DbtProject(tmp_path_factory.mktemp("project") / "shop")
    lake = "{{ env_var('SHOP_LAKE') }}"
    penstock(workspace, "dbt", "sources", "--output", str(made.models / "sources.yml"), "--lake", lake)
    for source, table in (("demo", "campaign_daily"), ("demo", "clicks_daily"), ("models", "daily")):
        select = f"SELECT * FROM {{{{ source('{source}', '{table}') }}}}\n"
        (made.models / f"my_{table}.sql").write_text("{{ config(materialized='table') }}\n" + select)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOP_LAKE", str(workspace / "lake"))
        yield made


def test_dbt_parses_the_file_without_a_warning(project: DbtProject) -> None:
    project.dbt("--warn-error", "parse", "--no-partial-parse")
    manifest = json.loads((project.folder / "target" / "manifest.json").read_text())
    names = {source.removeprefix("source.shop.") for source in manifest["sources"]}
    assert names == {
        "demo.campaign_daily",
        "demo.clicks_daily",
        "demo.never_warned",
        "demo.never_late",
        "models.daily",
    }
    described = manifest["sources"]["source.shop.demo.campaign_daily"]
    assert described["meta"]["penstock"] == {"table": "demo.campaign_daily", "schema_version": "v1"}
    assert described["columns"]["campaign_id"]["data_type"] == "BIGINT"
    assert described["columns"]["campaign_id"]["description"] == "Never null."


def test_a_model_gets_exactly_the_accepted_rows(workspace: Path, project: DbtProject) -> None:
    project.dbt("run")
    rows = project.rows("my_campaign_daily")
    assert len(rows) == 15, "three of four partitions were accepted"
    assert unordered(rows) == unordered(accepted(workspace, "demo.campaign_daily"))
    assert len(project.rows("my_clicks_daily")) == 20
    derived = project.rows("my_daily")
    assert derived
    assert unordered(derived) == unordered(accepted(workspace, "models.daily"))


def test_the_columns_have_the_declared_types(project: DbtProject) -> None:
    written = yaml.safe_load((project.models / "sources.yml").read_text())
    [columns] = [
        table["columns"]
        for source in written["sources"]
        for table in source["tables"]
        if table["name"] == "campaign_daily"
    ]
    found = {name: kind.replace('"', "") for name, kind in project.types("my_campaign_daily").items()}
    assert found == {column["name"]: column["data_type"].replace('"', "") for column in columns}


def test_freshness_is_the_time_of_the_newest_publication(workspace: Path, project: DbtProject) -> None:
    found = project.freshness("demo.campaign_daily", TZ="America/New_York")["demo.campaign_daily"]
    assert found["status"] == "pass"
    loads = json.loads(penstock(workspace, "warehouse", "loads", "--query", "campaign_daily", "--json"))["items"]
    newest = max(datetime.fromisoformat(load["loaded_at"]) for load in loads)
    assert abs((datetime.fromisoformat(found["max_loaded_at"]) - newest).total_seconds()) < 5


def test_a_table_without_a_publication_is_stale(project: DbtProject) -> None:
    found = project.freshness("demo.never_warned", "demo.never_late", code=1)
    assert {name: result["status"] for name, result in found.items()} == {
        "demo.never_warned": "warn",
        "demo.never_late": "error",
    }


def test_a_table_warns_when_its_newest_publication_is_older_than_max_lag(project: DbtProject) -> None:
    result = project.freshness("demo.clicks_daily")["demo.clicks_daily"]
    time.sleep(max(0.0, 61 - result["max_loaded_at_time_ago_in_s"]))  # the shortest threshold of dbt is a minute
    result = project.freshness("demo.clicks_daily")["demo.clicks_daily"]
    assert result["max_loaded_at_time_ago_in_s"] > 60
    assert result["status"] == "warn"


def test_a_demoted_partition_disappears_with_the_next_publication(workspace: Path, project: DbtProject) -> None:
    """dbt is a plain Delta reader; docs/howto/other-readers.md describes its lag."""
    key = "demo/1000000001/campaign_daily/2024-06-01"
    penstock(workspace, "state", "demote", key, "--reason", "wrong currency")
    assert len(accepted(workspace, "demo.campaign_daily")) == 10
    penstock(workspace, "warehouse", "reconcile")
    project.dbt("run", "--select", "my_campaign_daily")
    rows = project.rows("my_campaign_daily")
    assert len(rows) == 10
    assert unordered(rows) == unordered(accepted(workspace, "demo.campaign_daily"))
