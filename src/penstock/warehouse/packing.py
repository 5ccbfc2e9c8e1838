"""Plans which files of a month are rewritten, and splits the work into parts that fit a worker's memory.

The driver sorts new slices in table order, so that no rows are shuffled: a worker that reads its slices one after the
other writes a sorted file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from penstock.partition import AssetKind, PartitionKey, RunId
from penstock.warehouse.files import TARGET_BYTES
from penstock.warehouse.format import DataFile
from penstock.warehouse.layout import SortKey, month_of

SMALL_BYTES = TARGET_BYTES // 4  # a later publication of the month may merge files below this size
_TINY_BYTES = 1024 * 1024  # opening such a small file takes longer than copying it
_PART_BYTES = TARGET_BYTES  # Parquet bytes that one part holds in memory
_JSON_PER_PARQUET = 6  # raw JSON lines are about this much larger than the same rows in Parquet


class NewSlice(NamedTuple):
    """An accepted run that is to be loaded into a table."""

    key: PartitionKey
    run_id: RunId
    record_count: int
    payload_digest: str
    payload_bytes: int

    @property
    def sort_key(self) -> SortKey:
        return (self.key.logical_date, self.key.customer_id)

    @property
    def weight(self) -> int:
        return self.payload_bytes if self.key.kind is AssetKind.DERIVED else self.payload_bytes // _JSON_PER_PARQUET


@dataclass(frozen=True, slots=True)
class Part:
    """The work of one Spark task: the slices and the rows of old files from `low` up to, but not including, `high`."""

    month: str
    low: SortKey | None
    high: SortKey | None
    slices: tuple[NewSlice, ...]
    files: tuple[str, ...]
    weight: int  # estimated bytes of Parquet that are read and written


@dataclass(frozen=True, slots=True)
class MonthPlan:
    """The parts of one month of one table, and the files that they replace."""

    month: str
    parts: tuple[Part, ...]
    rewritten: tuple[str, ...]


def plan_month(
    month: str, files: Sequence[DataFile], slices: Sequence[NewSlice], dropped: set[SortKey], workers: int
) -> MonthPlan:
    """Plan the rewrite of files that may contain a dropped partition, and of small files in proportion to new data."""
    affected = _affected(files, dropped)
    rest = [file for file in files if file not in affected]
    folded = _small_neighbours(rest, sum(s.weight for s in slices) + sum(f.size for f in affected))
    rewritten = sorted([*affected, *folded], key=lambda file: file.first)
    ordered = sorted(slices, key=lambda piece: piece.sort_key)
    parts = _parts(month, rewritten, ordered, workers)
    return MonthPlan(month, parts, tuple(file.path for file in rewritten))


def plan_compaction(month: str, files: Sequence[DataFile], workers: int) -> MonthPlan:
    """Plan the merge of the small files of a month, if there are at least two."""
    small = sorted((f for f in files if f.month == month and f.size < SMALL_BYTES), key=lambda file: file.first)
    if len(small) < 2:
        return MonthPlan(month, (), ())
    return MonthPlan(month, _parts(month, small, (), workers), tuple(file.path for file in small))


def by_month(slices: Sequence[NewSlice]) -> dict[str, list[NewSlice]]:
    months: dict[str, list[NewSlice]] = {}
    for piece in slices:
        months.setdefault(month_of(piece.key.logical_date), []).append(piece)
    return months


def _affected(files: Sequence[DataFile], dropped: set[SortKey]) -> list[DataFile]:
    keys = sorted(dropped)
    found = []
    for file in files:
        at = bisect_left(keys, (file.first[0], ""))
        while at < len(keys) and keys[at][0] <= file.last[0]:
            if file.may_hold(keys[at]):
                found.append(file)
                break
            at += 1
    return found


def _small_neighbours(files: Sequence[DataFile], written: int) -> list[DataFile]:
    """Tiny files, and small files up to the number of bytes that are written anyway.

    The file of a row therefore at least doubles in size whenever the row is rewritten: a month with many small
    publications has few files, and a row is copied only a logarithmic number of times.
    """
    chosen: list[DataFile] = []
    if not written:
        return chosen
    for file in sorted((f for f in files if f.size < SMALL_BYTES), key=lambda f: f.size):
        if file.size > max(written, _TINY_BYTES) or written + file.size > 2 * TARGET_BYTES:
            break
        chosen.append(file)
        written += file.size
    return chosen


def _parts(month: str, files: Sequence[DataFile], slices: Sequence[NewSlice], workers: int) -> tuple[Part, ...]:
    weights = sorted([(f.first, f.size) for f in files] + [(s.sort_key, s.weight) for s in slices])
    if not weights:
        return ()
    total = sum(weight for _, weight in weights)
    # Several workers share a month only if each writes a file that is not small.
    limit = min(_PART_BYTES, max(total // workers + 1, SMALL_BYTES))
    bounds = _cuts(weights, limit)
    edges: list[SortKey | None] = [None, *bounds, None]
    return tuple(_part(month, low, high, files, slices) for low, high in pairwise(edges))


def _part(
    month: str, low: SortKey | None, high: SortKey | None, files: Sequence[DataFile], slices: Sequence[NewSlice]
) -> Part:
    new = tuple(piece for piece in slices if _inside(piece.sort_key, low, high))
    old = [file for file in files if _overlaps(file, low, high)]
    weight = sum(piece.weight for piece in new) + sum(file.size for file in old)
    return Part(month, low, high, new, tuple(file.path for file in old), weight)


def _cuts(weights: Sequence[tuple[SortKey, int]], limit: int) -> list[SortKey]:
    """The keys at which a new part begins, so that no part exceeds the limit."""
    cuts: list[SortKey] = []
    held = 0
    last = weights[0][0]
    for key, weight in weights:
        if held and held + weight > limit and key != last:
            cuts.append(key)
            held = 0
        held += weight
        last = key
    return cuts


def _inside(key: SortKey, low: SortKey | None, high: SortKey | None) -> bool:
    return (low is None or key >= low) and (high is None or key < high)


def _overlaps(file: DataFile, low: SortKey | None, high: SortKey | None) -> bool:
    return (high is None or file.first < high) and (low is None or file.last >= low)
