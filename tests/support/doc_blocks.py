"""The named blocks of code in documentation pages: a fence with a language and a file name."""

from __future__ import annotations

import re
from pathlib import Path

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
_BLOCK = re.compile(r"^( *)```(\w+)(?: (\S+))?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    """Every block of a language, without the indentation of the list that it is part of."""
    return [
        re.sub(f"^{indent}", "", body, flags=re.MULTILINE)
        for indent, kind, _, body in _BLOCK.findall(page.read_text())
        if kind == language
    ]


def files(page: Path) -> dict[str, str]:
    """The blocks that name a file, by its name."""
    return {name: body for _, _, name, body in _BLOCK.findall(page.read_text()) if name}
