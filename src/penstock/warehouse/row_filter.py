"""Row filters by day, customer and column, as file pruning, Arrow expressions and Spark SQL."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

import pyarrow.compute as pc
import pyarrow.dataset as ds

from penstock.warehouse.format import DataFile


@dataclass(frozen=True, slots=True)
class Filter:
    """The days, customers and columns of a read; empty fields select everything."""

    since: date | None = None
    until: date | None = None
    customers: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def may_match(self, file: DataFile) -> bool:
        """Whether the file can contain matching rows, by its statistics."""
        low, high = file.first[0], file.last[0]
        if (self.since and high < self.since) or (self.until and low > self.until):
            return False
        first, last = file.customers
        return not self.customers or any(first <= customer <= last for customer in self.customers)

    def includes(self, day: date, customer: str) -> bool:
        if (self.since and day < self.since) or (self.until and day > self.until):
            return False
        return not self.customers or customer in self.customers

    def in_spark(self) -> str:
        """The filter as Spark SQL; empty if it selects everything."""
        terms = []
        if self.since:
            terms.append(f"logical_date >= DATE '{self.since}'")
        if self.until:
            terms.append(f"logical_date <= DATE '{self.until}'")
        if self.customers:
            terms.append(f"customer_id IN ({', '.join(map(_quoted_in_spark, self.customers))})")
        return " AND ".join(terms)

    def expression(self) -> pc.Expression | None:
        """The filter as an Arrow expression; None if it selects everything."""
        terms = []
        if self.since:
            terms.append(ds.field("logical_date") >= self.since)
        if self.until:
            terms.append(ds.field("logical_date") <= self.until)
        if self.customers:
            terms.append(ds.field("customer_id").isin(self.customers))
        expression: pc.Expression | None = None
        for term in terms:
            expression = term if expression is None else expression & term
        return expression


def _quoted_in_spark(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
