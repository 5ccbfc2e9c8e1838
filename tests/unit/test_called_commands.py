"""Which modules a call imports, and that the commands are the same as in the whole command line."""

from __future__ import annotations

from typing import Any

import pytest
import typer.main

from penstock.cli.commands import MODULES, called_module
from penstock.cli.main import app, make_app
from support.cli import penstock


def shape(command: Any) -> Any:
    """The names, options and help of a command and of the commands below it."""
    below = {name: shape(child) for name, child in getattr(command, "commands", {}).items()}
    return command.help, [(p.name, p.opts, getattr(p, "help", None), p.required) for p in command.params], below


@pytest.mark.parametrize("module", MODULES)
def test_every_command_is_registered_by_its_module_alone(module: str) -> None:
    whole, alone = typer.main.get_command(app), typer.main.get_command(make_app(module))
    assert set(alone.commands) == set(MODULES[module])  # type: ignore[attr-defined]
    for name in MODULES[module]:
        assert shape(alone.commands[name]) == shape(whole.commands[name])  # type: ignore[attr-defined]
    assert shape(alone)[:2] == shape(whole)[:2]


def test_the_whole_command_line_has_the_commands_of_all_modules() -> None:
    whole = typer.main.get_command(app)
    assert sorted(whole.commands) == sorted(name for names in MODULES.values() for name in names)  # type: ignore[attr-defined]


def test_help_completion_and_unknown_commands_need_all_modules() -> None:
    assert called_module(["status", "--json"], {}) == "status"
    assert called_module(["failed", "--help"], {}) == "partitions"
    for arguments in ([], ["--help"], ["--version"], ["stats"], ["--show-completion"], ["--workspace", "status"]):
        assert called_module(arguments, {}) is None
    assert called_module(["status"], {"_PENSTOCK_COMPLETE": "complete_bash"}) is None
    assert called_module(["status"], {"PATH": "x", "_": "y"}) == "status"


def test_an_unknown_command_is_refused_with_the_closest_one() -> None:
    done = penstock("statu")
    assert done.returncode == 2
    assert "No such command 'statu'" in done.stderr
    assert "status" in done.stderr
