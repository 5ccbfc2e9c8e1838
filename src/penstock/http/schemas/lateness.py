"""Models of lateness."""

from __future__ import annotations

from datetime import date, datetime

from penstock.control.lateness import MissingCause, Punctuality
from penstock.http.schemas.base import Model


class MissingPartitions(Model):
    """The missing partitions of a day with one cause. `until` is the time at which the cause ends, if it has one."""

    cause: MissingCause
    count: int
    until: datetime | None
    example: str | None
    detail: str | None


class LateDay(Model):
    """One day of a table beside its deadline. `inputs` are the inputs of a model that are not ready."""

    table: str
    date: date
    punctuality: Punctuality | None
    deadline: datetime | None
    expected: int
    required: int
    available: int
    expected_at: datetime | None
    missing: list[MissingPartitions]
    inputs: list[LateDay]


class LateDays(Model):
    """The tables with a deadline: the day whose deadline is today, and earlier days that are not ready."""

    counts: dict[Punctuality, int]
    items: list[LateDay]
    total: int
