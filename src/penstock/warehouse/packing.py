"""Deciding which files of a month are written anew, and cutting the work into parts that fit a worker's memory.

New slices are put in table order here, on the driver, so that rows never have to be shuffled: a worker that reads its
slices one after the other writes a sorted file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from penstock.partition import MODELS, PartitionKey, RunId
from penstock.warehouse.files import TARGET_BYTES
from penstock.warehouse.format import DataFile
from penstock.warehouse.layout import SortKey, month_of

SMALL_BYTES = TARGET_BYTES // 4  # files below this may be folded into a later publication of their month
_TINY_BYTES = 1024 * 1024  # opening a file this small costs more than copying it
_PART_BYTES = TARGET_BYTES  # what one part of the work holds in memory, as Parquet
_JSON_PER_PARQUET = 6  # raw JSON lines are about this much larger than the same rows in Parquet


class NewSlice(NamedTuple):
    """A vouched run that is to be in the table."""

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
        return self.payload_bytes if self.key.source == MODELS else self.payload_bytes // _JSON_PER_PARQUET


@dataclass(frozen=True, slots=True)
class Part:
    """One worker's share: the slices and the old files' rows from `low` up to, but without, `high`."""

    month: str
    low: SortKey | None
    high: SortKey | None
    slices: tuple[NewSlice, ...]
    files: tuple[str, ...]
    weight: int  # about how many bytes of Parquet are read and written


@dataclass(frozen=True, slots=True)
class MonthPlan:
    """What happens to one month of one table."""

    month: str
    parts: tuple[Part, ...]
    rewritten: tuple[str, ...]


def plan_month(
    month: str, files: Sequence[DataFile], slices: Sequence[NewSlice], dropped: set[SortKey], workers: int
) -> MonthPlan:
    """Rewrite only files that may hold a dropped partition, and small ones if as much is written anyway."""
    affected = _affected(files, dropped)
    rest = [file for file in files if file not in affected]
    folded = _small_neighbours(rest, sum(s.weight for s in slices) + sum(f.size for f in affected))
    rewritten = sorted([*affected, *folded], key=lambda file: file.first)
    ordered = sorted(slices, key=lambda piece: piece.sort_key)
    parts = _parts(month, rewritten, ordered, workers)
    return MonthPlan(month, parts, tuple(file.path for file in rewritten))


def plan_compaction(month: str, files: Sequence[DataFile], workers: int) -> MonthPlan:
    """Write the small files of a month together, if there are at least two of them."""
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
    """Tiny files, and small ones as long as at least their own size is written besides.

    So the file that a row lies in at least doubles whenever the row is written again: a month that is filled by many
    small publications has few files, and no row is copied more often than sizes can double.
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
    # Several workers share a month only when each gets a file worth having.
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
    """Keys at which a new part begins."""
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
