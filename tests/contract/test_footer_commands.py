"""The command at the end of a page exists, with its options."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from starlette.testclient import TestClient

from penstock.cli.main import app
from penstock.http.routes import Route
from support import builders
from support.api import served
from support.console_site import ConsoleHouse, subjects_of
from support.page_routes import SHOWN, address_of, route_id


@pytest.fixture(scope="module")
def house() -> Iterator[ConsoleHouse]:
    with builders.quick_folder() as folder:
        made = ConsoleHouse(Path(folder))
        made.fill()
        yield made
        made.live.close()
        made.workspace.close()


@pytest.fixture(scope="module")
def subjects(house: ConsoleHouse) -> dict[str, str]:
    return subjects_of(house)


@pytest.fixture(scope="module")
def pages(house: ConsoleHouse) -> Iterator[TestClient]:
    with served(house.live) as client:
        yield client


def unknown_parts(command: str) -> list[str]:
    """The words that are no command, and the options that the command does not have."""
    found: Any = typer.main.get_command(app)
    program, *words = command.split()
    wrong = [] if program == "penstock" else [program]
    while words and hasattr(found, "commands"):
        name = words.pop(0)
        if name not in found.commands:
            return [*wrong, name]
        found = found.commands[name]
    known = {option for parameter in found.params for option in parameter.opts}
    return wrong + [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]


def test_unknown_commands_and_options_are_noticed() -> None:
    assert unknown_parts("penstock control breaker close") == ["breaker"]
    assert unknown_parts("penstock status --colour red") == ["--colour"]
    assert unknown_parts("penstock state retry --dry-run") == []


@pytest.mark.parametrize("route", SHOWN, ids=route_id)
def test_the_command_of_a_page_exists(pages: TestClient, subjects: dict[str, str], route: Route) -> None:
    shown = pages.get(address_of(route, subjects))
    assert shown.status_code == 200, shown.text
    for command in re.findall(r'<code id="command">(.*?)</code>', shown.text, re.DOTALL):
        assert unknown_parts(html.unescape(command)) == []
