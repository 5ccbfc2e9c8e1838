"""A whole run on S3-compatible storage, through the command line: no Hadoop jar, no local path."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.app import load_workspace
from penstock.control.select import Selection
from support.cli import answer, penstock
from support.workspaces import rows_by_partition, write_workspace

TABLE = "demo.campaign_daily"


@pytest.mark.damages_workspace("deletes data files of the warehouse at its end")
def test_a_slice_travels_from_source_to_reader_on_s3(tmp_path: Path, s3_url: str) -> None:
    yesterday = (datetime.now(UTC).date() - timedelta(days=1)).isoformat()
    clicks = "SELECT logical_date, collect_list(clicks) AS clicks FROM demo.campaign_daily GROUP BY logical_date"
    folder = write_workspace(
        tmp_path,
        customers=3,
        lake=f"{s3_url}/whole-way",
        query={"start_date": yesterday},
        models={"clicks": {"code": clicks, "depends_on": [TABLE]}},
    )
    assert penstock("db", "migrate", workspace=folder).returncode == 0
    first = answer("run", workspace=folder)
    assert (first["accepted"], first["loaded"], first["failures"]) == (4, 4, [])
    ws = load_workspace(folder)
    assert {len(rows) for rows in rows_by_partition(ws).values()} == {5}
    assert answer("run", "--reprocess", workspace=folder)["loaded"] == 4
    [derived] = answer("sql", "SELECT len(clicks) AS n FROM models.clicks", workspace=folder)["items"]
    assert derived == {"n": 15}
    assert answer("sql", f"SELECT count(*) AS n FROM {TABLE}", workspace=folder)["items"] == [{"n": 15}]
    assert len(answer("read", TABLE, "--spark", workspace=folder)["items"]) == 15
    assert answer("status", workspace=folder)["counts"] == {"materialized": 4}
    assert answer("warehouse", "verify", workspace=folder)["total"] == 0
    assert answer("snapshot", "then", workspace=folder)["tables"][0]["table"] == f"{TABLE}.v1"
    assert len(answer("read", TABLE, "--as-of", "then", workspace=folder)["items"]) == 15
    assert answer("warehouse", "vacuum", "--dry-run", workspace=folder)["files"] == 0
    assert answer("ledger", "rebuild", workspace=folder)["events"] > 0
    assert [row["n"] for row in ws.status.board(Selection()).counts([])] == [4]
    assert not (tmp_path / "lake").exists()

    # The AWS SDK inside pyarrow writes its log to file descriptor 1, and logs more for a failing request.
    asked = ("sql", f"SELECT count(*) AS n FROM {TABLE}", "--json")
    loud = penstock(*asked, workspace=folder, ARROW_S3_LOG_LEVEL="DEBUG")
    assert json.loads(loud.stdout) == {"items": [{"n": 15}], "total": 1}
    assert "[DEBUG]" in loud.stderr
    assert penstock(*asked, workspace=folder).stderr == ""
    for entry in ws.context.lake.list("warehouse"):
        if entry.path.endswith(".parquet"):
            ws.context.lake.delete([entry.path])
    for command in (asked, ("read", TABLE, "--json")):
        failed = penstock(*command, workspace=folder, ARROW_S3_LOG_LEVEL="DEBUG")
        assert (failed.returncode != 0, failed.stdout) == (True, "")
        assert "[DEBUG]" in failed.stderr
