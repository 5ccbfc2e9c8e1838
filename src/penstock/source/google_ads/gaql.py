"""Parses Google Ads Query Language, as far as needed to add a date range to a query."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import NamedTuple

from penstock.errors import ConfigError

DATE = "segments.date"
# A filter by one of these would exclude days, which could not be distinguished from days without rows.
_CALENDAR = (DATE, "segments.week", "segments.month", "segments.quarter", "segments.year")

_CLAUSES = ("SELECT", "FROM", "WHERE", "ORDER", "LIMIT", "PARAMETERS")
_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<text>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")
      | (?P<mark>!=|<=|>=|[=<>(),])
      | (?P<word>[A-Za-z0-9_.:+\-]+)""",
    re.VERBOSE | re.DOTALL,
)
_FIELD = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
_RESOURCE = re.compile(r"[a-z][a-z0-9_]*")


class _Token(NamedTuple):
    text: str
    start: int
    end: int

    def means(self, word: str) -> bool:
        return self.text.upper() == word


@dataclass(frozen=True, slots=True)
class Statement:
    """The clauses of a query. Conditions, orders and parameters are kept as they were written."""

    select: tuple[str, ...]
    resource: str
    conditions: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    limit: str | None = None
    parameters: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [f"SELECT {', '.join(self.select)}", f"FROM {self.resource}"]
        if self.conditions:
            parts.append(f"WHERE {' AND '.join(self.conditions)}")
        if self.order_by:
            parts.append(f"ORDER BY {', '.join(self.order_by)}")
        if self.limit is not None:
            parts.append(f"LIMIT {self.limit}")
        if self.parameters:
            parts.append(f"PARAMETERS {', '.join(self.parameters)}")
        return " ".join(parts)


def by_date(statement: Statement) -> Statement:
    """The statement with the day of each row, ordered by day. Raises ConfigError if it would exclude days or rows."""
    if statement.limit is not None:
        raise ConfigError("LIMIT would leave rows out: remove it")
    for condition in statement.conditions:
        name = _tokens(condition)[0].text
        if name in _CALENDAR:
            raise ConfigError(f"{name} must not be restricted ({condition}): Penstock adds the days that it requests")
    for order in statement.order_by:
        if order.split()[0] in _CALENDAR and order.upper().endswith(" DESC"):
            raise ConfigError(f"ORDER BY {order} contradicts the order of days that Penstock requests: remove it")
    select = statement.select if DATE in statement.select else (*statement.select, DATE)
    others = tuple(order for order in statement.order_by if order.split()[0] != DATE)
    return replace(statement, select=select, order_by=(DATE, *others))


def between(statement: Statement, first: date, last: date) -> str:
    """The query text for these days, both included."""
    days = f"{DATE} BETWEEN '{first.isoformat()}' AND '{last.isoformat()}'"
    return str(replace(statement, conditions=(*statement.conditions, days)))


def compose(resource: str, select: Sequence[str], conditions: Sequence[str]) -> Statement:
    """A statement from its clauses. Raises ConfigError for an invalid resource or condition."""
    if not _RESOURCE.fullmatch(resource):
        raise ConfigError(f"{resource!r} is not the name of a resource: write for example campaign")
    for condition in conditions:
        if len(_conditions(condition, _tokens(condition))) != 1:
            raise ConfigError(f"{condition!r} is more than one condition: list them one by one")
    return Statement(tuple(dict.fromkeys(select)), resource, tuple(condition.strip() for condition in conditions))


def parse(text: str) -> Statement:
    """Parse a query. Raises ConfigError if it is not valid."""
    clauses = _clauses(text)
    for needed in ("SELECT", "FROM"):
        if needed not in clauses:
            raise ConfigError(f"the query has no {needed} clause")
    resource = clauses["FROM"]
    if len(resource) != 1 or not _RESOURCE.fullmatch(resource[0].text):
        raise ConfigError("FROM names exactly one resource, for example FROM campaign")
    limit = clauses.get("LIMIT")
    return Statement(
        tuple(_names(clauses["SELECT"])),
        resource[0].text,
        tuple(_conditions(text, clauses["WHERE"])) if "WHERE" in clauses else (),
        tuple(_orders(text, clauses["ORDER"])) if "ORDER" in clauses else (),
        " ".join(token.text for token in limit) if limit is not None else None,
        tuple(_slices(text, clauses["PARAMETERS"])) if "PARAMETERS" in clauses else (),
    )


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            rest = text[position : position + 20]
            why = "a quote that is not closed" if rest[0] in "'\"" else f"{rest[0]!r}, which has no meaning there"
            raise ConfigError(f"the query cannot be read from {rest!r} on: it has {why}")
        if match.lastgroup != "space":
            found.append(_Token(match.group(), match.start(), match.end()))
        position = match.end()
    if not found:
        raise ConfigError("there is nothing in it: write for example campaign.status = 'ENABLED'")
    return found


def _clauses(text: str) -> dict[str, list[_Token]]:
    """The tokens of each clause, without its keyword. Raises ConfigError for repeated or misplaced clauses."""
    clauses: dict[str, list[_Token]] = {}
    current: list[_Token] | None = None
    for token in _tokens(text):
        keyword = token.text.upper()
        if keyword in _CLAUSES:
            behind = [name for name in clauses if _CLAUSES.index(name) >= _CLAUSES.index(keyword)]
            if behind:
                raise ConfigError(f"{keyword} comes twice or after {behind[0]}: the order is {', '.join(_CLAUSES)}")
            current = clauses[keyword] = []
        elif current is None:
            raise ConfigError(f"the query begins with {token.text!r}: it must begin with SELECT")
        else:
            current.append(token)
    for name, tokens in clauses.items():
        if not tokens:
            raise ConfigError(f"nothing follows {name}")
    return clauses


def _names(tokens: Sequence[_Token]) -> Iterator[str]:
    for index, token in enumerate(tokens):
        if index % 2:
            if token.text != ",":
                raise ConfigError(f"{token.text!r} where a comma is expected in SELECT")
        elif not _FIELD.fullmatch(token.text):
            raise ConfigError(f"{token.text!r} is not the name of a field")
        else:
            yield token.text
    if len(tokens) % 2 == 0:
        raise ConfigError("SELECT ends with a comma")


def _conditions(text: str, tokens: Sequence[_Token]) -> list[str]:
    """Each condition as it was written. The AND of a BETWEEN joins values, any other joins conditions."""
    found: list[list[_Token]] = [[]]
    depth, between_values = 0, False
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if token.means("AND") and not depth:
            if between_values:
                between_values = False
            else:
                found.append([])
                continue
        between_values |= token.means("BETWEEN")
        found[-1].append(token)
    if depth:
        raise ConfigError("a bracket is not closed, or never opened")
    for condition in found:
        if len(condition) < 3:
            raise ConfigError(
                "a condition is a field, an operator and a value, for example campaign.status = 'ENABLED'"
            )
        if not _FIELD.fullmatch(condition[0].text):
            raise ConfigError(f"a condition begins with the name of a field, not with {condition[0].text!r}")
    return [text[condition[0].start : condition[-1].end] for condition in found]


def _orders(text: str, tokens: Sequence[_Token]) -> list[str]:
    if not tokens[0].means("BY") or len(tokens) == 1:
        raise ConfigError("ORDER must be followed by BY and the names of fields")
    orders = _slices(text, tokens[1:])
    for order in orders:
        name, *direction = order.split()
        if not _FIELD.fullmatch(name) or [word.upper() for word in direction] not in ([], ["ASC"], ["DESC"]):
            raise ConfigError(f"ORDER BY {order} is not understood: write a field, and ASC or DESC if need be")
    return orders


def _slices(text: str, tokens: Sequence[_Token]) -> list[str]:
    """The comma-separated parts, as they were written."""
    groups: list[list[_Token]] = [[]]
    for token in tokens:
        if token.text == ",":
            groups.append([])
        else:
            groups[-1].append(token)
    if not all(groups):
        raise ConfigError("a comma has nothing before or after it")
    return [text[group[0].start : group[-1].end] for group in groups]
