"""Parses filters by customer and day, for commands and for Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date as Day
from datetime import datetime
from typing import TypedDict

from penstock.errors import UsageError
from penstock.partition import day
from penstock.source.registry import normalise_customer

AnyDay = str | Day  # a date, or text such as 2024-06-01
AnyCustomers = str | Sequence[str]  # one customer id, or several


class SliceFilters(TypedDict, total=False):
    """Selects a part of a table; without filters, all of it.

    `date` excludes `since` and `until`; `customer` and `customers` mean the same and exclude each other."""

    since: AnyDay | None
    until: AnyDay | None
    date: AnyDay | None
    customers: AnyCustomers | None
    customer: AnyCustomers | None


class ReadOptions(SliceFilters, total=False):
    """The options of `read`: a part of a table, its columns, a snapshot, one schema version."""

    columns: Sequence[str]
    as_of: str | None
    schema_version: str | None


def refuse_unknown_options(function: str, given: Mapping[str, object], known: type) -> None:
    """Raise TypeError for a keyword that `known`, a TypedDict of options, does not have: a misspelt filter must not
    select everything."""
    for name in given:
        if name not in known.__annotations__:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def day_range(date: AnyDay | None, since: AnyDay | None, until: AnyDay | None) -> tuple[Day | None, Day | None]:
    """The first and the last day that the filters name. Raises UsageError if a value is no date, if a day is named
    together with a range, or if the range ends before it begins."""
    if date is not None and (since is not None or until is not None):
        raise UsageError("--date is one day; use it without --since and --until")
    if date is not None:
        only = parse_day(date, "date")
        return only, only
    first, last = parse_day(since, "since"), parse_day(until, "until")
    if first and last and first > last:
        raise UsageError(f"--since {first} is after --until {last}")
    return first, last


def customer_ids(customers: AnyCustomers | None = None, customer: AnyCustomers | None = None) -> tuple[str, ...]:
    """The ids as keys have them; text is one id. Raises UsageError for a value that is no text, and for both names of
    the filter at once."""
    found, other = _listed(customers), _listed(customer)
    if found and other:
        raise UsageError("customer and customers are the same filter: use one of them")
    if odd := [value for value in found + other if not isinstance(value, str)]:
        raise UsageError(f"customer {odd[0]!r} is not text: write the id in quotes")
    return tuple(normalise_customer(text) for text in found + other)


def _listed(customers: AnyCustomers | None) -> list[str]:
    if customers is None:
        return []
    return [customers] if isinstance(customers, str) or not isinstance(customers, Iterable) else list(customers)


def parse_day(value: AnyDay | None, name: str) -> Day | None:
    """A date, or text such as 2024-06-01, as a date. Raises UsageError for other values."""
    if isinstance(value, str):
        return day(value)
    if isinstance(value, datetime):
        raise UsageError(f"{name} {value} is a date with a time: use a date, or text such as 2024-06-01")
    if value is None or isinstance(value, Day):
        return value
    raise UsageError(f"{name} {value!r} is not a date: use a date, or text such as 2024-06-01")
