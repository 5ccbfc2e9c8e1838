"""A control loop that is killed while it evaluates or delivers alerts: the next one reports each incident once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from penstock.app import load_workspace
from penstock.state.records import Breaker
from support.cli import penstock
from support.hooks import SECRET, receiver
from support.workspaces import write_workspace


@pytest.mark.parametrize("gap", ["alerts.advanced", "delivery.sent"])
def test_a_killed_loop_is_followed_by_one_that_reports_the_incident_once(gap: str, tmp_path: Path) -> None:
    with receiver() as hook:
        channels = {"ops": {"webhook": hook.url, "secret": SECRET}}
        alerts = {"channels": channels, "rules": [{"rule": "breaker_open"}]}
        # without customers nothing is due, so the rounds start no Spark
        folder = write_workspace(tmp_path, customers=0, alerts=alerts)
        workspace = load_workspace(folder)
        workspace.maintenance.migrate()
        now = workspace.context.now()
        opened = Breaker("demo", 3, now, now, 1, None, "auth", "invalid credentials")
        workspace.context.breakers.change("demo", lambda breaker: opened)
        killed = penstock("control", "tick", workspace=folder, PENSTOCK_FAILPOINT=gap)
        assert killed.returncode == -signal.SIGKILL
        assert penstock("control", "tick", workspace=folder).returncode == 0
        assert hook.notices() == [("fired", "breaker_open/demo")]
        assert len(hook.events) == (2 if gap == "delivery.sent" else 1)
        workspace.context.breakers.change("demo", lambda breaker: Breaker("demo"))
        assert penstock("control", "serve", "--rounds", "1", workspace=folder).returncode == 0
        assert hook.notices() == [("fired", "breaker_open/demo"), ("recovered", "breaker_open/demo")]
        workspace.close()
