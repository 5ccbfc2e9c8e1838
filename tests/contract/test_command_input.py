"""Unusual input of commands: very long numbers, bytes that are not text, text that looks like markup."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.cli.options import LAST_ID, MOST_LINES
from penstock.clock import MAX_DURATION
from penstock.config.values import duration
from penstock.control.breaker import observed
from penstock.control.select import Selection
from penstock.errors import UsageError
from penstock.partition import new_ulid
from penstock.state.records import Observation
from support import builders
from support.cli import in_process, penstock
from support.harness import Harness
from support.workspaces import key

TABLE = "demo.campaign_daily"
KEY = str(key(1))
ENDLESS = "99999999999999999999"


@pytest.fixture
def house() -> Iterator[Harness]:
    with builders.quick_folder() as folder:
        made = Harness(Path(folder))
        made.deliver({key(1): 1, key(2): 2})
        made.publish()
        yield made
        made.workspace.context.database.close()


# --- numbers ---------------------------------------------------------------------------------------------------------

# Each command that takes a number, without the number, and the largest number that it takes.
NUMBERS: dict[tuple[str, ...], int] = {
    ("audit", "list", "--after"): LAST_ID,
    ("audit", "list", "--limit"): MOST_LINES,
    ("ledger", "tail", "--after"): LAST_ID,
    ("ledger", "tail", "--limit"): MOST_LINES,
    ("backfill", "list", "--limit"): MOST_LINES,
    ("customers", "list", "--limit"): MOST_LINES,
    ("runs", "list", "--limit"): MOST_LINES,
    ("state", "inspect", "--limit"): MOST_LINES,
    ("state", "terminal", "--limit"): MOST_LINES,
    ("failed", "--limit"): MOST_LINES,
    ("missing", "--limit"): MOST_LINES,
    ("stale", "--limit"): MOST_LINES,
    ("run", "--plan", "--limit"): MOST_LINES,
    ("warehouse", "pointers", "--limit"): MOST_LINES,
    ("warehouse", "loads", "--limit"): MOST_LINES,
    ("warehouse", "reconcile", "--dry-run", "--limit"): MOST_LINES,
    ("raw", "read", KEY, "--limit"): MOST_LINES,
    ("read", TABLE, "--limit"): MOST_LINES,
    ("read", TABLE, "--format", "csv", "--limit"): MOST_LINES,
    ("sql", f"SELECT * FROM {TABLE}", "--limit"): MOST_LINES,
    ("ledger", "export", "--dry-run", "--older-than"): MAX_DURATION.days,
}


def test_a_number_beyond_its_range_is_refused_as_wrong_usage_and_the_largest_one_is_taken(
    house: Harness,
) -> None:
    for command, largest in NUMBERS.items():
        for number in (ENDLESS, f"{largest + 1}"):
            refused = in_process(*command, number, workspace=house.folder)
            assert (refused.code, refused.stdout) == (2, ""), command
            message = " ".join(refused.stderr.replace("│", " ").split())
            assert f"Invalid value for '{command[-1]}': Input should be less than or equal to {largest} " in message
        taken = in_process(*command, f"{largest}", workspace=house.folder)
        assert taken.code == 0, (command, taken.stderr)


@pytest.mark.parametrize("backend", builders.BACKENDS)
def test_both_databases_take_the_largest_numbers(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    state, schema = None, None
    if backend == "postgresql":
        state, schema = request.getfixturevalue("postgres_url"), f"t_{new_ulid().lower()}"
    ws = Harness(tmp_path, state=state, schema=schema).workspace
    ws.context.note(builders.audit_entry(), 1, "done")
    assert len(ws.context.state.audit(MOST_LINES + 1, after=LAST_ID)) == 1
    assert ws.context.ledger.tail(MOST_LINES + 1, after=LAST_ID) == []
    assert ws.context.backfills.page(MOST_LINES + 1, None) == ([], 0)
    assert len(ws.context.state.views(ws.context.ranges(Selection()), limit=MOST_LINES + 1)) == 18
    assert ws.maintenance.garbage(MAX_DURATION) == []
    assert ws.ledger.export(MAX_DURATION.days, actor="ada", dry_run=True)["events"] == 0
    ws.data.take_snapshot("s", MAX_DURATION)
    assert [found.name for found in ws.data.snapshots.all()] == ["s"]
    ws.context.database.close()


LENGTHS: tuple[tuple[str, ...], ...] = (
    ("snapshot", "s", "--expires"),
    ("raw", "gc", "--dry-run", "--older-than"),
    ("warehouse", "vacuum", "--dry-run", "--retention"),
    ("ready", TABLE, "--date", "2024-06-09", "--customer", key(1).customer_id, "--wait"),
)


def test_a_length_of_time_that_leaves_the_calendar_is_refused_as_wrong_usage(house: Harness) -> None:
    for command in LENGTHS:
        for length in ("99999999d", "365001d", "99999999999999999999s", "9" * 5000 + "d"):
            refused = in_process(*command, length, workspace=house.folder)
            assert (refused.code, refused.stdout) == (2, ""), command
            assert length in refused.stderr
        taken = in_process(*command, "365000d", workspace=house.folder)
        assert taken.code == 0, (command, taken.stderr)


def test_the_longest_time_of_a_command_is_named_when_it_is_exceeded() -> None:
    assert duration("365000d") == MAX_DURATION
    with pytest.raises(UsageError, match=r"^'365001d' is too long: at most 365000d$"):
        duration("365001d")
    assert datetime.now(UTC) - MAX_DURATION < datetime.now(UTC) < datetime.now(UTC) + MAX_DURATION


# --- text ------------------------------------------------------------------------------------------------------------


def test_an_argument_that_is_no_utf_8_is_wrong_usage_and_changes_nothing(house: Harness) -> None:
    before = builders.everything(house.workspace.context.database)
    broken = os.fsdecode(b"nul\xff")
    for command in (
        ("state", "pause", "--customer", key(1).customer_id, "--reason", broken),
        ("state", "pause", "--customer", key(1).customer_id, f"--reason={broken}"),
        ("state", "demote", KEY, "--reason", "wrong", "--actor", broken),
        ("status", "--source", broken),
        ("sql", f"SELECT '{broken}'"),
        ("why", broken),
    ):
        refused = in_process(*command, workspace=house.folder)
        assert (refused.code, refused.stdout) == (2, "")
        assert r"nul\xff" in refused.stderr
        assert "is not valid UTF-8" in refused.stderr
    assert builders.everything(house.workspace.context.database) == before


def test_a_process_refuses_bytes_that_are_no_utf_8(tmp_path: Path) -> None:
    ended = penstock("status", "--source", os.fsdecode(b"\xff"), workspace=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "penstock: the argument \\xff is not valid UTF-8\n"


@pytest.mark.parametrize("name", ["[/]", "[bold]a", "[red]a[/red]", ":smile:", "a\\", "[link=http://x]"])
def test_a_column_is_shown_by_the_name_that_the_statement_gives_it(house: Harness, name: str) -> None:
    shown = in_process("sql", f'SELECT count(*) AS "{name}" FROM {TABLE}', workspace=house.folder)
    assert shown.code == 0
    assert shown.stdout.split() == [name, "─" * max(len(name), 1), "6"]


MARKUP = "[/] [bold]renew[/bold] :key: C:\\"


def test_reasons_and_errors_are_shown_as_they_are(house: Harness) -> None:
    ws = house.workspace
    ws.context.breakers.change(
        "demo", lambda breaker: observed(breaker, Observation(refused=3, message=MARKUP), datetime.now(UTC))
    )
    assert in_process("state", "pause", KEY, "--reason", MARKUP, workspace=house.folder).code == 0
    assert in_process("state", "demote", str(key(2)), "--reason", MARKUP, workspace=house.folder).code == 0
    for command in (("status",), ("control", "breakers"), ("why", KEY), ("why", str(key(2))), ("state", "inspect")):
        ended = in_process(*command, workspace=house.folder)
        assert ended.code == 0
        assert MARKUP in ended.stdout, command
