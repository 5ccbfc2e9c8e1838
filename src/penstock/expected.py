"""What the configuration expects to exist: ranges of days, which cost no more than their customers."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date


@dataclass(frozen=True, slots=True)
class ExpectedRange:
    """Every day from `first` to `last` of one customer and query is expected to exist."""

    source: str
    customer_id: str
    query_name: str
    first: date
    last: date
    # The last day that has ended where the account lives (`last`, if not given), and how many seconds its clock is
    # ahead of UTC. They belong to the moment of asking, not to the range.
    over: date | None = field(default=None, compare=False)
    utc_offset: int = field(default=0, compare=False)

    def __len__(self) -> int:
        return max(0, (self.last - self.first).days + 1)
