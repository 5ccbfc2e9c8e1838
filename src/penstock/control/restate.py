"""Restatement: sources change their past for a while, so recent days are fetched again, more rarely as they age."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from enum import StrEnum

from penstock.config.assets import Asset, Restate


class Maturity(StrEnum):
    PROVISIONAL = "provisional"  # the source may still change the day
    SETTLED = "settled"


def ages(restate: Restate) -> tuple[int, ...]:
    """At which ages, in days after its end, a day is fetched again: daily at first, then thinning, last at the horizon.

    What the query lists itself counts instead.
    """
    if restate.ages is not None:
        return restate.ages
    found: list[int] = []
    age = 1
    while age < restate.days:
        found.append(age)
        age = max(age + 1, age * 3 // 2) if age >= 3 else age + 1
    return (*found, restate.days)


def maturity(query: Asset, day: date, over: date) -> Maturity:
    """Whether the source may still change `day`, when `over` is the last day that has ended there."""
    days = query.restate.days if query.restate else 0
    return Maturity.PROVISIONAL if (over - day).days < days else Maturity.SETTLED


def schedules(queries: Mapping[str, Asset]) -> dict[str, tuple[int, ...]]:
    """The ages of every query that restates."""
    return {name: ages(query.restate) for name, query in queries.items() if query.restate}
