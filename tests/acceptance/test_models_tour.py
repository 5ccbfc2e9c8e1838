"""Derived tables through the command line: computed by a run, explained, outdated, computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from support.cli import answer, penstock


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workspace of `init`, with two days, and one customer whose campaigns are broken on one of them."""
    folder = tmp_path_factory.mktemp("models") / "workspace"
    assert penstock("init", str(folder), "--customers", "5", "--days", "2").returncode == 0
    body = yaml.safe_load((folder / "penstock.yaml").read_text())
    day = body["queries"]["campaign_daily"]["start_date"].isoformat()
    fault = {"fault": "wrong_type", "customer": "1000000002", "date": day, "query": "campaign_daily"}
    body["sources"]["demo"] = {"kind": "demo", "rows": 4, "faults": [{**fault, "enabled": "${FAULTS:-true}"}]}
    body["models"]["strict"] = {"sql": "models/daily_spend.sql", "depends_on": ["demo.campaign_daily"]}
    (folder / "penstock.yaml").write_text(yaml.safe_dump(body, sort_keys=False))
    first = answer("run", workspace=folder, code=1)
    assert (first["planned"], first["accepted"], first["rejected"]) == (24, 22, 1)
    return folder


def days(workspace: Path) -> list[str]:
    found = answer("sql", "SELECT DISTINCT logical_date FROM demo.network_daily ORDER BY 1", workspace=workspace)
    return [row["logical_date"] for row in found["items"]]


def spend(workspace: Path, model: str = "daily_spend") -> dict[str, Any]:
    found = answer("sql", f"SELECT * FROM models.{model} ORDER BY logical_date", workspace=workspace)
    return {row["logical_date"]: row for row in found["items"]}


def test_a_model_is_read_waited_for_explained_and_made_again(workspace: Path) -> None:
    first, second = days(workspace)
    assert {day: row["customers"] for day, row in spend(workspace).items()} == {first: 4, second: 5}
    assert set(spend(workspace, "strict")) == {second}

    # A reader that waits for it gets a message with the reason.
    assert penstock("ready", "models.strict", "--date", second, workspace=workspace).returncode == 0
    assert penstock("ready", "models.strict", "--date", first, workspace=workspace).returncode == 1
    why = answer("why", f"models/all/strict/{first}", workspace=workspace)
    assert any("1 of 5 partitions of demo.campaign_daily cannot be read" in words for words in why["blocks"])
    plan = answer("run", "--plan", workspace=workspace)
    assert (plan["total"], plan["waiting"]) == (0, 1)

    # The source is fixed: partitions that waited are computed, partitions without it are computed again.
    assert penstock("state", "retry", "--yes", workspace=workspace).returncode == 0
    again = answer("run", workspace=workspace, FAULTS="false")
    assert (again["planned"], again["accepted"]) == (3, 3)
    assert {day: row["customers"] for day, row in spend(workspace).items()} == {first: 5, second: 5}
    assert spend(workspace, "strict")[first]["clicks"] == spend(workspace)[first]["clicks"]

    # An input is withdrawn: its downstream partitions are stale, and shown so.
    gone = f"demo/1000000001/campaign_daily/{second}"
    assert penstock("state", "demote", gone, "--reason", "wrong", workspace=workspace).returncode == 0
    stale = answer("stale", workspace=workspace)
    assert {item["key"] for item in stale["items"]} == {f"models/all/{m}/{second}" for m in ("daily_spend", "strict")}
    assert stale["items"][0]["reasons"] == ["UPSTREAM_CHANGED"]
    assert answer("status", workspace=workspace)["flags"]["input_demoted"] == 2
    refused = penstock("ready", "models.strict", "--date", second, workspace=workspace)
    assert (refused.returncode, "derived from runs that were demoted since" in refused.stdout) == (1, True)
    strict = f"models/all/strict/{second}"
    [day] = answer("ready", "models.strict", "--date", second, workspace=workspace, code=1)["tables"][0]["days"]
    assert day["withdrawn_inputs"] == [strict]
    assert [one["key"] for one in answer("why", strict, workspace=workspace)["withdrawn_inputs"]] == [gone]
    assert answer("read", "models.strict", workspace=workspace)["metadata"]["withdrawn_inputs"] == [strict]
    for command in (("read", "models.strict"), ("sql", "SELECT * FROM models.strict")):
        noted = penstock(*command, "--format", "csv", workspace=workspace)
        assert (noted.returncode, second in noted.stdout) == (0, True)
        assert f"demoted since and is not ready; the next `penstock run` derives it again: `penstock why {strict}`" in (
            noted.stderr
        )
    answer("run", workspace=workspace, FAULTS="false")
    assert spend(workspace)[second]["customers"] == 4
    assert spend(workspace, "strict")[second]["customers"] == 5  # served as it was, and stale, until its input is back
    assert [item["key"] for item in answer("stale", workspace=workspace)["items"]] == [f"models/all/strict/{second}"]


def test_code_that_cannot_be_kept_is_refused_with_what_to_do(workspace: Path) -> None:
    file = workspace / "models" / "daily_spend.sql"
    before = file.read_text()
    file.write_text(before.replace(" AS spend", " AS cost"))
    refused = penstock("run", workspace=workspace, FAULTS="false")
    assert refused.returncode == 1
    assert "its fields changed but schema_version is still v1" in refused.stdout
    assert "give it a new schema_version" in refused.stdout
    file.write_text(before.replace("sum(clicks)", "sum(clics)"))
    refused = penstock("run", workspace=workspace, FAULTS="false")
    assert refused.returncode == 1
    assert "models/daily_spend.sql" in refused.stdout
    assert "`clics` cannot be resolved" in refused.stdout
    assert "Traceback" not in refused.stderr
    file.write_text(before)


def test_raw_runs_of_models_can_be_read(workspace: Path) -> None:
    _, second = days(workspace)
    [row] = answer("raw", "read", f"models/all/daily_spend/{second}", workspace=workspace)["items"]
    assert row["customers"] in (4, 5)
    runs = answer("raw", "list", f"models/all/daily_spend/{second}", workspace=workspace)["items"]
    assert [run["authoritative"] for run in runs][-1] is True


def test_everything_that_is_served_is_verified(workspace: Path) -> None:
    found = answer("warehouse", "verify", "--raw", workspace=workspace)
    assert found["items"] == []
