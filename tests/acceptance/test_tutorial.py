"""The tutorial works: every command of the page is run in order, and its output is compared with the page."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from support.console_blocks import commands_of, fits, outputs_of

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
_BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Tables are padded with spaces, which editors remove from a page.
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def test_every_command_of_the_tutorial_does_what_the_page_shows(tmp_path: Path) -> None:
    commands: list[tuple[str, str]] = []
    for language, name, body in _BLOCK.findall(PAGE.read_text()):
        if name:
            (tmp_path / name).write_text(body)
        elif language == "console":
            commands += commands_of(body)
    steps = ("init", "run", "status", "why", "sql", "state retry")
    assert [step for step in steps if not any(command.startswith(f"penstock {step}") for command, _ in commands)] == []
    for (command, expected), found in zip(commands, outputs_of(commands, tmp_path, timeout=540), strict=True):
        assert fits(expected, found, _FLAGS), f"{command}\n--- expected\n{expected}\n--- found\n{found}"
