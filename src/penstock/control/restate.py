"""Restatement: sources change recent days, so these are fetched again, less often as they age."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from enum import StrEnum

from penstock.config.assets import Asset, Restate


class Maturity(StrEnum):
    """Whether the source may still change a day."""

    PROVISIONAL = "provisional"  # the source may still change the day
    SETTLED = "settled"


def ages(restate: Restate) -> tuple[int, ...]:
    """The ages, in days after its end, at which a day is fetched again: daily at first, then less often, last after
    `restate.days`. Ages that the query lists replace these."""
    if restate.ages is not None:
        return restate.ages
    found: list[int] = []
    age = 1
    while age < restate.days:
        found.append(age)
        age = max(age + 1, age * 3 // 2) if age >= 3 else age + 1
    return (*found, restate.days)


def maturity(query: Asset, day: date, over: date) -> Maturity:
    """Whether the source may still change `day`; `over` is the last day that has ended for the account."""
    days = query.restate.days if query.restate else 0
    return Maturity.PROVISIONAL if (over - day).days < days else Maturity.SETTLED


def schedules(queries: Mapping[str, Asset]) -> dict[str, tuple[int, ...]]:
    """The ages of every query with a restatement policy."""
    return {name: ages(query.restate) for name, query in queries.items() if query.restate}
