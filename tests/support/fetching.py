"""The result of a source for each day, for tests of sources."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

from penstock.config.assets import Query
from penstock.config.settings import Customer
from penstock.errors import PenstockError
from penstock.source.protocol import COMPLETE, Source


def by_day(source: Source, query: Query, dates: Sequence[date]) -> dict[date, Any]:
    """The rows of each day, or its error; no entry for a day without either."""
    found: dict[date, Any] = {}
    for day, row in source.extract(query, Customer(id="c"), dates):
        if isinstance(row, PenstockError):
            found[day] = row
        elif row is COMPLETE:
            found.setdefault(day, [])
        else:
            found.setdefault(day, []).append(row)
    return found
