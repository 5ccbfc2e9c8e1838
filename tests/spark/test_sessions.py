"""A session that a caller started: Penstock works on its cluster, in a session of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from penstock.pipeline.ready_session import ready_session
from support.workspaces import open_at, rows_by_partition, run, write_workspace


def test_a_run_on_the_session_of_a_caller_leaves_its_settings_alone(tmp_path: Path, spark: Any) -> None:
    given = spark.newSession()
    theirs = {"spark.sql.ansi.enabled": "true", "spark.sql.session.timeZone": "Europe/Berlin"}
    for name, value in theirs.items():
        given.conf.set(name, value)
    ws = open_at(
        write_workspace(tmp_path, query={"checks": [{"expression": "impressions / (clicks - clicks) IS NULL"}]})
    )
    ready = ready_session(ws.settings, given)
    assert ready is not given
    assert ready.conf.get("spark.sql.ansi.enabled") == "false"
    assert ready.conf.get("spark.sql.session.timeZone") == "UTC"
    assert ready_session(ws.settings, given) is ready
    assert ready_session(ws.settings, ready) is ready
    done = run(ws, given)
    assert (done.accepted, done.loaded, done.failures) == (2, 2, [])  # in ANSI mode the check would fail the job
    assert len(rows_by_partition(ws)) == 2
    assert {name: given.conf.get(name) for name in theirs} == theirs


def test_the_session_that_penstock_started_is_used_as_it_is(tmp_path: Path, spark: Any) -> None:
    assert ready_session(open_at(write_workspace(tmp_path)).settings, spark) is spark


def test_the_start_of_a_local_session_leaves_no_address_for_other_processes(spark: Any) -> None:
    """A driver of a cluster that this process starts would offer the loopback address to executors on other hosts."""
    assert spark.conf.get("spark.driver.host") == "localhost"
    assert "SPARK_LOCAL_IP" not in os.environ
