"""The Delta log as JSON: its commits after a version, its tables, and the statistics that it stores for files.

Only JSON commits are read, no checkpoint, so that nothing here needs delta-rs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from penstock.errors import WarehouseError
from penstock.lake import Lake
from penstock.warehouse.format import Commit, FileStatistics
from penstock.warehouse.layout import FOLDER

PUBLICATION = "penstock/pub/"  # precedes the id of the batch, a ULID: the ids of later batches are larger
_LOG = "_delta_log"
_PAGE = 64  # commits in one request


def parse_commit(version: int, data: bytes, path: str) -> Commit:
    """The commit in a log entry. Raises WarehouseError if the entry is damaged."""
    try:
        actions: list[dict[str, Any]] = [orjson.loads(line) for line in data.splitlines() if line.strip()]
        names = [str(action["txn"]["appId"]) for action in actions if "txn" in action]
        changes = any("add" in action or "remove" in action for action in actions)
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise WarehouseError(f"the Delta log entry {path} cannot be read: {error}") from error
    publications = tuple(name.removeprefix(PUBLICATION) for name in names if name.startswith(PUBLICATION))
    return Commit(version, publications, changes)


def commits_after(lake: Lake, location: str, version: int, until: int | None = None) -> Iterator[Commit]:
    """See `TableFormat.commits_after`."""
    first, size = version + 1, 1
    while until is None or first <= until:
        last = first + size - 1 if until is None else min(first + _PAGE - 1, until)
        paths = [log_path(location, number) for number in range(first, last + 1)]
        for number, path, data in zip(range(first, last + 1), paths, lake.read_many(paths), strict=True):
            if data is not None:
                yield parse_commit(number, data, path)
            elif until is None:
                return
            else:  # the changes of this version cannot be determined
                yield Commit(number, (), changes_files=True)
        first, size = last + 1, min(2 * size, _PAGE)  # usually there is no commit, rarely there are many


def commits_at(lake: Lake, versions: Sequence[tuple[str, int]]) -> list[Commit | None]:
    """See `TableFormat.commits_at`."""
    paths = [log_path(*place) for place in versions]
    return [
        None if data is None else parse_commit(version, data, path)
        for (_, version), path, data in zip(versions, paths, lake.read_many(paths), strict=True)
    ]


def log_path(location: str, version: int) -> str:
    return f"{location}/{_LOG}/{version:020d}.json"


def newest_version(lake: Lake, location: str) -> int:
    """The highest version in the log of a table, by a listing; -1 if the log is empty."""
    numbers = [entry.path.rpartition("/")[2].partition(".")[0] for entry in lake.list(f"{location}/{_LOG}")]
    return max((int(number) for number in numbers if number.isdigit()), default=-1)


def table_locations(lake: Lake) -> set[str]:
    """The folders of all Delta tables in the warehouse of a lake."""
    mark = f"/{_LOG}/"
    return {entry.path.partition(mark)[0] for entry in lake.list(FOLDER) if mark in entry.path}


def delete(lake: Lake, location: str) -> None:
    """Delete the log of a table."""
    lake.delete([entry.path for entry in list(lake.list(f"{location}/{_LOG}"))])


def encode_statistics(statistics: FileStatistics) -> str:
    """The `stats` field of an add action."""
    (first_day, last_day), (first_customer, last_customer) = statistics.days, statistics.customers
    low = {"customer_id": first_customer, "logical_date": first_day.isoformat()}
    high = {"customer_id": last_customer, "logical_date": last_day.isoformat()}
    nulls = {"customer_id": 0, "logical_date": 0}
    document = {"numRecords": statistics.records, "minValues": low, "maxValues": high, "nullCount": nulls}
    return orjson.dumps(document).decode()
