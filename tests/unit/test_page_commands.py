"""The commands that pages show: every one of them exists, with the options that the page writes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

import penstock.http.pages
from penstock.cli.main import app
from penstock.control.action_kinds import ActionKind
from penstock.http.pages.command_lines import COMMANDS, command_line

ROOT = typer.main.get_command(app)
FOLDER = Path(str(penstock.http.pages.__file__)).parent
RUN = "01J0000000000000000000000A"
VALUES: dict[str, Any] = {
    "key": ["demo/1000000001/campaign_daily/2024-06-01"],
    "source": "demo",
    "customer": ["1000000001", "1000000002"],
    "query": ["campaign_daily"],
    "since": "2024-06-01",
    "until": "2024-06-02",
    "status": "failed",
    "reason": 'it\'s "wrong"; rm -rf $HOME',
    "run_id": RUN,
    "backfill_id": RUN,
    "table": ["demo.campaign_daily"],
    "reprocess": True,
    "without_raw": True,
    "chunk_size": 10,
    "priority": -1,
    "max_chunks": 2,
}


def parsed(line: str) -> dict[str, Any]:
    """The parameters of a command line. Raises an error for one that the commands refuse."""
    words = shlex.split(line)
    assert words.pop(0) == "penstock"
    command: Any = ROOT
    while hasattr(command, "commands"):
        name = words.pop(0)
        assert name in command.commands, f"{line}: there is no command {name}"
        command = command.commands[name]
    found_parameters: dict[str, Any] = command.make_context("x", words).params
    return found_parameters


@pytest.mark.parametrize("act", ActionKind)
@pytest.mark.parametrize("preview", [False, True])
def test_the_command_of_an_action_is_valid_with_all_its_fields(act: ActionKind, preview: bool) -> None:
    found = parsed(command_line(act, VALUES, preview=preview))
    _, arguments, options = COMMANDS[act]
    texts = repr(found)
    for name in (*arguments, *options):
        value = VALUES[name]
        assert repr(value[0] if isinstance(value, list) else value).strip("'\"")[:8] in texts, name
    if preview and "dry_run" in found:
        assert found["dry_run"] is True


def test_a_field_with_many_values_is_shortened() -> None:
    line = command_line(ActionKind.RETRY, {"customer": [str(number) for number in range(1000)]})
    assert line.count("--customer") == 21
    assert line.endswith("--customer ...")


def test_what_the_form_does_not_name_yet_is_a_placeholder() -> None:
    assert command_line(ActionKind.CANCEL_RUN, {}) == "penstock runs cancel RUN"
    assert command_line(ActionKind.PAUSE, {"key": [], "status": None}) == "penstock state pause"


def test_every_command_that_a_page_names_exists() -> None:
    sources = [*FOLDER.glob("*.py"), *FOLDER.glob("templates/*.html")]
    texts = {text for file in sources for text in re.findall(r"[\"'`>]penstock ((?:[a-z-]+ ?)+)", file.read_text())}
    commands = {text.strip() for text in texts}
    assert len(commands) > 10
    for text in sorted(commands):
        group: Any = ROOT
        for word in text.split():
            if not hasattr(group, "commands"):
                break
            assert word in group.commands, f"penstock {text}"
            group = group.commands[word]
