"""Remembers the counts of a status board: they change only with a new manifest, another configuration, or time.

The manifest and its files never change, so their names stand for their content; sizes and times of the files are
compared as well, so that a damaged file is noticed as without the cache. Time matters in two ways. The days that are
over are part of the expected ranges, and so of the name of an entry. A partition becomes late by itself: an entry is
valid from the time of its computation to the first moment at which another partition becomes late.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from penstock import __version__
from penstock.expected import ExpectedRange
from penstock.html import fragment, paragraph, table
from penstock.projections.current import Current
from penstock.projections.staleness import Policy, expected_rows, microseconds, policy_rows, window_rows
from penstock.user_cache import UserCache

_FORMAT = 1


class StatusCounts(NamedTuple):
    """The number of partitions by group and displayed status, and by flag."""

    rows: list[dict[str, Any]]
    flags: dict[str, int]

    def _repr_html_(self) -> str:
        columns = list(self.rows[0]) if self.rows else []
        flags = ", ".join(f"{number:,} {name}" for name, number in self.flags.items())
        return fragment(
            "partitions by status",
            table(columns, (list(row.values()) for row in self.rows)),
            paragraph(f"flags: {flags}") if flags else "",
        )


def status_counts(
    cache: UserCache,
    current: Current,
    expected: Sequence[ExpectedRange],
    policies: Sequence[Policy],
    now: datetime,
    groups: Sequence[str],
    withdrawn: Sequence[tuple[Any, ...]] | None = None,
) -> StatusCounts:
    """The counts of a board of these inputs, from the cache if they are there."""
    name = _entry_name(current, expected, policies, withdrawn, groups)
    if name is not None and (known := _recall(cache, name, now)) is not None:
        return known
    from penstock.projections.status_board import Board

    board = Board(current, expected, policies, now, withdrawn=withdrawn)
    found = StatusCounts(board.counts(groups), board.flags())
    if name is not None:
        _remember(cache, name, found, now, board.next_deadline())
    return found


def _entry_name(
    current: Current,
    expected: Sequence[ExpectedRange],
    policies: Sequence[Policy],
    withdrawn: Sequence[tuple[Any, ...]] | None,
    groups: Sequence[str],
) -> str | None:
    """The name of the entry for these inputs of a board. None if the counts cannot be cached: events are newer than the
    files, or the files are not local."""
    paths = None if current.news else current.files_by_path()
    if paths is None:
        return None
    try:
        code, stats = _code(), [(path, os.stat(address)) for path, address in sorted(paths.items())]
    except OSError:  # the board reports a missing file
        return None
    inputs = [
        (_FORMAT, __version__, code, current.owner, current.lake.url, list(current.manifest.cursor)),
        [(path, found.st_ino, found.st_size, found.st_mtime_ns) for path, found in stats],
        expected_rows(expected),
        policy_rows(policies),
        window_rows(policies),
        withdrawn,
        list(groups),
    ]
    return f"status-{hashlib.sha256(orjson.dumps(inputs, default=str)).hexdigest()[:48]}"


def _recall(cache: UserCache, name: str, now: datetime) -> StatusCounts | None:
    """The counts of an entry that is valid now; None if there is none."""
    data = cache.read(name)
    if data is None:
        return None
    try:
        entry = orjson.loads(data)
        since, until, moment = entry["since"], entry["until"], microseconds(now)
        if moment < since or (until is not None and moment > until):
            return None
        return StatusCounts(list(entry["rows"]), dict(entry["flags"]))
    except (ValueError, KeyError, TypeError):
        return None


def _remember(cache: UserCache, name: str, counts: StatusCounts, now: datetime, until: int | None) -> None:
    """Store counts that were computed for `now` and hold until a moment, in microseconds; None: for ever."""
    entry = {"since": microseconds(now), "until": until, "rows": counts.rows, "flags": counts.flags}
    cache.write(name, orjson.dumps(entry))


def _code() -> list[tuple[str, int, int]]:
    """Identifies the code that computes a board."""
    folder = os.path.dirname(__file__)
    names = ("status_board.py", "staleness.py", "status_columns.py", "status_cache.py")
    stats = [(name, os.stat(os.path.join(folder, name))) for name in names]
    return [(name, found.st_size, found.st_mtime_ns) for name, found in stats]
