"""The display status of every expected partition as one byte, in the order of keys: a million partitions are a
megabyte."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import accumulate, groupby, islice
from typing import TYPE_CHECKING, Any

from penstock.lifecycle import DisplayStatus
from penstock.partition import PartitionKey

if TYPE_CHECKING:
    from penstock.expected import ExpectedRange
    from penstock.projections.status_board import Board

NOT_EXPECTED = 0
FAILED = 6  # never materialized, and its last attempt failed
CODES: dict[str, int] = {str(display): number for number, display in enumerate(DisplayStatus, 1)}
MARKS = {
    "materialized": "█",
    "materialized_but_last_attempt_failed": "▓",
    "stale": "▒",
    "unavailable": "X",
    "never_materialized": "·",
    "failed": "✗",
}
_DISPLAYS = {code: DisplayStatus(name) for name, code in CODES.items()} | {FAILED: DisplayStatus.NEVER_MATERIALIZED}
_NAMES = {code: name for name, code in CODES.items()} | {FAILED: "failed"}

Owner = tuple[str, str, str]  # source, customer, query


@dataclass(frozen=True, slots=True)
class CodeGrid:
    """The codes of one asset: a row for each customer, a column for each day, row by row."""

    customers: tuple[str, ...]
    first: date
    days: int
    content: bytes

    def runs(self, row: int, first: int) -> list[tuple[str | None, int]]:
        """The status of the days of one customer from the column `first` on, as pairs of a name in MARKS and the number
        of consecutive days that have it. None: not expected."""
        codes = self.content[row * self.days + first : (row + 1) * self.days]
        return [(_NAMES.get(code), len(list(same))) for code, same in groupby(codes)]


class StatusCodes:
    """The code of each expected partition at one moment."""

    def __init__(self, board: Board) -> None:
        import numpy as np

        ranges = board.expected()
        self._owners: list[Owner] = [(span.source, span.customer_id, span.query_name) for span in ranges]
        self._first = [span.first for span in ranges]
        self._offsets: list[int] = [0, *accumulate(len(span) for span in ranges)]
        codes = np.full(self._offsets[-1], CODES[DisplayStatus.NEVER_MATERIALIZED], dtype=np.uint8)
        found = board.codes(CODES, FAILED)
        offsets = np.asarray(self._offsets, dtype=np.int64)
        codes[offsets[np.asarray(found["n"])] + np.asarray(found["day"])] = np.asarray(found["code"])
        self._codes: bytes = codes.tobytes()

    def __len__(self) -> int:
        return len(self._codes)

    def display(self, key: PartitionKey) -> DisplayStatus | None:
        """The display status of a partition; None if it is not expected."""
        owner = (key.source, key.customer_id, key.query_name)
        at = bisect_left(self._owners, owner)
        while at < len(self._owners) and self._owners[at] == owner:  # a customer may have several ranges
            day = (key.logical_date - self._first[at]).days
            if 0 <= day < self._offsets[at + 1] - self._offsets[at]:
                return _DISPLAYS[self._codes[self._offsets[at] + day]]
            at += 1
        return None

    def find(
        self, display: DisplayStatus, ranges: Iterable[ExpectedRange], after: PartitionKey | None, limit: int
    ) -> tuple[list[PartitionKey], int]:
        """The first partitions of these ranges with a display status, in the order of keys, that follow `after`; and
        the number of all with this status."""
        import numpy as np

        wanted = [code for code, shown in _DISPLAYS.items() if shown is display]
        has_status = np.isin(np.frombuffer(self._codes, dtype=np.uint8), wanted)
        found: list[PartitionKey] = []
        total = 0
        for span in sorted(ranges, key=lambda span: (span.source, span.customer_id, span.query_name, span.first)):
            owner = (span.source, span.customer_id, span.query_name)
            at = bisect_left(self._owners, owner)
            while at < len(self._owners) and self._owners[at] == owner:  # a customer may have several ranges
                offset = self._offsets[at] - self._first[at].toordinal()
                begin = max(self._offsets[at], offset + span.first.toordinal())
                end = min(self._offsets[at + 1], offset + span.last.toordinal() + 1)
                places = (begin + np.flatnonzero(has_status[begin:end])).tolist() if begin < end else []
                total += len(places)
                keys = (PartitionKey(*owner, date.fromordinal(place - offset)) for place in places)
                if len(found) < limit and (after is None or owner >= after[:3]):
                    found += islice((key for key in keys if after is None or key > after), limit - len(found))
                at += 1
        return found, total

    def grid(self, asset: str, since: date | None, until: date | None) -> CodeGrid | None:
        """The codes of the partitions of an asset from one day to another; None if none is expected."""
        import numpy as np

        mine = [n for n, (source, _, query) in enumerate(self._owners) if f"{source}.{query}" == asset]
        if not mine:
            return None
        ends = [self._first[n] + timedelta(days=self._offsets[n + 1] - self._offsets[n] - 1) for n in mine]
        first, last = min(self._first[n] for n in mine), max(ends)
        first, last = max(first, since or first), min(last, until or last)
        days = (last - first).days + 1
        if days <= 0:
            return None
        customers = sorted({self._owners[n][1] for n in mine})
        rows = {customer: number for number, customer in enumerate(customers)}
        cells = np.zeros((len(customers), days), dtype=np.uint8)
        codes = np.frombuffer(self._codes, dtype=np.uint8)
        for n in mine:
            begin = (self._first[n] - first).days
            part = codes[self._offsets[n] + max(0, -begin) : self._offsets[n + 1]]
            begin = max(0, begin)
            part = part[: max(0, days - begin)]
            cells[rows[self._owners[n][1]], begin : begin + len(part)] = part
        return CodeGrid(tuple(customers), first, days, cells.tobytes())


def code_legend() -> list[dict[str, Any]]:
    """The meaning of each code: the display status, and whether the last attempt failed."""
    meanings = [(code, _DISPLAYS[code]) for code in sorted(_DISPLAYS)]
    failed = (CODES[DisplayStatus.LAST_ATTEMPT_FAILED], FAILED)
    return [{"code": NOT_EXPECTED, "display_status": None, "last_attempt_failed": False}] + [
        {"code": code, "display_status": str(display), "last_attempt_failed": code in failed}
        for code, display in meanings
    ]
