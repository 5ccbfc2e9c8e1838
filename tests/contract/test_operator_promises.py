"""Guarantees of operator commands: backfills, copies and exit codes. In this process, without Spark."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from penstock.cli.main import app
from penstock.db import schema
from support import builders
from support.cli import penstock
from support.harness import Harness
from support.workspaces import key, write_workspace


@pytest.fixture
def house() -> Iterator[Harness]:
    with builders.quick_folder() as folder:
        made = Harness(Path(folder))
        yield made
        made.workspace.context.database.close()


def typed(house: Harness, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--workspace", str(house.folder)])


def told(house: Harness, *arguments: str) -> dict[str, Any]:
    done = typed(house, *arguments, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def backfills(house: Harness) -> list[dict[str, Any]]:
    return builders.everything(house.workspace.context.database, [schema.backfill])["backfill"]


def test_a_backfill_is_listed_and_cancelled(house: Harness) -> None:
    made = told(house, "backfill", "create", "--date", "2024-06-09")
    [listed] = told(house, "backfill", "list")["items"]
    assert (listed["backfill_id"], listed["status"], listed["total"]) == (made["backfill_id"], "active", 9)
    assert told(house, "backfill", "cancel", made["backfill_id"], "--actor", "ada")["status"] == "cancelled"
    assert [row["status"] for row in backfills(house)] == ["cancelled"]
    newest = next(iter(house.workspace.context.state.audit()))
    assert (newest["actor"], newest["command"], newest["affected"]) == ("ada", "backfill cancel", 1)


def test_a_backup_and_a_recovery_are_commands(house: Harness) -> None:
    house.deliver({key(1): 1})
    house.publish()
    copy = told(house, "backup", str(house.folder / "copy"))
    assert (copy["partitions"], Path(copy["file"]).exists()) == (1, True)
    house.deliver({key(2): 2})
    house.publish()
    assert told(house, "recover")["items"] == []
    with sqlite3.connect(copy["file"]) as source, sqlite3.connect(house.folder / "state.db") as target:
        source.backup(target)
    source.close()
    target.close()
    reported = typed(house, "recover", "--json")
    assert reported.exit_code == 1
    assert [item["table"] for item in json.loads(reported.stdout)["items"]] == ["demo.campaign_daily.v1"]
    before = builders.everything(house.workspace.context.database)
    told(house, "recover", "--from", "lake", "--dry-run")
    assert builders.everything(house.workspace.context.database) == before
    told(house, "recover", "--from", "lake", "--actor", "ada")
    assert house.clicks() == {key(1): {1}, key(2): {2}}
    newest = next(iter(house.workspace.context.state.audit()))
    assert (newest["actor"], newest["command"]) == ("ada", "recover")


def test_a_database_that_is_away_ends_a_command_with_75(tmp_path: Path) -> None:
    folder = write_workspace(tmp_path, state="postgresql+psycopg://nobody@127.0.0.1:1/none")
    ended = penstock("state", "inspect", workspace=folder)
    assert (ended.returncode, ended.stdout) == (75, "")
    assert "(try again later)" in ended.stderr
    assert "Traceback" not in ended.stderr
