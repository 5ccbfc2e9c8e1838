"""A day of an operator on call, through the command line: retries, marks, acts on authority, breakers and backfills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.cli import answer, penstock
from support.workspaces import customer_id, write_workspace

TODAY = datetime.now(UTC).date()
DAYS = [(TODAY - timedelta(days=n)).isoformat() for n in (4, 3, 2, 1)]


def key(number: int, day: str) -> str:
    return f"demo/{customer_id(number)}/campaign_daily/{day}"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three customers and four days; one partition failed with a transient error, the others are there."""
    folder = write_workspace(
        tmp_path_factory.mktemp("operator"),
        customers=3,
        rows=10,
        faults=[
            {"fault": "transient", "customer": customer_id(2), "date": DAYS[0], "enabled": "${FLAKY:-false}"},
            {"fault": "fewer_rows", "customer": customer_id(3), "date": DAYS[1], "enabled": "${SHRUNK:-false}"},
            {"fault": "auth", "enabled": "${LOCKED_OUT:-false}"},
        ],
        query={
            "start_date": DAYS[0],
            "restate": {"days": 2, "ages": [2]},
            "retry": {"backoff": ["1s"], "max_attempts": 2, "jitter": 0},
        },
    )
    body = yaml.safe_load((folder / "penstock.yaml").read_text())
    body["control"] = {"round": 20, "every": "1s", "fresh_days": 2}
    (folder / "penstock.yaml").write_text(yaml.safe_dump(body, sort_keys=False))
    assert penstock("db", "migrate", workspace=folder).returncode == 0
    first = answer("run", workspace=folder, code=1, FLAKY="true")
    assert (first["planned"], first["accepted"], first["rejected"]) == (12, 11, 1)
    return folder


def rows_of(shop: Path, number: int, day: str) -> list[dict[str, Any]]:
    where = f"customer_id = '{customer_id(number)}' AND logical_date = '{day}'"
    statement = f"SELECT _run_id, count(*) AS n FROM demo.campaign_daily WHERE {where} GROUP BY 1"
    found: list[dict[str, Any]] = answer("sql", statement, workspace=shop)["items"]
    return found


def inspected(shop: Path, number: int, day: str) -> dict[str, Any]:
    [item] = answer("state", "inspect", key(number, day), workspace=shop)["items"]
    found: dict[str, Any] = item
    return found


def runs_of(shop: Path, number: int, day: str) -> list[str]:
    return [item["run_id"] for item in answer("state", "history", key(number, day), workspace=shop)["items"]]


def test_a_passing_error_is_retried_by_policy_and_shown_beforehand(shop: Path) -> None:
    failed = inspected(shop, 2, DAYS[0])
    assert (failed["status"], failed["strategy"], failed["terminal"]) == ("failed", "backoff 1 of 1", False)
    time.sleep(max(0.0, 1.1 - (datetime.now(UTC) - datetime.fromisoformat(failed["updated_at"])).total_seconds()))
    assert answer("run", "--plan", workspace=shop)["reasons"] == {"retry": 1}
    why = answer("why", key(2, DAYS[0]), workspace=shop)
    assert "retried after" in why["next"]
    again = answer("run", workspace=shop)
    assert (again["planned"], again["accepted"]) == (1, 1)
    assert inspected(shop, 2, DAYS[0])["next_run_at"] is None


def test_marks_are_previewed_counted_and_taken_back(shop: Path) -> None:
    chosen = ("--customer", customer_id(1), "--since", DAYS[2])
    preview = answer("state", "pause", *chosen, "--dry-run", workspace=shop)
    assert (preview["total"], preview["changed"]) == (2, 0)
    assert answer("state", "pause", *chosen, "--reason", "moving", workspace=shop)["changed"] == 2
    assert answer("state", "pause", *chosen, workspace=shop)["changed"] == 0
    assert inspected(shop, 1, DAYS[2])["paused"]
    assert answer("run", "--plan", "--reprocess", workspace=shop)["paused"] == 2
    assert answer("state", "resume", workspace=shop)["changed"] == 2


def test_rollback_demotion_and_retry_are_seen_by_readers(shop: Path) -> None:
    number, day = 1, DAYS[0]
    [old] = runs_of(shop, number, day)
    assert answer("run", key(number, day), "--reprocess", workspace=shop)["loaded"] == 1
    new = runs_of(shop, number, day)[0]
    assert rows_of(shop, number, day) == [{"_run_id": new, "n": 10}]

    rehearsal = ("state", "rollback", key(number, day), "--dry-run", "--to")
    assert answer(*rehearsal, old, workspace=shop)["changed"] == 0
    assert penstock(*rehearsal, "01ARZ3NDEKTSV4RRFFQ69G5FAV", workspace=shop).returncode == 1
    assert answer("state", "rollback", key(number, day), "--to", old, workspace=shop)["changed"] == 1
    assert answer("state", "rollback", key(number, day), "--to", old, workspace=shop)["changed"] == 0
    assert rows_of(shop, number, day) == []
    assert inspected(shop, number, day)["held"]
    assert answer("run", workspace=shop)["loaded"] == 1
    assert rows_of(shop, number, day) == [{"_run_id": old, "n": 10}]

    refused = penstock("state", "demote", key(number, day), workspace=shop)
    assert refused.returncode == 2
    assert "--reason" in refused.stderr
    assert answer("state", "demote", key(number, day), "--reason", "wrong currency", workspace=shop)["changed"] == 1
    assert rows_of(shop, number, day) == []
    assert answer("why", key(number, day), workspace=shop)["serving"] is None
    assert inspected(shop, number, day)["display_status"] == "unavailable"
    done = penstock("state", "rollback", key(number, day), "--to", old, workspace=shop)
    assert done.returncode == 1
    assert "was demoted" in done.stderr

    assert answer("state", "mark-terminal", key(number, day), "--reason", "no more", workspace=shop)["changed"] == 1
    [given_up] = answer("state", "terminal", workspace=shop)["items"]
    assert (given_up["key"], "no more" in given_up["why"]) == (key(number, day), True)
    assert answer("state", "retry", key(number, day), workspace=shop, code=1)["terminal"] == [key(number, day)]
    assert answer("state", "clear-terminal", workspace=shop)["changed"] == 1
    assert answer("state", "retry", key(number, day), workspace=shop)["requeued"] == 1
    assert answer("run", workspace=shop)["loaded"] == 1
    assert len(rows_of(shop, number, day)) == 1


def test_a_run_that_the_shrink_guard_holds_back_can_be_approved(shop: Path) -> None:
    number, day = 3, DAYS[1]
    held = answer("run", key(number, day), "--reprocess", workspace=shop, code=1, SHRUNK="true")
    assert held["rejected"] == 1
    run = held["run_id"]
    assert rows_of(shop, number, day)[0]["n"] == 10
    why = answer("why", key(number, day), workspace=shop)
    assert why["approve"] == f'penstock state approve {key(number, day)} --run {run} --reason "..."'
    assert why["approve"] in why["next"]
    assert (why["serving"]["record_count"], why["waiting"]) == (10, None)
    idle = answer("run", key(number, day), workspace=shop)
    assert (idle["planned"], idle["waiting"]["operator"]) == (0, 1)
    assert "1 partition failed and waits for an operator" in penstock("run", key(number, day), workspace=shop).stdout
    approval = ("state", "approve", key(number, day), "--run", run, "--reason", "the account shrank")
    assert answer(*approval, workspace=shop)["changed"] == 1
    why = answer("why", key(number, day), workspace=shop)
    assert (why["serving"]["record_count"], why["waiting"]["run_id"], why["waiting"]["record_count"]) == (10, run, 2)
    assert answer("run", workspace=shop)["loaded"] == 1
    assert rows_of(shop, number, day) == [{"_run_id": run, "n": 2}]
    other = penstock("state", "approve", key(2, DAYS[0]), "--run", runs_of(shop, 2, DAYS[0])[-1], "--reason", "x",
                     workspace=shop)  # fmt: skip
    assert other.returncode == 1
    assert "cannot be approved" in other.stderr


def test_a_recheck_demotes_what_the_contract_of_today_refuses(shop: Path) -> None:
    path = shop / "penstock.yaml"
    before = path.read_text()
    body = yaml.safe_load(before)
    body["queries"]["campaign_daily"]["checks"].append({"expression": "campaign_id < 0", "name": "impossible"})
    path.write_text(yaml.safe_dump(body, sort_keys=False))
    try:
        found = answer("validate", key(2, DAYS[3]), workspace=shop, code=1)
    finally:
        path.write_text(before)
    assert (found["examined"], found["total"]) == (1, 1)
    assert "campaign_id < 0" in found["items"][0]["message"]
    assert rows_of(shop, 2, DAYS[3]) == []
    assert inspected(shop, 2, DAYS[3])["attempt_count"] == 2
    assert answer("validate", key(2, DAYS[2]), workspace=shop)["total"] == 0


def test_a_source_that_refuses_everybody_is_left_alone_until_a_probe_succeeds(shop: Path) -> None:
    refused = answer("run", "--reprocess", workspace=shop, code=1, LOCKED_OUT="true")
    assert refused["cancelled"] == refused["planned"] == len(refused["cancelled_items"])
    assert (refused["rejected"], refused["failures"]) == (0, [])
    assert {item["error_class"] for item in refused["cancelled_items"]} == {"auth"}
    [trouble] = answer("status", workspace=shop)["troubles"]
    assert "breaker of demo is open" in trouble
    assert not answer("doctor", workspace=shop, code=1)["ok"]
    assert answer("control", "tick", workspace=shop, LOCKED_OUT="true")["planned"] == 0  # nothing is due by itself
    still = answer("run", "--reprocess", workspace=shop, code=1, LOCKED_OUT="true")
    assert (still["cancelled"], still["blocked"]) == (1, still["planned"] - 1)
    mended = answer("run", "--reprocess", workspace=shop)
    assert (mended["accepted"], mended["blocked"]) == (mended["planned"], 0)
    assert answer("status", workspace=shop)["troubles"] == []
    counts = {i["attempt_count"] for i in answer("state", "inspect", workspace=shop)["items"]}
    assert max(counts) <= 5  # attempts that the breaker stopped do not count


def test_a_backfill_is_worked_off_in_chunks_by_a_loop_that_stops_politely(shop: Path) -> None:
    made = answer("backfill", "create", "--until", DAYS[1], "--reprocess", "--chunk-size", "4", workspace=shop)
    backfill = made["backfill_id"]
    assert (made["total"], made["status"]) == (6, "active")
    assert answer("backfill", "pause", backfill, workspace=shop)["status"] == "paused"
    assert answer("backfill", "resume", backfill, workspace=shop)["changed"] == 1
    loop = subprocess.Popen(
        [sys.executable, "-m", "penstock", "control", "serve", "--workspace", str(shop)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 120
        while (found := answer("backfill", "show", backfill, workspace=shop))["status"] != "finished":
            assert time.monotonic() < deadline, found
            time.sleep(1)
        os.kill(loop.pid, signal.SIGTERM)
        _, log = loop.communicate(timeout=60)
    finally:
        loop.kill()
    assert loop.returncode == 0, log
    assert '"event":"stopped"' in log
    assert (found["done"], found["accepted"] + found["skipped"], found["rejected"]) == (6, 6, 0)
    assert answer("backfill", "retry-failed", backfill, workspace=shop)["total"] == 0
    done = penstock("backfill", "resume", backfill, workspace=shop)
    assert done.returncode == 1
    assert "is finished" in done.stderr


def test_every_act_is_in_the_audit_log(shop: Path) -> None:
    lines = answer("audit", "list", workspace=shop)["items"]
    commands = [item["command"] for item in lines]
    assert any(item["outcome"].startswith("refused: ") for item in lines if item["command"] == "state rollback")
    for command in ("state rollback", "state demote", "state approve", "state pause", "backfill create", "validate"):
        assert command in commands


def test_a_large_plan_is_split_into_several_runs_and_an_error_stops_them(tmp_path: Path) -> None:
    folder = write_workspace(
        tmp_path,
        customers=9,
        faults=[{"fault": "auth", "enabled": "${LOCKED_OUT:-false}"}],
        query={"start_date": DAYS[0]},
        control={"largest_run": 16},
    )
    assert penstock("db", "migrate", workspace=folder).returncode == 0
    assert answer("run", "--plan", workspace=folder)["total"] == 36
    assert "it is split into several runs" in penstock("run", "--plan", workspace=folder).stdout

    stopped = answer("run", workspace=folder, code=1, LOCKED_OUT="true")
    assert (stopped["planned"], stopped["accepted"]) == (36, 0)
    assert stopped["blocked"] > 0
    assert "breaker" in stopped["troubles"][0]

    mended = penstock("run", workspace=folder)
    assert mended.returncode == 0, mended.stderr
    assert "more to fetch" in mended.stderr
    assert "the last run is named here" in mended.stdout
    listed = answer("runs", "list", workspace=folder)
    assert listed["total"] >= 4
    assert answer("status", workspace=folder)["counts"]["materialized"] == 36
    assert answer("run", workspace=folder)["planned"] == 0
