"""The same workspace on a Spark Connect server and on local Spark: the same verdicts and the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from support import servers
from support.cli import answer, penstock
from support.workspaces import key, write_workspace

_MODEL = """
SELECT logical_date, count(*) AS rows_, sum(clicks) AS clicks FROM demo.campaign_daily GROUP BY logical_date
"""
_DAYS = ("--since", "2024-06-09", "--until", "2024-06-10")


def made(folder: Path, spark: dict[str, str]) -> Path:
    faults = [{"customer": key(2).customer_id, "date": "2024-06-10", "fault": "duplicate_key"}]
    models = {"total": {"code": _MODEL, "depends_on": ["demo.campaign_daily"], "require": "any"}}
    write_workspace(folder, customers=3, faults=faults, models=models)
    file = folder / "penstock.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "spark": spark}, sort_keys=False))
    answer("db", "migrate", workspace=folder)
    return folder


def outcome(folder: Path) -> dict[str, Any]:
    """The result of a run, without values that differ from run to run."""
    ran = answer("run", *_DAYS, workspace=folder, code=1)
    rows = {
        table: answer("sql", f"SELECT * EXCLUDE (_run_id) FROM {table} ORDER BY ALL", workspace=folder)["items"]
        for table in ("demo.campaign_daily", "models.total")
    }
    counts = {name: ran[name] for name in ("planned", "accepted", "rejected", "loaded", "cancelled", "skipped")}
    failures = [(failure["key"], failure["stage"], failure["error_class"]) for failure in ran["failures"]]
    return {"counts": counts, "failures": failures, "rows": rows}


def test_a_run_on_a_connect_server_ends_like_one_on_local_spark(tmp_path: Path) -> None:
    local = outcome(made(tmp_path / "local", {"master": "local[2]"}))
    with servers.spark_connect() as address:
        folder = made(tmp_path / "connect", {"remote": address})
        assert outcome(folder) == local
        assert penstock("warehouse", "verify", workspace=folder).returncode == 0
        sum_of_clicks = "SELECT sum(clicks) AS clicks FROM demo.campaign_daily"
        on_spark, here = (answer("sql", sum_of_clicks, *how, workspace=folder)["items"] for how in (["--spark"], []))
        assert on_spark == here
        again = answer("run", *_DAYS, "--query", "campaign_daily", "--reprocess", "--yes", workspace=folder)
        assert (again["accepted"], again["loaded"]) == (5, 5)
    assert local["counts"]["rejected"] == 1
    assert len(local["rows"]["demo.campaign_daily"]) == 25
    assert [row["rows_"] for row in local["rows"]["models.total"]] == [15, 10]
