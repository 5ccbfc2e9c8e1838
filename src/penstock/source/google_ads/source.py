"""The class of kind google_ads: fetches one report of one account for many days with one streamed request."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from penstock.config.assets import Query
from penstock.config.settings import Customer
from penstock.config.values import Keeps, did_you_mean
from penstock.errors import ConfigError, DataError, UsageError
from penstock.source.google_ads import gaql
from penstock.source.google_ads.client import Connection, login_from
from penstock.source.google_ads.options import Options, QueryOptions
from penstock.source.google_ads.rows import Read, row_reader
from penstock.source.google_ads.version import DEFAULT, SUNSETS
from penstock.source.options import read_options
from penstock.source.protocol import COMPLETE, Account, Row, RunContext

# A request costs quota, so days of a gap up to this length are fetched too and their rows ignored.
_GAP = timedelta(days=7)
_ACCOUNT = re.compile(r"\d{3}-\d{3}-\d{4}")
_DIGITS = re.compile("[0-9]+")
_STATUSES = ("ENABLED", "CANCELED", "SUSPENDED", "CLOSED")


class GoogleAdsSource:
    """Implements the source protocol with the official client."""

    in_date_order = True
    title = "Google Ads"
    keeps = Keeps(months=37)

    @staticmethod
    def requests_in_flight(options: Mapping[str, Any]) -> int | None:
        """A report takes up to some seconds, nearly all of it at the service."""
        return 16

    @staticmethod
    def normalise_customer(text: str) -> str:
        """The digits of an account id. Google Ads shows them as 123-456-7890."""
        digits = text.replace("-", "") if _ACCOUNT.fullmatch(text) else text
        if not _DIGITS.fullmatch(digits):
            raise ValueError("must be digits")
        return digits

    @staticmethod
    def api_end(options: Mapping[str, Any]) -> tuple[str, date] | None:
        """The version in use, and the day from which Google refuses it."""
        version = str(options.get("api_version") or DEFAULT)
        return (version, SUNSETS[version]) if version in SUNSETS else None

    def __init__(self, options: Mapping[str, Any], context: RunContext) -> None:
        self._options = read_options(Options, options)
        self._connection = Connection(self._options, login_from(os.environ, self._options))
        self._budget = context.budget
        self._prepared: dict[str, tuple[gaql.Statement, Read]] = {}
        self.api_version = self._connection.version

    def refuse(self, query: Query) -> None:
        """Raise ConfigError if the query is not valid."""
        self._prepare(query)

    def extract(self, query: Query, customer: Customer, dates: Sequence[date]) -> Iterator[tuple[date, Row]]:
        statement, read = self._prepare(query)
        for days in date_groups(dates):
            yield from self._rows_of_group(statement, read, customer.id, days)

    def accounts(self, levels: int, statuses: Sequence[str]) -> list[Account]:
        """The accounts below the manager account of the login that have reports of their own."""
        if unknown := sorted(set(statuses) - set(_STATUSES)):
            raise UsageError(f"an account is never {', '.join(unknown)} (statuses: {', '.join(_STATUSES)})")
        manager = self._options.login_customer_id
        if manager is None:
            raise ConfigError("login_customer_id is missing: it is the manager account of the accounts")
        conditions = [f"customer_client.level <= {levels}", "customer_client.manager = FALSE"]
        if statuses:
            conditions.append(f"customer_client.status IN ({', '.join(statuses)})")
        names = ("id", "descriptive_name", "time_zone")
        statement = gaql.compose("customer_client", [f"customer_client.{name}" for name in names], conditions)
        self._budget.spend()
        found = {}
        for rows in self._connection.stream(manager, str(statement)):
            for row in rows:
                client = row.customer_client
                # several managers may list the same account
                found[client.id] = Account(str(client.id), client.descriptive_name, client.time_zone)
        return [found[number] for number in sorted(found)]

    def _prepare(self, query: Query) -> tuple[gaql.Statement, Read]:
        if query.name not in self._prepared:
            options = read_options(QueryOptions, query.options)
            _refuse_other_names(query, options)
            statement = _statement(options)
            read = row_reader(self._connection.row_type, query.fields, options.select, options.enums)
            self._prepared[query.name] = (statement, read)
        return self._prepared[query.name]

    def _rows_of_group(
        self, statement: gaql.Statement, read: Read, customer_id: str, days: Sequence[date]
    ) -> Iterator[tuple[date, Row]]:
        """The rows of a group of days. A day is complete at the first row of a later day, or at the end."""
        wanted = {day.isoformat(): day for day in days}
        waiting = list(reversed(days))
        current, due, last = "", days[0].isoformat(), days[-1].isoformat()
        self._budget.spend()
        for rows in self._connection.stream(customer_id, gaql.between(statement, days[0], days[-1])):
            for row in rows:
                text = row.segments.date
                if text != current:
                    if not due <= text <= last:
                        yield from _out_of_order(days, text, due)
                        return
                    current = due = text
                    while waiting and waiting[-1].isoformat() < text:
                        yield waiting.pop(), COMPLETE
                if text in wanted:
                    yield wanted[text], read(row)
        while waiting:
            yield waiting.pop(), COMPLETE


def date_groups(dates: Sequence[date]) -> list[list[date]]:
    """Group the days of one request each. A new group begins after a gap of more than a week."""
    groups: list[list[date]] = []
    for day in dates:
        if groups and day - groups[-1][-1] <= _GAP:
            groups[-1].append(day)
        else:
            groups.append([day])
    return groups


def _out_of_order(days: Sequence[date], text: str, due: str) -> Iterator[tuple[date, Row]]:
    """An error for every day: days that seemed complete may lack rows."""
    for day in days:
        yield (
            day,
            DataError(f"Google Ads sent a row of {text or 'no day'} where {due} to {days[-1]} were due, in order"),
        )


def _statement(options: QueryOptions) -> gaql.Statement:
    paths = [column.path for column in options.select.values()]
    if options.gaql is None:
        return gaql.by_date(gaql.compose(options.resource or "", paths, options.conditions))
    statement = gaql.by_date(gaql.parse(options.gaql))
    if missing := [path for path in paths if path not in statement.select]:
        raise ConfigError(f"gaql: its SELECT lacks {', '.join(missing)}, which select requires")
    return statement


def _refuse_other_names(query: Query, options: QueryOptions) -> None:
    """Raise ConfigError unless `select` and the fields of the query have the same names."""
    fields = [field.name for field in query.fields]
    missing = [name for name in fields if name not in options.select]
    if missing:
        raise ConfigError(f"select lacks the fields {', '.join(missing)}: give each its Google Ads name")
    for name in options.select:
        if name not in fields:
            raise ConfigError(f"select.{name}: there is no such field{did_you_mean(name, fields)}")
