"""Output on narrow terminals: no word is cut; rows that do not fit become blocks."""

from __future__ import annotations

import re

import pytest
from rich.console import Console
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.cli.text_tables import table
from penstock.plural import counted
from support import long_names
from support.long_names import QUERY, LongNames

KEY = re.compile(rf"google_ads/\d{{10}}/{QUERY}/\d{{4}}-\d\d-\d\d")
RUN = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
WIDTHS = (200, 80, 60, 40)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> LongNames:
    return long_names.make(tmp_path_factory.mktemp("long"))


def output(names: LongNames, width: int, *arguments: str) -> str:
    done = CliRunner().invoke(
        app, [*arguments, "--workspace", str(names.folder)], env={"COLUMNS": str(width)}, catch_exceptions=False
    )
    assert done.exit_code in (0, 1), done.output
    return done.stdout


# Each command with the text that its output must contain in full.
LISTS: dict[str, tuple[str, ...]] = {
    "state inspect": ("served", "terminal", "failed", "loaded_run"),
    "state terminal": ("terminal",),
    "state retry --dry-run": ("failed", "terminal"),
    "state pause --dry-run": ("served", "terminal", "failed", "missing"),
    "state mark-terminal --dry-run": ("failed",),
    "state clear-terminal --dry-run": ("terminal",),
    "state history {served}": ("served", "loaded_run"),
    "state history {failed}": ("failed", "failed_run"),
    "why {served}": ("served", "loaded_run"),
    "missing": ("terminal", "failed"),
    "failed": ("terminal", "failed"),
    "warehouse pointers": ("served", "loaded_run"),
    "warehouse loads": ("served", "loaded_run"),
    "runs list": ("failed_run",),
    "runs show {failed_run}": ("failed_run", "failed"),
    "raw list {served}": ("loaded_run",),
    "ledger tail --limit 100": ("failed_run", "failed", "terminal"),
    "run --plan": ("missing",),
    "ready google_ads.campaign_performance_daily": ("missing",),
    "read google_ads.campaign_performance_daily": ("loaded_run",),
    "validate --dry-run": ("served",),
    "stale": ("served",),
    "backfill list": ("backfill",),
    "backfill show {backfill}": ("backfill",),
    "backfill cancel {backfill} --dry-run": ("backfill",),
    "run --dry-run": ("missing",),
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("command", LISTS)
def test_every_key_and_run_id_is_whole_on_narrow_terminals(names: LongNames, command: str, width: int) -> None:
    facts = {name: str(getattr(names, name)) for name in LongNames.__slots__}
    shown = output(names, width, *command.format(**facts).split())
    for name in LISTS[command]:
        assert facts[name] in shown, f"{name} is not whole:\n{shown}"
    for word in shown.split():  # also those that the test does not name
        if word.startswith("google_ads/"):
            assert KEY.match(word), shown
        if word.startswith((facts["loaded_run"][:8], facts["failed_run"][:8])):
            assert RUN.match(word), shown
    assert "…" not in shown


def test_a_preview_of_retries_lists_the_partitions(names: LongNames) -> None:
    shown = output(names, 80, "state", "retry", "--dry-run").splitlines()
    assert shown[:2] == ["2 failed partitions would become pending", f"  {names.failed}"]


def drawn(width: int, rows: list[tuple[object, ...]]) -> list[str]:
    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        console.print(table(None, ("partition", "run", "why"), rows), crop=False)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_row_is_a_line_where_it_fits_and_a_block_where_it_does_not() -> None:
    rows: list[tuple[object, ...]] = [("a/b/c", "R" * 26, "the source did not answer"), ("d/e/f", None, "closed")]
    wide = drawn(80, rows)
    assert wide[0].split() == ["partition", "run", "why"]
    assert wide[2] == f"a/b/c      {'R' * 26}  the source did not answer"
    wrapped = drawn(50, rows)
    assert wrapped[2].split() == ["a/b/c", "R" * 26, "the", "source"]
    assert drawn(30, rows) == [
        "partition",
        "─" * 20,
        "a/b/c",
        f"  run  {'R' * 26}",
        "  why  the source did not",
        "       answer",
        "d/e/f",
        "  run  -",
        "  why  closed",
    ]


def test_numbers_agree_with_their_nouns() -> None:
    assert [counted(n) for n in (0, 1, 2, 12_000)] == [
        "0 partitions",
        "1 partition",
        "2 partitions",
        "12,000 partitions",
    ]
    assert counted(1, "partition is", "partitions are") == "1 partition is"
    assert counted(2, "partition is", "partitions are") == "2 partitions are"


def test_one_partition_is_written_in_the_singular(names: LongNames) -> None:
    for command, key in (("state mark-terminal", names.failed), ("state clear-terminal", names.terminal)):
        assert "1 partition would be" in output(names, 200, *command.split(), str(key), "--dry-run")
    assert "1 trusted run would be examined" in output(names, 200, "validate", str(names.served), "--dry-run")
    everything = "\n".join(
        output(names, 200, *command.format(**{n: str(getattr(names, n)) for n in LongNames.__slots__}).split())
        for command in LISTS
    )
    assert (
        re.findall(r"(?<![\d,])1 (?:[a-z]+ )?(?:partitions|runs|rows|files|events|attempts|are|were)\b", everything)
        == []
    )
