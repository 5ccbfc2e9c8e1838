"""Fields change: what is new is fetched in the new version, and history moves when somebody asks for it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cli import answer, penstock
from penstock.app import Workspace
from penstock.control.select import Selection
from penstock.errors import ConfigError
from penstock.flow.heartbeat import Heartbeat
from penstock.state.audited import AuditedAct
from penstock.state.control import AuditEntry
from penstock.state.worker import WorkerStore
from workspaces import CAMPAIGNS, NOW, Silent, customer_id, key, open_at, run, write_workspace

NEW: dict[str, Any] = {"fields": [*CAMPAIGNS["fields"], {"name": "network", "type": "string"}]}


def versions(ws: Workspace) -> dict[str, int]:
    return ws.reader.versions(ws.ranges(Selection()))


def test_history_moves_to_a_new_version_by_an_explicit_backfill(tmp_path: Path, spark: Any) -> None:
    run(open_at(write_workspace(tmp_path, customers=2)), spark)
    with pytest.raises(ConfigError, match="network string was added"):
        run(open_at(write_workspace(tmp_path, customers=2, query=NEW)), spark)

    # One slice of the past cannot be had again: it keeps its rows in the old version.
    faults = [{"fault": "wrong_type", "customer": customer_id(2), "date": "2024-06-09"}]
    changed = {**NEW, "schema_version": "v2", "start_date": "2024-06-09"}
    folder = write_workspace(tmp_path, customers=2, query=changed, faults=faults)
    later = open_at(folder, NOW + timedelta(days=1))
    assert run(later, spark).accepted == 2  # the new day, and nothing of the past
    assert versions(later) == {"v1": 4, "v2": 2}

    # Through the command line the clock is today's, so the preview is asked for the days that are there.
    chosen = ("--since", "2024-06-09", "--until", "2024-06-10")
    preview = answer("backfill", "create", "--schema-version", "v1", *chosen, "--dry-run", workspace=folder)
    assert (preview["moved"], preview["total"], preview["dry_run"]) == (4, 4, True)
    refused = penstock("backfill", "create", "--schema-version", "v7", *chosen, workspace=folder)
    assert refused.returncode == 2
    assert "no trusted run here is of schema version v7 (there are: v1 (4))" in refused.stderr
    manners: dict[str, Any] = {"reprocess": True, "chunk_size": 10, "priority": 0, "max_chunks": 1, "actor": "test"}
    created = later.new_backfill(Selection(schema_version="v1"), **manners)
    later.backfills.create(created, AuditEntry("test", AuditedAct.BACKFILL_CREATE, {}, {}))
    with Heartbeat(WorkerStore(later.database, later.now)) as heart:
        later.tick(lambda: spark, heart.token, Silent())
        later.tick(lambda: spark, heart.token, Silent())
    assert later.backfills.get(created.backfill_id).status == "finished"
    assert versions(later) == {"v1": 1, "v2": 5}
    rows = later.vouched("demo.campaign_daily").arrow().to_pylist()
    assert len(rows) == 30
    assert {row["schema_version"] for row in rows if row["customer_id"] == customer_id(1)} == {"v2"}
    old = [row for row in rows if row["schema_version"] == "v1"]
    assert {(row["customer_id"], row["logical_date"].isoformat(), row["network"]) for row in old} == {
        (customer_id(2), "2024-06-09", None)
    }
    assert later.reader.attempts(key(2))[0].outcome == "FAILED"
