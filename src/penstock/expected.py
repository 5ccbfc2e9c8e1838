"""What the configuration expects to exist: ranges of days, which cost no more than their customers."""

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
    # The last day that has ended where the account lives (`last`, if not given), and how many seconds its clock is
    # ahead of UTC; and the oldest day that the source can still be asked for, if it forgets. They belong to the moment
    # of asking, not to the range.
    over: date | None = field(default=None, compare=False)
    utc_offset: int = field(default=0, compare=False)
    frozen_before: date | None = field(default=None, compare=False)

    def __len__(self) -> int:
        return max(0, (self.last - self.first).days + 1)

    @property
    def kind(self) -> AssetKind:
        return asset_kind(self.source)

    def is_frozen(self, day: date) -> bool:
        """True when the source cannot be asked for this day any more: what is known about it stays as it is."""
        return self.frozen_before is not None and day < self.frozen_before


def expected_by_day(ranges: Iterable[ExpectedRange]) -> dict[tuple[str, date], int]:
    """How many partitions are expected, by table and day, in order. Costs as much as the ranges and the days, not as
    their partitions."""
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
