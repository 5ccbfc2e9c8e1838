"""Models of readiness."""

from __future__ import annotations

from datetime import date

from penstock.http.schemas.base import Model
from penstock.http.schemas.lateness import LateDay


class ReadyDay(Model):
    """A day that lacks partitions. `absent` names at most 100 of them."""

    date: date
    expected: int
    available: int
    ready: bool
    absent: list[str]
    withdrawn_inputs: list[str]
    not_over: int


class ReadyTable(Model):
    """The requested days of a table."""

    table: str
    ready: bool
    expected: int
    available: int
    since: date | None
    until: date | None
    first_expected: date | None
    last_expected: date | None
    notes: list[str]
    days: list[ReadyDay]


class Readiness(Model):
    """Whether every requested day of every table is ready; `explained` only if it was requested."""

    ready: bool
    require: str
    tables: list[ReadyTable]
    explained: list[LateDay] | None = None
