"""Rules that every command follows: its options, its pages, and that a preview changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from penstock.app import load_workspace
from penstock.cli.main import app
from penstock.db.schema import metadata
from support import long_names
from support.builders import everything
from support.cli import penstock
from support.long_names import QUERY, LongNames
from support.workspaces import write_workspace

# --- options: which rule applies to which command -------------------------------------------------------------------

PROMISES: dict[str, set[str]] = {
    "workspace": {"--workspace"},
    "answers": {"--json", "--debug"},
    "filters": {"KEY", "--source", "--customer", "--query", "--date", "--since", "--until", "--status"},
    "slice": {"--customer", "--date", "--since", "--until"},  # of one table, which is an argument
    "pages": {"--limit", "--after"},
    "limit": {"--limit"},  # shows the first affected items or rows
    "previews": {"--dry-run"},
    "audited": {"--actor"},
    "confirms": {"--yes", "--force"},
}

# A new command fails the test until it is listed here. `audited` are manual acts on the state of partitions, backfills,
# runs and files; commands that only prepare the machine or run by themselves have no actor.
COMMANDS: dict[str, str] = {
    "init": "answers",
    "source new": "answers",
    "doctor": "workspace answers",
    "customers list": "workspace answers pages",
    "customers sync": "workspace answers previews audited confirms",
    "run": "workspace answers filters limit previews audited confirms",
    "runs list": "workspace answers pages",
    "runs show": "workspace answers",
    "runs resume": "workspace answers audited",
    "runs cancel": "workspace answers previews audited",
    "validate": "workspace answers filters previews audited confirms",
    "state inspect": "workspace answers filters pages",
    "state history": "workspace answers",
    "state retry": "workspace answers filters previews audited confirms",
    "state terminal": "workspace answers filters pages",
    "state mark-terminal": "workspace answers filters previews audited confirms",
    "state clear-terminal": "workspace answers filters previews audited confirms",
    "state pause": "workspace answers filters previews audited confirms",
    "state resume": "workspace answers filters previews audited confirms",
    "state demote": "workspace answers previews audited",
    "state pauses": "workspace answers pages",
    "state rollback": "workspace answers previews audited",
    "state approve": "workspace answers previews audited",
    "status": "workspace answers filters",
    "top": "workspace answers",
    "missing": "workspace answers filters pages",
    "failed": "workspace answers filters pages",
    "stale": "workspace answers filters pages",
    "why": "workspace answers",
    "backfill create": "workspace answers previews audited confirms",
    "backfill list": "workspace answers pages",
    "backfill show": "workspace answers",
    "backfill pause": "workspace answers previews audited",
    "backfill resume": "workspace answers previews audited",
    "backfill cancel": "workspace answers previews audited",
    "backfill retry-failed": "workspace answers previews audited confirms",
    "control tick": "workspace answers",
    "control serve": "workspace answers",
    "control breakers": "workspace answers",
    "control quota": "workspace answers",
    "control close-breaker": "workspace answers previews audited",
    "serve": "workspace",
    "tokens create": "workspace answers audited",
    "tokens list": "workspace answers",
    "alerts list": "workspace answers",
    "alerts test": "workspace answers",
    "tokens revoke": "workspace answers audited",
    "tokens logout": "workspace answers audited",
    "warehouse pointers": "workspace answers filters pages",
    "warehouse loads": "workspace answers filters pages",
    "warehouse reconcile": "workspace answers limit previews audited",
    "warehouse compact": "workspace answers previews audited",
    "warehouse vacuum": "workspace answers previews audited",
    "warehouse verify": "workspace answers",
    "backup": "workspace answers",
    "recover": "workspace answers previews audited confirms",
    "read": "workspace answers slice limit",
    "sql": "workspace answers limit",
    "snapshot": "workspace answers audited",
    "ready": "workspace answers slice",
    "late": "workspace answers",
    "raw list": "workspace answers",
    "raw read": "workspace answers limit audited",
    "raw gc": "workspace answers previews audited confirms",
    "contract check": "answers",
    "contract infer": "workspace answers",
    "contract show": "workspace answers",
    "contract export": "workspace answers",
    "contract import": "answers",
    "ledger tail": "workspace answers pages",
    "ledger rebuild": "workspace answers",
    "ledger export": "workspace answers previews audited",
    "lineage emit": "workspace answers",
    "dbt sources": "workspace answers",
    "audit list": "workspace answers pages",
    "db migrate": "workspace answers",
    "db roles": "workspace answers previews",
    "spark prepare": "answers",
}


def commands(path: str = "", command: Any = None) -> Iterator[tuple[str, Any]]:
    command = command or typer.main.get_command(app)
    for name, child in command.commands.items():
        if hasattr(child, "commands"):
            yield from commands(f"{path}{name} ", child)
        else:
            yield f"{path}{name}", child


def options_of(command: Any) -> set[str]:
    named = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
    takes_keys = any("KEY" in (p.metavar or "") for p in command.params if p.param_type_name == "argument")
    return named | ({"KEY"} if takes_keys else set())


def test_every_command_is_classified() -> None:
    assert {path for path, _ in commands()} == set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_the_options_that_it_promises(path: str) -> None:
    command = dict(commands())[path]
    promised = {option for name in COMMANDS[path].split() for option in PROMISES[name]}
    assert promised - options_of(command) == set()
    assert [p.name for p in command.params if not p.help and p.name != "help"] == []


@pytest.mark.parametrize("path", COMMANDS)
def test_every_number_has_a_smallest_and_a_largest_value(path: str) -> None:
    numbers = [p for p in dict(commands())[path].params if p.type_descriptor.annotation in (int, float)]
    assert [p.name for p in numbers if p.min is None or p.max is None] == []


# --- pages ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> LongNames:
    return long_names.make(tmp_path_factory.mktemp("promises"))


def invoke(names: LongNames, *arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*arguments, "--workspace", str(names.folder)], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.stdout


def answer(names: LongNames, *arguments: str, code: int = 0) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(invoke(names, *arguments, "--json", code=code))
    return document


PAGED = sorted(path for path, promises in COMMANDS.items() if "pages" in promises)


@pytest.mark.parametrize("path", PAGED)
def test_pages_of_one_row_together_are_the_whole_list(names: LongNames, path: str) -> None:
    start = ("--after", "0") if path == "ledger tail" else ()  # without it: the newest events, and no more
    whole = answer(names, *path.split(), *start, "--limit", "1000")
    assert (whole["total"], whole["next"]) == (len(whole["items"]), None)
    assert whole["total"] >= 2
    found: list[dict[str, Any]] = []
    while True:
        page = answer(names, *path.split(), *start, "--limit", "1")
        assert page["total"] == whole["total"]
        found += page["items"]
        if page["next"] is None:
            break
        if path != "missing":  # shows ranges of days
            assert f"--after {page['next']}" in invoke(names, *path.split(), *start, "--limit", "1")
        start = ("--after", page["next"])
    assert found == whole["items"]


def test_totals_count_every_match_and_not_only_the_rows_shown(names: LongNames) -> None:
    assert answer(names, "audit", "list", "--limit", "1")["total"] >= 7
    run = str(names.failed_run)
    events = answer(names, "ledger", "tail", "--limit", "1000")["total"]
    of_run = answer(names, "ledger", "tail", "--run", run, "--limit", "1000")["total"]
    assert 1 < of_run < events
    assert answer(names, "ledger", "tail", "--run", run, "--limit", "1")["total"] == of_run
    [newest] = answer(names, "ledger", "tail", "--limit", "1")["items"]
    assert newest == answer(names, "ledger", "tail", "--limit", "1000")["items"][-1]


def test_a_page_after_something_unknown_is_refused(names: LongNames) -> None:
    done = CliRunner().invoke(app, ["backfill", "list", "--after", "x", "--workspace", str(names.folder)])
    assert "there is no backfill x" in str(done.exception)
    done = CliRunner().invoke(app, ["customers", "list", "--after", "x", "--workspace", str(names.folder)])
    assert "there is no such customer" in str(done.exception)


# --- previews ---------------------------------------------------------------------------------------------------------

PREVIEWS = (
    "run",
    "validate",
    "runs cancel {open_run}",
    "state retry",
    "state mark-terminal",
    "state clear-terminal",
    "state pause",
    "state resume",
    "state demote {served} --reason x",
    "state rollback {served} --to {loaded_run}",
    "backfill create --reprocess",
    "backfill pause {backfill}",
    "backfill cancel {backfill}",
    "backfill retry-failed {backfill}",
    "control close-breaker google_ads",
    "warehouse reconcile",
    "warehouse compact",
    "warehouse vacuum",
    "raw gc",
    "ledger export",
)


def test_every_preview_is_tried() -> None:
    tried = {" ".join(command.split()[:2]) for command in PREVIEWS} | {command.split()[0] for command in PREVIEWS}
    others = {"customers sync", "state approve", "backfill resume", "recover", "db roles"}
    assert {path for path, promises in COMMANDS.items() if "previews" in promises} - tried == others


@pytest.mark.parametrize("command", PREVIEWS)
def test_a_preview_changes_nothing_in_the_state(names: LongNames, command: str) -> None:
    facts = {name: str(getattr(names, name)) for name in LongNames.__slots__}
    database = load_workspace(names.folder).context.database
    tables = [table for table in metadata.sorted_tables if table.name != "projection_head"]  # follows from the rest
    before = everything(database, tables)
    assert answer(names, *command.format(**facts).split(), "--dry-run")["dry_run"] is True
    assert everything(database, tables) == before


def test_a_status_narrows_marks_and_rechecks(names: LongNames) -> None:
    def found(command: str, status: str) -> set[str]:
        document = answer(names, *command.split(), "--status", status, "--dry-run")
        return {item["key"] for item in document["items"] if item["key"].endswith(day)}

    keys = {name: str(getattr(names, name)) for name in ("served", "terminal", "failed", "missing")}
    for name, status in (("served", "success"), ("failed", "failed"), ("missing", "pending")):
        day = keys[name][-10:]
        assert keys[name] in found("state pause", status)
        for other in {"success", "failed", "pending"} - {status}:
            assert found("state pause", other) == set()
    day = keys["served"][-10:]
    assert keys["served"] in found("validate", "success")
    assert found("validate", "failed") == set()
    day = keys["failed"][-10:]
    assert keys["failed"] in found("state mark-terminal", "failed")
    assert found("state mark-terminal", "success") == set()
    assert answer(names, "state", "terminal", "--status", "failed")["total"] == 2
    assert answer(names, "state", "terminal", "--status", "success")["total"] == 0


def test_each_round_of_the_loop_is_a_line_of_json(tmp_path: Path) -> None:
    tomorrow = (datetime.now(UTC) + timedelta(days=2)).date().isoformat()
    folder = write_workspace(tmp_path, query={"start_date": tomorrow}, control={"every": "1s"})  # nothing is due
    assert penstock("db", "migrate", workspace=folder).returncode == 0
    done = penstock("control", "serve", "--rounds", "2", "--json", workspace=folder)
    assert (done.returncode, [json.loads(line)["planned"] for line in done.stdout.splitlines()]) == (0, [0, 0])
    assert "round.finished" in done.stderr
    assert penstock("control", "serve", "--rounds", "1", workspace=folder).stdout == ""


def test_a_reconciliation_is_in_the_audit_log_with_its_actor(names: LongNames) -> None:
    before = answer(names, "audit", "list")["total"]
    answer(names, "warehouse", "reconcile", "--actor", "kim")  # nothing differs, so it starts no Spark
    [newest] = answer(names, "audit", "list", "--limit", "1")["items"]
    assert (newest["command"], newest["actor"]) == ("warehouse reconcile", "kim")
    assert answer(names, "audit", "list")["total"] == before + 1


def test_compaction_is_previewed_without_spark(names: LongNames) -> None:
    [item] = answer(names, "warehouse", "compact", "--dry-run")["items"]
    assert item["table"] == f"google_ads.{QUERY}.v1"
    assert item["files_before"] >= item["files_after"]


def test_a_run_names_what_takes_up_again_what_an_operator_gave_up(names: LongNames) -> None:
    said = " ".join(invoke(names, "run", str(names.terminal)).split())
    assert "1 partition failed for good: `penstock state terminal`, then `penstock state retry`" in said
    assert "those that an operator marked need `penstock state clear-terminal` before it" in said
    refused = answer(names, "state", "retry", str(names.terminal), "--dry-run", code=1)
    assert refused["terminal"] == [str(names.terminal)]
