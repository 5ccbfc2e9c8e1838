"""Schema changes: new days are fetched in the new version, and history moves on request."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.app import Workspace
from penstock.control.select import Selection
from penstock.errors import ConfigError
from penstock.flow.heartbeat import Heartbeat
from penstock.state.audited import AuditedAct
from penstock.state.control import AuditEntry
from penstock.state.worker import WorkerStore
from penstock.warehouse.version_union import VersionsConflict
from support.cli import answer, penstock
from support.workspaces import CAMPAIGNS, NOW, Silent, customer_id, key, open_at, run, write_workspace

NEW: dict[str, Any] = {"fields": [*CAMPAIGNS["fields"], {"name": "network", "type": "string"}]}


def versions(ws: Workspace) -> dict[str, int]:
    return ws.context.state.versions(ws.context.ranges(Selection()))


def test_history_moves_to_a_new_version_by_an_explicit_backfill(tmp_path: Path, spark: Any) -> None:
    run(open_at(write_workspace(tmp_path, customers=2)), spark)
    with pytest.raises(ConfigError, match="network string was added"):
        run(open_at(write_workspace(tmp_path, customers=2, query=NEW)), spark)

    # One past partition cannot be fetched again: it keeps its rows in the old version.
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
    created = later.backfills.plan(Selection(schema_version="v1"), **manners)
    later.context.backfills.create(created, AuditEntry("test", AuditedAct.BACKFILL_CREATE, {}, {}))
    with Heartbeat(WorkerStore(later.context.database, later.context.now)) as heart:
        later.rounds.tick(lambda: spark, heart.token, Silent())
        later.rounds.tick(lambda: spark, heart.token, Silent())
    assert later.backfills.get(created.backfill_id).status == "finished"
    assert versions(later) == {"v1": 1, "v2": 5}
    rows = later.data.vouched("demo.campaign_daily").arrow().to_pylist()
    assert len(rows) == 30
    assert {row["schema_version"] for row in rows if row["customer_id"] == customer_id(1)} == {"v2"}
    old = [row for row in rows if row["schema_version"] == "v1"]
    assert {(row["customer_id"], row["logical_date"].isoformat(), row["network"]) for row in old} == {
        (customer_id(2), "2024-06-09", None)
    }
    assert later.context.state.attempts(key(2))[0].outcome == "FAILED"


def labelled(kind: str, version: str) -> dict[str, Any]:
    fields = [*CAMPAIGNS["fields"], {"name": "label", "type": kind}]
    return {**CAMPAIGNS, "schema_version": version, "fields": fields}


TOP = "SELECT logical_date, max(CAST(label AS STRING)) AS top FROM demo.campaign_daily GROUP BY ALL"
PAIR = (
    "SELECT p.logical_date, count(c.campaign_id) AS rows_ FROM penstock.partitions p"
    " JOIN demo.campaign_daily c ON c.logical_date BETWEEN p.logical_date - 1 AND p.logical_date GROUP BY ALL"
)


def test_a_type_that_changes_leaves_reads_and_models_of_either_version_working(tmp_path: Path, spark: Any) -> None:
    table = "demo.campaign_daily"
    run(open_at(write_workspace(tmp_path, customers=2, queries={"campaign_daily": labelled("long", "v1")})), spark)

    # A day arrives in the new version. A model reads each day in its own version; the partition whose window has both
    # fails with the reason, and blocks nothing else. A check that refers to the column compares it as text.
    models = {
        "top": {"code": TOP, "depends_on": [table]},
        "pair": {"code": PAIR, "depends_on": [table], "needs": "2 days"},
    }
    refers = {"references": {"field": "label", "to": table}}
    tags = {**labelled("string", "v1"), "checks": [refers]}
    queries = {"campaign_daily": labelled("string", "v2"), "tag_daily": tags}
    folder = write_workspace(tmp_path, customers=2, queries=queries, models=models)
    later = open_at(folder, NOW + timedelta(days=1))
    done = run(later, spark)
    [left] = done.cancelled_items
    assert str(left.key) == "models/all/pair/2024-06-11"
    assert "cannot be read as one table (label is long in v1 and string in v2)" in left.message
    tops = {row["logical_date"].day: row["top"] for row in later.data.vouched("models.top").arrow().to_pylist()}
    assert sorted(tops) == [9, 10, 11]
    assert tops[9].isdigit()
    assert tops[11].startswith("text ")
    assert {row["logical_date"].day for row in later.data.vouched("models.pair").arrow().to_pylist()} == {9, 10}
    judged = [failure for failure in done.failures if failure.key.query_name == "tag_daily"]
    assert len(judged) == 6
    assert all("label is not in demo.campaign_daily" in failure.message for failure in judged)

    # One frame is refused, one version is read, through each face.
    with pytest.raises(VersionsConflict, match="label is long in v1 and string in v2"):
        later.read(table, spark=spark)
    assert later.data.vouched(table, schema_version="v1").spark(spark).count() == 20
    source = spark.read.format("penstock").option("workspace", str(folder)).option("table", table)
    assert source.option("schema_version", "v2").load().where("label LIKE 'text %'").count() == 10
    refused = penstock("read", table, workspace=folder)
    assert refused.returncode == 2
    assert "--schema-version v2" in refused.stderr
    assert answer("read", table, "--schema-version", "v1", workspace=folder)["total"] == 20
    counted = ("sql", f"SELECT count(*) AS n FROM {table}")
    assert penstock(*counted, workspace=folder).returncode == 2
    assert answer(*counted, "--schema-version", f"{table}=v2", workspace=folder)["items"] == [{"n": 10}]
    frame = later.data.spark_sql(counted[1], spark, schema_versions={table: "v1"}).read_all()
    assert frame.to_pylist() == [{"n": 20}]

    # History moves: the old table is empty, and everything is read in the new version.
    moved = [key(number, day) for number in (1, 2) for day in ("2024-06-09", "2024-06-10")]
    run(later, spark, *moved, reprocess=True)
    run(later, spark)
    assert later.data.vouched(table).spark(spark).where("label LIKE 'text %'").count() == 30
    assert answer(*counted, workspace=folder)["items"] == [{"n": 30}]
    assert {row["logical_date"].day for row in later.data.vouched("models.pair").arrow().to_pylist()} == {9, 10, 11}
