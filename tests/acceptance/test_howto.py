"""The how-to pages work: their files are written, their commands run, their output compared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import sqlalchemy as sa

from support.console_blocks import commands_of, fits, outputs_of
from support.servers import free_port

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
PAGES = [page for page in sorted(HOWTO.glob("*.md")) if "## An example that runs" in page.read_text()]
_BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PORT = "8765"  # of the page's example; the test takes a free one


def test_every_kind_of_source_has_an_example() -> None:
    assert {page.stem for page in PAGES} >= {"sql", "files", "http", "own-source"}


@pytest.fixture
def servers(page: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts the servers whose variables the page uses, and sets the variables."""
    text = page.read_text()
    if "PGHOST" in text:
        url = sa.make_url(request.getfixturevalue("postgres_url"))
        for name, value in {"PGHOST": url.host, "PGPORT": url.port, "PGUSER": url.username}.items():
            monkeypatch.setenv(name, str(value))
    if "PENSTOCK_LAKE" in text:
        monkeypatch.setenv("PENSTOCK_LAKE", f"{request.getfixturevalue('s3_url')}/{page.stem}")


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_example_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    text = page.read_text().replace(_PORT, str(free_port()))
    commands: list[tuple[str, str]] = []
    for language, name, body in _BLOCK.findall(text):
        if name:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(body)
        elif language == "console":
            commands += commands_of(body)
    assert any(command.startswith("penstock run") for command, _ in commands)
    for (command, expected), found in zip(commands, outputs_of(commands, tmp_path), strict=True):
        assert fits(expected, found), f"{command}\n--- expected\n{expected}\n--- found\n{found}"
