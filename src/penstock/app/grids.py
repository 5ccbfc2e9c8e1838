"""The status of all partitions at once: codes and counts, kept until the ledger, the days or a deadline change them."""

from __future__ import annotations

import gzip
import hashlib
import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING

from penstock.app.context import Context
from penstock.control.local_days import days_by_zone
from penstock.control.select import Selection
from penstock.errors import UsageError
from penstock.html import COLOURS, fragment, mark, marked_rows, paragraph, text
from penstock.projections.ledger_cache import LedgerCache

if TYPE_CHECKING:
    from penstock.app.status import StatusService
    from penstock.lifecycle import DisplayStatus
    from penstock.partition import PartitionKey
    from penstock.projections.status_cache import StatusCounts
    from penstock.projections.status_codes import CodeGrid, StatusCodes
    from penstock.warehouse.pointers import PointerSummary

_KEPT_GRIDS = 8
_KEPT_COUNTS = 64
_KEPT_COUNT_BYTES = 64 * 1024 * 1024
_SHOWN_CUSTOMERS, _SHOWN_DAYS = 50, 62  # in a notebook
MOST_GROUPS = 100_000  # of one document of counts


@dataclass(frozen=True, slots=True)
class Grid:
    """The codes of one asset, compressed as well, with the digest of the codes and that of their layout."""

    asset: str
    codes: CodeGrid
    gzipped: bytes
    digest: str
    layout: str  # of the customers and days: labels and codes with the same layout belong together

    def _repr_html_(self) -> str:
        """The first 50 customers and the newest 62 days, one mark for each partition."""
        from penstock.projections.status_codes import MARKS

        codes = self.codes
        start = max(0, codes.days - _SHOWN_DAYS)
        first, last = codes.first + timedelta(days=start), codes.first + timedelta(days=codes.days - 1)
        rows = [(customer, self._marks(row, start)) for row, customer in enumerate(codes.customers[:_SHOWN_CUSTOMERS])]
        legend = " &nbsp; ".join(f"{mark(sign, COLOURS[name], name)} {text(name)}" for name, sign in MARKS.items())
        left = max(0, len(codes.customers) - _SHOWN_CUSTOMERS)
        omitted = [f"{left:,} more customers"] * bool(left) + [f"{start:,} older days"] * bool(start)
        return fragment(
            f"{self.asset}, {first} to {last}, a mark for each day",
            marked_rows(rows),
            f"<p>{legend}</p>",
            paragraph(f"not shown: {', '.join(omitted)}") if omitted else "",
        )

    def _marks(self, row: int, start: int) -> str:
        from penstock.projections.status_codes import MARKS

        found, at = [], start
        for name, number in self.codes.runs(row, start):
            first, last = (self.codes.first + timedelta(days=day) for day in (at, at + number - 1))
            days = f"{first}" if number == 1 else f"{first} to {last}"
            found.append(mark(MARKS[name] * number, COLOURS[name], f"{days}: {name}") if name else " " * number)
            at += number
        return "".join(found)


class GridService:
    """Status of all partitions for the HTTP API, computed once for each position of the ledger.

    Safe in several threads: one computes; the others get the value before, if it was valid within the last second, or
    wait for the result.
    """

    def __init__(self, context: Context, status: StatusService) -> None:
        self._context = context
        self._status = status
        self._codes: LedgerCache[StatusCodes] = LedgerCache(1)
        self._grids: LedgerCache[Grid] = LedgerCache(_KEPT_GRIDS)
        self._pointers: LedgerCache[PointerSummary] = LedgerCache(_KEPT_COUNTS)
        self._counts: LedgerCache[StatusCounts] = LedgerCache(_KEPT_COUNTS, _KEPT_COUNT_BYTES, _size_of)

    def grid(self, query: str, since: date | None = None, until: date | None = None) -> Grid:
        """The codes of a query or model: a row for each customer, a column for each day. Raises UsageError for an
        unknown name, or if no partition of these days is expected.

        >>> ws.grids.grid("campaign_daily").codes.customers
        """
        assets = self._context.settings.assets
        if query not in assets:
            raise UsageError(f"unknown query {query} (known: {', '.join(sorted(assets))})")
        asset = f"{assets[query].source}.{query}"

        def compute() -> tuple[Grid, int | None]:
            codes, valid_until = self._all_codes()
            found = codes.grid(asset, since, until)
            if found is None:
                raise UsageError(f"no partition of {asset} is expected in these days")
            layout = hashlib.sha256(repr((asset, found.customers, found.first, found.days)).encode()).hexdigest()[:32]
            digest = hashlib.sha256(layout.encode() + found.content).hexdigest()[:32]
            return Grid(asset, found, gzip.compress(found.content, 6, mtime=0), digest, layout), valid_until

        return self._grids.get((asset, since, until), self._moment, self._context.now, compute)

    def pointers(self, source: str, query: str) -> PointerSummary:
        """The published partitions of a table in numbers.

        >>> ws.grids.pointers("demo", "campaign_daily").available
        """

        def compute() -> tuple[PointerSummary, None]:
            return self._context.pointers.summary(source, query), None

        return self._pointers.get((source, query), self._context.ledger.newest, self._context.now, compute)

    def displays(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, DisplayStatus]:
        """The display status of these partitions.

        >>> ws.grids.displays([key])[key]
        """
        codes, _ = self._all_codes()
        found = {key: codes.display(key) for key in keys}
        known = {key: display for key, display in found.items() if display is not None}
        absent = [key for key in keys if key not in known]  # named by key, and not expected yet or any more
        return known | {key: standing.display for key, standing in self._status.standings(absent).items()}

    def find(
        self, display: DisplayStatus, selection: Selection, after: PartitionKey | None, limit: int
    ) -> tuple[list[PartitionKey], int]:
        """The first selected partitions with a display status that follow `after`, and the number of all. The state of
        the selection is not considered.

        >>> ws.grids.find(DisplayStatus.STALE, Selection(), None, 100)
        """
        return self._all_codes()[0].find(display, self._context.ranges(selection), after, limit)

    def counts(self, selection: Selection, groups: Sequence[str]) -> StatusCounts:
        """The counts of `StatusService.counts`, kept until they can change. Raises UsageError, before it loads them,
        for more than 100,000 groups.

        >>> ws.grids.counts(Selection(), ["query"]).rows
        """
        from penstock.projections.status_cache import StatusCounts

        def compute() -> tuple[StatusCounts, int | None]:
            board = self._status.board(selection)
            if (found := board.group_count(groups)) > MOST_GROUPS:
                raise UsageError(
                    f"by {', '.join(groups)} there are {found:,} groups, more than {MOST_GROUPS:,}: narrow the filters"
                    " or group by less; the grid of a query has the status of each partition"
                )
            return StatusCounts(board.counts(groups), board.flags()), board.next_deadline()

        if selection.status is not None:  # depends on the state database
            return compute()[0]
        return self._counts.get((selection, tuple(groups)), self._moment, self._context.now, compute)

    def _all_codes(self) -> tuple[StatusCodes, int | None]:
        """The codes of all expected partitions, and the moment at which another one becomes late."""
        from penstock.projections.status_codes import StatusCodes

        def compute() -> tuple[StatusCodes, int | None]:
            board = self._status.board(Selection())
            return StatusCodes(board), board.next_deadline()

        return self._codes.entry("all", self._moment, self._context.now, compute)

    def _moment(self) -> Hashable:
        """Everything that decides the status of partitions besides deadlines: the ledger and the days that are over.
        The settings of a process do not change."""
        return (self._context.ledger.newest(), days_by_zone(self._context.settings, self._context.now()))


def _size_of(counts: StatusCounts) -> int:
    """The approximate size in memory: all rows have the same fields."""
    if not counts.rows:
        return 0
    row = counts.rows[0]
    return len(counts.rows) * (sys.getsizeof(row) + sum(sys.getsizeof(value) for value in row.values()))
