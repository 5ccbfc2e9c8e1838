"""The same workspace on a Spark Connect server and on local Spark: the same verdicts and the same rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from support import servers
from support.cli import Ended, answer
from support.command_process import command_process
from support.workspaces import key, write_workspace

Command = Callable[..., Ended]

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


def outcome(folder: Path, command: Command) -> dict[str, Any]:
    """The result of a run, without values that differ from run to run."""
    ran = command("run", *_DAYS, "--json", workspace=folder)
    assert ran.code == 1, ran.stderr
    rows = {
        table: answer("sql", f"SELECT * EXCLUDE (_run_id) FROM {table} ORDER BY ALL", workspace=folder)["items"]
        for table in ("demo.campaign_daily", "models.total")
    }
    names = ("planned", "accepted", "rejected", "loaded", "cancelled", "skipped")
    counts = {name: ran.document[name] for name in names}
    failures = [(failure["key"], failure["stage"], failure["error_class"]) for failure in ran.document["failures"]]
    return {"counts": counts, "failures": failures, "rows": rows}


def test_a_run_on_a_connect_server_ends_like_one_on_local_spark(tmp_path: Path) -> None:
    with command_process() as commands:
        local = outcome(made(tmp_path / "local", {"master": "local[2]"}), commands.run)
    with servers.spark_connect() as address, command_process() as commands:
        folder = made(tmp_path / "connect", {"remote": address})
        assert outcome(folder, commands.run) == local
        assert commands.run("warehouse", "verify", workspace=folder).code == 0
        sum_of_clicks = "SELECT sum(clicks) AS clicks FROM demo.campaign_daily"
        on_spark = commands.run("sql", sum_of_clicks, "--spark", "--json", workspace=folder).document["items"]
        assert on_spark == answer("sql", sum_of_clicks, workspace=folder)["items"]
        again = commands.run(
            "run", *_DAYS, "--query", "campaign_daily", "--reprocess", "--yes", "--json", workspace=folder
        )
        assert (again.document["accepted"], again.document["loaded"]) == (5, 5)
    assert local["counts"]["rejected"] == 1
    assert len(local["rows"]["demo.campaign_daily"]) == 25
    assert [row["rows_"] for row in local["rows"]["models.total"]] == [15, 10]
