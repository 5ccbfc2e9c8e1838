"""The partitions that the configuration expects, as ranges of days: the cost grows with customers, not with days."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, timedelta

from penstock.partition import AssetKind, asset_kind


@dataclass(frozen=True, slots=True)
class ExpectedRange:
    """Every day from `first` to `last` of one customer and query is expected to exist."""

    source: str
    customer_id: str
    query_name: str
    first: date
    last: date
    # The last day that has ended in the account's time zone (default: `last`); the offset of that time zone from UTC in
    # seconds; the oldest day that the source still serves, if it has such a limit. They depend on the time of the
    # query, so they are not part of the identity of the range.
    over: date | None = field(default=None, compare=False)
    utc_offset: int = field(default=0, compare=False)
    frozen_before: date | None = field(default=None, compare=False)

    def __len__(self) -> int:
        return max(0, (self.last - self.first).days + 1)

    @property
    def kind(self) -> AssetKind:
        return asset_kind(self.source)

    def is_frozen(self, day: date) -> bool:
        """Whether the source no longer serves this day: its state stays as it is."""
        return self.frozen_before is not None and day < self.frozen_before


def expected_by_day(ranges: Iterable[ExpectedRange]) -> dict[tuple[str, date], int]:
    """Count the expected partitions by table and day, in order. The cost grows with the ranges and the days, not with
    the partitions."""
    changes: dict[str, Counter[date]] = {}
    for span in ranges:
        if len(span):
            mine = changes.setdefault(f"{span.source}.{span.query_name}", Counter())
            mine[span.first] += 1
            mine[span.last + timedelta(days=1)] -= 1
    found: dict[tuple[str, date], int] = {}
    for table, mine in sorted(changes.items()):
        day, count = min(mine), 0
        end = max(mine)
        while day < end:
            count += mine.get(day, 0)
            if count:
                found[table, day] = count
            day += timedelta(days=1)
    return found
