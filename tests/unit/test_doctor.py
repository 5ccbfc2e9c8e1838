"""`penstock doctor` finds problems that would fail a run, and names the fix; without Spark."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from penstock.app import load_workspace
from penstock.cli import health_checks
from penstock.cli.main import app
from penstock.errors import SourceUnavailable
from penstock.source.connectivity import connect, within
from support.servers import free_port
from support.workspaces import write_workspace

FIELDS = [{"name": "campaign_id", "type": "long"}, {"name": "clicks", "type": "long"}]


def findings(folder: Path) -> dict[str, dict[str, Any]]:
    done = CliRunner().invoke(app, ["doctor", "--json", "--workspace", str(folder)])
    items = json.loads(done.stdout)["items"]
    assert done.exit_code == (0 if all(item["ok"] for item in items) else 1)
    return {item["check"]: item for item in items}


def workspace(folder: Path, sources: dict[str, Any], options: dict[str, Any], **changes: Any) -> Path:
    """One query for each source, with these options."""
    queries = {
        f"{name}_daily": {
            "source": name, "schema_version": "v1", "start_date": "2024-06-09", "fields": FIELDS,
            "options": options.get(name, {}), **changes,
        }
        for name in sources
    }  # fmt: skip
    write_workspace(folder, queries=queries)
    path = folder / "penstock.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "sources": sources}, sort_keys=False))
    load_workspace(folder).maintenance.migrate()
    return folder


def test_a_sound_workspace_has_no_findings(tmp_path: Path) -> None:
    load_workspace(write_workspace(tmp_path)).maintenance.migrate()
    found = findings(tmp_path)
    assert [name for name, item in found.items() if not item["ok"]] == []
    assert "not applicable" in found["roles"]["detail"]


def test_a_missing_folder_is_named_with_what_to_do(tmp_path: Path) -> None:
    drop = tmp_path / "drop"
    folder = workspace(
        tmp_path / "w", {"drop": {"kind": "files", "folder": str(drop), "path": "{customer_id}/{date}.jsonl"}}, {}
    )
    found = findings(folder)["places"]
    assert (found["ok"], f"there is no folder {drop}: create it" in found["detail"]) == (False, True)
    drop.mkdir()
    assert findings(folder)["places"]["ok"]


def test_an_address_that_nobody_answers_is_found_within_seconds(tmp_path: Path) -> None:
    port = free_port()
    folder = workspace(
        tmp_path / "w", {"web": {"kind": "http", "url": f"http://127.0.0.1:{port}/x", "params": {"day": "{date}"}}}, {}
    )
    began = time.monotonic()
    found = findings(folder)["places"]
    assert time.monotonic() - began < 60
    assert (found["ok"], f"127.0.0.1:{port} does not respond" in found["detail"]) == (False, True)
    with socket.create_server(("127.0.0.1", port)):
        assert findings(folder)["places"]["ok"]


def test_a_database_that_cannot_be_reached_is_found(tmp_path: Path) -> None:
    statement = "SELECT campaign_id, clicks, logical_date FROM t WHERE logical_date IN :dates"
    port = free_port()
    sources = {
        "old": {"kind": "sql", "url": f"sqlite:///{tmp_path}/absent.db"},
        "far": {"kind": "sql", "url": f"postgresql+psycopg://kim:hush@127.0.0.1:{port}/x"},
    }
    folder = workspace(tmp_path / "w", sources, {name: {"sql": statement} for name in sources})
    found = findings(folder)["places"]
    assert not found["ok"]
    assert f"sources.old: there is no SQLite file {tmp_path}/absent.db" in found["detail"]
    assert "sources.far: the postgresql database 127.0.0.1" in found["detail"]
    assert "check `url`" in found["detail"]
    assert "hush" not in found["detail"]


def test_every_bad_kind_and_option_is_named_at_once(tmp_path: Path) -> None:
    sources = {
        "one": {"kind": "nonsense"},
        "two": {"kind": "files", "folder": "/tmp", "path": "{date}.jsonl", "foo": 1},
    }
    found = findings(workspace(tmp_path / "w", sources, {}))
    assert not found["sources"]["ok"]
    assert "there is no source of kind 'nonsense'" in found["sources"]["detail"]
    assert "sources.two" in found["sources"]["detail"]
    assert "foo" in found["sources"]["detail"]


def test_a_source_that_could_not_be_tried_is_named(tmp_path: Path) -> None:
    """Its line neither claims that it can be reached nor that it reads nothing."""
    sources = {
        "drop": {"kind": "files", "folder": str(tmp_path / "absent")},
        "far": {"kind": "files", "folder": "s3://", "path": "{date}.jsonl"},
        "what": {"kind": "nonsense"},
        "made": {"kind": "demo", "rows": "many"},  # reads no folder, broken or not
    }
    folder = workspace(tmp_path / "w", sources, {"drop": {"path": "{nope}/{date}.jsonl"}})
    found = findings(folder)
    assert found["places"]["detail"].split("; ") == [
        "queries.drop_daily: not tried, because its options are wrong: see `sources` above",
        "sources.far: not tried, because its settings are wrong: see `sources` above",
        "sources.what: not tried, because its settings are wrong: see `sources` above",
    ]
    assert not found["places"]["ok"]
    assert (
        "sources.far: folder: must be a folder, or s3://bucket/prefix without credentials" in found["sources"]["detail"]
    )
    assert "queries.far_daily" not in found["sources"]["detail"]


def test_the_sound_queries_of_a_source_are_tried_beside_a_broken_one(tmp_path: Path) -> None:
    folder = workspace(tmp_path / "w", {"drop": {"kind": "files", "folder": str(tmp_path / "absent")}}, {})
    path = folder / "penstock.yaml"
    body = yaml.safe_load(path.read_text())
    [query] = body["queries"].values()
    paths = {"sound": "{date}.jsonl", "worse": "{nope}/{date}.jsonl", "worst": "{date}.xls"}
    body["queries"] = {name: {**query, "options": {"path": text}} for name, text in paths.items()}
    path.write_text(yaml.safe_dump(body, sort_keys=False))
    found = findings(folder)
    assert f"sources.drop: there is no folder {tmp_path}/absent: create it" in found["places"]["detail"]
    for name in ("worse", "worst"):
        assert f"queries.{name}: not tried" in found["places"]["detail"]
        assert f"queries.{name}.options: " in found["sources"]["detail"]


def test_an_expression_that_names_no_field_is_found_without_spark(tmp_path: Path) -> None:
    query = {"checks": [{"expression": "clics <= impressions"}, {"expression": "exists(array(1), x -> x > clicks)"}]}
    load_workspace(write_workspace(tmp_path, query=query)).maintenance.migrate()
    found = findings(tmp_path)["checks"]
    assert not found["ok"]
    assert "'clics <= impressions' names clics, which is no field of the query (fields: campaign_id" in found["detail"]


def test_expressions_that_no_run_could_use_are_found_without_spark(tmp_path: Path) -> None:
    """Each with its query: the ones that cannot be parsed, and the ones that cannot be true or false."""
    checks = [{"expression": text} for text in ("clicks >", "clicks + 1", "clicks <= impressions", "campaign_name")]
    model: dict[str, Any] = {"code": "SELECT 1 AS n", "depends_on": ["demo.campaign_daily"], "per": "date"}
    model["checks"] = [{"expression": "n >"}]
    load_workspace(write_workspace(tmp_path, query={"checks": checks}, models={"daily": model})).maintenance.migrate()
    found = findings(tmp_path)["checks"]
    assert found["detail"].split("; ") == [
        "queries.campaign_daily: the expression 'clicks >' cannot be parsed: an operand is missing",
        "queries.campaign_daily: the expression 'clicks + 1' must be true or false, it is a number",
        "queries.campaign_daily: the expression 'campaign_name' must be true or false, it is string",
        "models.daily: the expression 'n >' cannot be parsed: an operand is missing",
    ]
    assert not found["ok"]


def test_every_bad_model_is_named_at_once(tmp_path: Path) -> None:
    models = {
        name: {"code": f"SELECT * FROM demo.{name}", "depends_on": ["demo.campaign_daily"], "per": "date"}
        for name in ("first", "second")
    }
    load_workspace(write_workspace(tmp_path, models=models)).maintenance.migrate()
    found = findings(tmp_path)["models"]
    assert not found["ok"]
    assert "demo.first" in found["detail"]
    assert "demo.second" in found["detail"]


def test_a_place_that_hangs_is_given_up() -> None:
    stop = threading.Event()

    def hang() -> None:
        stop.wait(60)

    began = time.monotonic()
    with pytest.raises(SourceUnavailable, match=r"the bucket does not respond within 0\.1 s"):
        within(0.1, hang, "the bucket")
    assert time.monotonic() - began < 30  # not the minute that it hangs
    stop.set()
    assert health_checks.SECONDS <= 5


def test_an_address_behind_a_proxy_is_left_to_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    connect("127.0.0.1", free_port(), 0.5, "http")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(SourceUnavailable):
        connect("127.0.0.1", free_port(), 0.5, "http")
