"""Deadlines through the commands: late before the run, ready after it, with a history; no Spark is started."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from support import builders
from support.cli import answer, in_process, penstock
from support.workspaces import CAMPAIGNS, write_workspace

TABLE, MODEL = "demo.campaign_daily", "models.spend"
MIDNIGHT = {"complete_by": "00:00"}


def yesterday() -> date:
    return datetime.now(UTC).date() - timedelta(days=1)


@pytest.fixture
def folder() -> Iterator[Path]:
    with builders.quick_folder() as made:
        yield Path(made)


def write(folder: Path, models: dict[str, Any] | None = None) -> None:
    """Two customers and yesterday, whose deadline was midnight."""
    body = {**CAMPAIGNS, "start_date": str(yesterday()), "freshness": MIDNIGHT}
    write_workspace(folder, customers=2, queries={"campaign_daily": body}, models=models, driver_partitions=32)
    assert in_process("db", "migrate", workspace=folder).code == 0


def test_a_late_table_is_ready_after_a_run_and_has_a_history(folder: Path) -> None:
    write(folder)
    late = in_process("late", workspace=folder)
    assert late.code == 1
    assert f"{TABLE} {yesterday()}  late" in late.stdout
    assert "2 not attempted" in late.stdout

    assert penstock("run", workspace=folder).returncode == 0
    [day] = answer("late", TABLE, workspace=folder)["items"]
    assert (day["punctuality"], day["available"], day["missing"]) == ("ready", 2, [])
    found = in_process("late", "--history", "--json", workspace=folder).document
    [figures] = found["items"]
    assert (figures["table"], figures["days"], figures["late"], figures["never_complete"]) == (TABLE, 1, 1, 0)
    [completed] = found["days"]
    assert completed["late_seconds"] == figures["worst_late_seconds"] > 0
    shown = in_process("late", "--history", workspace=folder).stdout
    assert "1 of 1 day" in shown


def test_late_and_ready_explain_the_chain_of_a_model(folder: Path) -> None:
    write(folder, {"spend": {"code": "SELECT 1 AS one", "depends_on": [TABLE], "freshness": MIDNIGHT}})
    late = in_process("late", MODEL, workspace=folder)
    assert late.code == 1
    assert all(len(line) <= 80 for line in late.stdout.splitlines()), late.stdout
    lines = [line.strip() for line in late.stdout.splitlines()]
    assert lines[0] == f"{MODEL} {yesterday()}  late"
    assert "missing 1 waiting for inputs: 2 of 2 partitions of demo.campaign_daily cannot be read" in " ".join(
        late.stdout.split()
    )
    assert f"{TABLE} {yesterday()}  late" in lines
    assert "missing   2 not attempted" in lines

    ready = in_process("ready", MODEL, "--date", str(yesterday()), "--explain", workspace=folder)
    assert ready.code == 1
    assert "1 waiting for inputs" in ready.stdout
    assert "2 not attempted" in ready.stdout
    explained = in_process("ready", MODEL, "--explain", "--json", workspace=folder).document["explained"]
    assert [one["cause"] for one in explained[0]["inputs"][0]["missing"]] == ["not_attempted"]
    assert "explained" not in in_process("ready", MODEL, "--json", workspace=folder).document


def test_options_that_do_not_fit_are_refused(folder: Path) -> None:
    write(folder)
    for options in (("--since", "2024-06-01"), ("--history", "--date", "2024-06-01"), ("--date", "June"), ("demo.x",)):
        assert in_process("late", *options, workspace=folder).code == 2
