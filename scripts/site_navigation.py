"""MkDocs hook: replaces `folder/*.md` in the navigation by the pages of the folder that no other entry names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    docs = Path(config["docs_dir"])
    named = {page for page in _pages(config["nav"]) if "*" not in page}
    config["nav"] = [_expanded(entry, docs, named) for entry in config["nav"]]
    return config


def _pages(entry: Any) -> Iterator[str]:
    """Yields each page path or pattern below an entry: a path, a titled entry, or a list of entries."""
    if isinstance(entry, str):
        yield entry
        return
    for child in entry.values() if isinstance(entry, dict) else entry:
        yield from _pages(child)


def _expanded(entry: Any, docs: Path, named: set[str]) -> Any:
    if isinstance(entry, dict):
        return {title: _expanded(child, docs, named) for title, child in entry.items()}
    if isinstance(entry, list):
        return [_expanded(child, docs, named) for child in entry]
    if "*" not in entry:
        return entry
    return sorted(path for page in docs.glob(entry) if (path := page.relative_to(docs).as_posix()) not in named)
