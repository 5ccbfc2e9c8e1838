"""The commits of a Delta table after one version, read from its log. Only JSON commits are read, no checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import orjson

from penstock.errors import WarehouseError
from penstock.lake import Lake

PUBLICATION = "penstock/pub/"  # and the id of the batch, a ULID: later ones are larger
_PAGE = 64  # commits that are requested at once


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of a table: which publications it records, and whether it adds or removes files."""

    version: int
    publications: tuple[str, ...]
    changes_files: bool

    @classmethod
    def parse(cls, version: int, data: bytes, path: str) -> Self:
        try:
            actions: list[dict[str, Any]] = [orjson.loads(line) for line in data.splitlines() if line.strip()]
            names = [str(action["txn"]["appId"]) for action in actions if "txn" in action]
            changes = any("add" in action or "remove" in action for action in actions)
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise WarehouseError(f"the Delta log entry {path} cannot be read: {error}") from error
        marks = tuple(name.removeprefix(PUBLICATION) for name in names if name.startswith(PUBLICATION))
        return cls(version, marks, changes)


def commits_after(lake: Lake, location: str, version: int, until: int | None = None) -> Iterator[Commit]:
    """The commits with a higher version, in order, up to `until` or to the first version that has no log entry. A
    missing entry before `until` counts as a commit that changes files and names no publication."""
    first, size = version + 1, 1
    while until is None or first <= until:
        last = first + size - 1 if until is None else min(first + _PAGE - 1, until)
        paths = [log_path(location, number) for number in range(first, last + 1)]
        for number, path, data in zip(range(first, last + 1), paths, lake.read_many(paths), strict=True):
            if data is not None:
                yield Commit.parse(number, data, path)
            elif until is None:
                return
            else:  # nobody can say what this version changed
                yield Commit(number, (), changes_files=True)
        first, size = last + 1, min(2 * size, _PAGE)  # usually there is none, rarely there are many


def log_path(location: str, version: int) -> str:
    return f"{location}/_delta_log/{version:020d}.json"


def table_locations(lake: Lake) -> set[str]:
    """The folders of all Delta tables in the warehouse of a lake."""
    mark = "/_delta_log/"
    return {entry.path.partition(mark)[0] for entry in lake.list("warehouse") if mark in entry.path}
