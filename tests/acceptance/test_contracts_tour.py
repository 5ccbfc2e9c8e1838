"""Contracts through the command line: tried on a file, proposed, exchanged; warnings, comparisons and references."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.cli import answer, penstock
from support.workspaces import CAMPAIGNS, customer_id, write_workspace

DAY = (datetime.now(UTC).date() - timedelta(days=1)).isoformat()

QUERY = """\
source: shop
fields:
  - {name: id, type: long, required: true}
  - {name: price, type: double}
  - {name: at, type: timestamp}
  - {name: tags, type: array<string>, default: []}
checks:
  - unique: [id]
  - {range: {field: price, min: 0}, severity: warn}
  - {expression: "size(tags) < 2", name: few tags}
  - freshness: {field: at, max_lag: 1d}
  - shrink: {max_drop: 0.5}
"""
GOOD: list[Any] = [{"id": 1, "price": 0.5, "at": "2024-06-01T10:00:00Z"}, {"id": 2, "price": -1, "tags": ["a"]}]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A contract and rows that satisfy it but for a warning."""
    (tmp_path / "orders.yaml").write_text(QUERY)
    payload = tmp_path / "rows.jsonl"
    payload.write_text("".join(json.dumps(row) + "\n" for row in GOOD))
    return tmp_path / "orders.yaml", payload


def tried(*arguments: str, code: int) -> dict[str, Any]:
    done = penstock("contract", "check", *arguments, "--json")
    assert done.returncode == code, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_a_contract_is_tried_on_a_file_without_a_workspace(files: tuple[Path, Path]) -> None:
    contract, payload = (str(file) for file in files)
    found = tried(contract, "--payload", payload, "--date", "2024-06-01", code=0)
    assert (found["query"], found["accepted"], found["rows"]) == ("orders", True, 2)
    [warning] = found["complaints"]
    assert (warning["check"], warning["severity"], warning["count"], warning["line"]) == ("range(price)", "warn", 1, 2)
    assert found["skipped"] == ["shrink: needs a trusted run to compare with"]

    files[1].write_text('{"id": 1, "tags": ["a", "b"]}\n{"id": 1, "at": "2024-05-01"}\n{"id": 2, "tags": "x"}')
    bad = tried(contract, "--payload", payload, "--date", "2024-06-01", code=1)
    assert [(c["check"], c["count"], c["line"]) for c in bad["complaints"]] == [("type", 1, 3)]
    files[1].write_text('{"id": 1, "tags": ["a", "b"]}\n{"id": 1, "at": "2024-05-01"}\n')
    worse = tried(contract, "--payload", payload, "--date", "2024-06-01", code=1)
    assert [c["check"] for c in worse["complaints"]] == ["few tags", "unique(id)", "freshness(at)"]
    assert worse["complaints"][0]["example"] == '{"id": 1, "tags": ["a", "b"]}'


def test_without_expressions_no_jvm_is_started(files: tuple[Path, Path]) -> None:
    contract, payload = (str(file) for file in files)
    without_java: dict[str, Any] = {"JAVA_HOME": "/none", "PATH": "/none"}
    done = penstock("contract", "check", contract, "--payload", payload, "--no-expressions", "--json", **without_java)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["complaints"] == []
    assert [words.partition(":")[0] for words in found["skipped"]] == [
        "freshness(at)",
        "shrink",
        "range(price)",
        "few tags",
    ]
    text = penstock("contract", "check", contract, "--payload", payload, "--no-expressions").stdout
    assert "not tried: few tags: needs Spark" in text
    assert "2 rows of orders would be accepted" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["contract", "check", "none.yaml", "--payload", "x"], "there is no file none.yaml"),
        (["contract", "check", "{contract}", "--payload", "none"], "there is no file none"),
        (["contract", "check", "{contract}", "--payload", "{payload}", "--query", "x"], "has no query 'x'"),
        (["contract", "infer"], "name either a partition or a --payload file"),
        (["contract", "import", "{payload}"], "rows.jsonl"),
    ],
)
def test_what_cannot_be_meant_is_refused(files: tuple[Path, Path], arguments: list[str], words: str) -> None:
    named = [word.format(contract=files[0], payload=files[1]) for word in arguments]
    done = penstock(*named)
    assert done.returncode in (1, 2)
    assert words in done.stderr


def test_a_proposal_from_a_file_is_a_contract_that_the_file_satisfies(files: tuple[Path, Path], tmp_path: Path) -> None:
    done = penstock("contract", "infer", "--payload", str(files[1]), "--name", "orders", "--source", "shop")
    assert done.returncode == 0, done.stderr
    proposed = tmp_path / "proposed.yaml"
    proposed.write_text(done.stdout)
    query = yaml.safe_load(done.stdout)["queries"]["orders"]
    assert [field["type"] for field in query["fields"]] == ["long", "double", "timestamp", "array<string>"]
    assert {"unique": ["id"]} in query["checks"]
    found = tried(str(proposed), "--payload", str(files[1]), "--no-expressions", code=0)
    assert (found["query"], found["complaints"]) == ("orders", [])


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tables that refer to each other; one partition of each."""
    networks = {
        "source": "demo",
        "start_date": DAY,
        "fields": [{"name": "network", "type": "string"}, {"name": "geo", "type": "struct<x: long, y: array<double>>"}],
    }
    campaigns = {
        **CAMPAIGNS,
        "start_date": DAY,
        "fields": [*CAMPAIGNS["fields"], {"name": "network", "type": "string"}],
        "checks": [
            {"unique": ["campaign_id"]},
            {"expression": "clicks > impressions", "severity": "warn", "name": "odd"},
            {"compare": {"field": "cost_micros", "function": "sum", "max_change": 0.5}},
            {"references": {"field": "network", "to": "demo.networks"}},
        ],
    }
    folder = write_workspace(
        tmp_path_factory.mktemp("contracts"),
        rows=40,
        faults=[{"fault": "fewer_rows", "query": "campaign_daily", "enabled": "${SHRUNK:-false}"}],
        queries={"networks": networks, "campaign_daily": campaigns},
    )
    assert penstock("db", "migrate", workspace=folder).returncode == 0
    first = answer("run", workspace=folder)
    assert (first["accepted"], first["rejected"], first["warnings"]) == (2, 0, 1)
    return folder


KEY = f"demo/{customer_id(1)}/campaign_daily/{DAY}"


def test_warnings_are_shown_and_stand_in_nobodys_way(shop: Path) -> None:
    [attempt] = answer("state", "history", KEY, workspace=shop)["items"]
    [warning] = attempt["complaints"]
    assert (attempt["outcome"], warning["check"], warning["severity"]) == ("SUCCEEDED", "odd", "warn")
    assert answer("why", KEY, workspace=shop)["warnings"] == [warning]
    assert "warning: not (clicks > impressions)" in penstock("why", KEY, workspace=shop).stdout
    assert "attempt 1, warning: not (clicks" in penstock("state", "history", KEY, workspace=shop).stdout
    assert answer("sql", "SELECT count(*) AS n FROM demo.campaign_daily", workspace=shop)["items"] == [{"n": 40}]


def test_a_run_that_differs_too_much_is_held_back_and_can_be_approved(shop: Path) -> None:
    held = answer("run", KEY, "--reprocess", workspace=shop, code=1, SHRUNK="true")
    assert "sum(cost_micros) is" in held["failures"][0]["message"]
    approval = ("state", "approve", KEY, "--run", held["run_id"], "--reason", "a quiet day")
    assert answer(*approval, workspace=shop)["changed"] == 1
    assert answer("run", workspace=shop)["loaded"] == 1
    assert answer("sql", "SELECT count(*) AS n FROM demo.campaign_daily", workspace=shop)["items"] == [{"n": 8}]


def test_nested_columns_are_written_as_csv(shop: Path, tmp_path: Path) -> None:
    target = tmp_path / "networks.csv"
    done = penstock("read", "demo.networks", "--format", "csv", "--output", str(target), workspace=shop)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(target.read_text().splitlines()))
    exact = answer("read", "demo.networks", workspace=shop)["items"]
    assert [json.loads(row["geo"]) for row in rows] == [row["geo"] for row in exact]
    assert '{"x":' in penstock("read", "demo.networks", workspace=shop).stdout


def test_a_contract_travels_to_odcs_and_back(shop: Path, tmp_path: Path) -> None:
    shown = answer("contract", "show", "campaign_daily", workspace=shop)
    exported = tmp_path / "campaigns.odcs.yaml"
    exported.write_text(penstock("contract", "export", "campaign_daily", "--format", "odcs", workspace=shop).stdout)
    back = penstock("contract", "import", str(exported))
    assert back.returncode == 0, back.stderr
    written = yaml.safe_load((shop / "penstock.yaml").read_text())["queries"]["campaign_daily"]
    imported = yaml.safe_load(back.stdout)["queries"]["campaign_daily"]
    assert imported["fields"] == written["fields"]
    assert len(imported["checks"]) == len(written["checks"])
    text = penstock("contract", "show", "campaign_daily", workspace=shop).stdout
    assert shown["fingerprint"] in text
    assert yaml.safe_load(text)["queries"]["campaign_daily"] == imported
    payload = tmp_path / "rows.jsonl"
    payload.write_text(penstock("raw", "read", KEY, workspace=shop).stdout)
    found = tried(str(exported), "--payload", str(payload), "--no-expressions", code=0)
    assert found["fingerprint"] == shown["fingerprint"]


def test_a_proposal_from_a_raw_run_can_be_included(shop: Path, tmp_path: Path) -> None:
    done = penstock("contract", "infer", KEY, workspace=shop)
    assert done.returncode == 0, done.stderr
    query = yaml.safe_load(done.stdout)["queries"]["campaign_daily"]
    assert {"unique": ["campaign_id"]} in query["checks"]
    assert {"name": "clicks", "type": "long", "required": True} in query["fields"]
    folder = write_workspace(
        tmp_path, queries={"networks": {"source": "demo", "fields": [{"name": "a", "type": "long"}]}}
    )
    (folder / "more.yaml").write_text(done.stdout)
    body = yaml.safe_load((folder / "penstock.yaml").read_text())
    (folder / "penstock.yaml").write_text(yaml.safe_dump({**body, "include": ["more.yaml"]}))
    assert answer("contract", "show", "campaign_daily", workspace=folder)["query"] == "campaign_daily"
