"""Items of a workspace document that is not validated yet: named sections and lists of strings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.config.file import Document


def named_sections(document: Document, section: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the named maps of a section such as `queries`; the models refuse other values."""
    for name, body in document.values.get(section, {}).items():
        if isinstance(body, dict):
            yield name, body


def strings(items: object, key: str | None = None) -> Iterator[str]:
    """Yield the strings in a list, or under a key of the maps in it; the models refuse anything else."""
    for _, text in numbered_strings(items, key):
        yield text


def numbered_strings(items: object, key: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield the same strings as `strings`, with their positions in the list."""
    for index, item in enumerate(items if isinstance(items, list) else ()):
        text = item if key is None else item.get(key) if isinstance(item, dict) else None
        if isinstance(text, str):
            yield index, text
