"""Parameters of requests: declared once per route, for parsing and for the OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal

from penstock.errors import UsageError
from penstock.http.problems import RequestRefused
from penstock.lifecycle import DisplayStatus

if TYPE_CHECKING:
    from penstock.control.select import Selection

MOST_ITEMS = 1000  # of one page
LAST_ID = 2**63 - 1  # the largest number that the database holds


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a route."""

    name: str
    meaning: str
    kind: Literal["text", "day", "number", "flag"] = "text"
    place: Literal["query", "path"] = "query"
    repeats: bool = False
    required: bool = False
    default: int | None = None
    least: int = 0
    most: int = LAST_ID
    values: tuple[str, ...] = ()
    pattern: str | None = None


SOURCE = Parameter("source", "Only this source.")
CUSTOMER = Parameter("customer", "Only this customer.", repeats=True)
QUERY = Parameter("query", "Only this query or model.", repeats=True)
DATE = Parameter("date", "Only this day.", "day")
SINCE = Parameter("since", "From this day.", "day")
UNTIL = Parameter("until", "Up to and including this day.", "day")
STATUS = Parameter("status", "Only partitions in this state.", values=("pending", "success", "failed"))
DISPLAY = Parameter("display", "Only partitions with this display status.", values=tuple(map(str, DisplayStatus)))
KEY = Parameter("key", "A partition: source/customer_id/query_name/YYYY-MM-DD.", repeats=True)
FILTERS = (KEY, SOURCE, CUSTOMER, QUERY, DATE, SINCE, UNTIL, STATUS)
CURSOR = Parameter("cursor", "Continue a list: the value of `next`.")


def limit(default: int) -> Parameter:
    """The number of items of a page."""
    return Parameter("limit", "At most this many items.", "number", default=default, least=1, most=MOST_ITEMS)


def in_path(name: str, meaning: str, pattern: str | None = None) -> Parameter:
    """A parameter in the path of a route."""
    return Parameter(name, meaning, place="path", required=True, pattern=pattern)


def parse_query(parameters: Sequence[Parameter], given: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The values of the query parameters by name. Raises UsageError for an unknown, repeated or malformed one."""
    known = {parameter.name: parameter for parameter in parameters if parameter.place == "query"}
    found: dict[str, list[str]] = {}
    for name, value in given:
        if name not in known:
            raise UsageError(f"unknown parameter {name!r} (known: {', '.join(known) or 'none'})")
        found.setdefault(name, []).append(value)
    return {name: _value(parameter, found.get(name, [])) for name, parameter in known.items()}


def check_path(parameters: Sequence[Parameter], given: Mapping[str, str]) -> None:
    """Raise RequestRefused for a NUL character in a part of the path, and UsageError for a text that cannot name a
    resource."""
    for parameter in parameters:
        if parameter.place != "path":
            continue
        text = given[parameter.name]
        if "\x00" in text:
            raise RequestRefused(f"{parameter.name} has a NUL character", HTTPStatus.BAD_REQUEST)
        if parameter.pattern and not re.fullmatch(parameter.pattern, text):
            raise UsageError(f"{parameter.name} {text[:200]!r} is not valid: {parameter.meaning}")


def _value(parameter: Parameter, texts: Sequence[str]) -> Any:
    if parameter.required and not texts:
        raise UsageError(f"{parameter.name} is missing: {parameter.meaning}")
    if parameter.repeats:
        return tuple(_parsed(parameter, text) for text in texts)
    if len(texts) > 1:
        raise UsageError(f"{parameter.name} is given {len(texts)} times: give it once")
    if not texts:
        return parameter.default
    return _parsed(parameter, texts[0])


def _parsed(parameter: Parameter, text: str) -> Any:
    from penstock.partition import day

    if text == "" or "\x00" in text:
        raise UsageError(f"{parameter.name} is empty or not valid: leave it out, or give it a value")
    if parameter.values and text not in parameter.values:
        raise UsageError(f"{parameter.name} {text!r} is unknown: use {', '.join(parameter.values)}")
    match parameter.kind:
        case "day":
            return day(text, parameter.name)
        case "number":
            return _number(parameter, text)
        case "flag":
            if text not in ("true", "false"):
                raise UsageError(f"{parameter.name} {text!r} is not valid: use true or false")
            return text == "true"
        case _:
            return text


def _number(parameter: Parameter, text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 20:
        number = int(text)
        if parameter.least <= number <= parameter.most:
            return number
    raise UsageError(f"{parameter.name} {text!r} is not a number from {parameter.least} to {parameter.most}")


def selection_of(values: Mapping[str, Any]) -> Selection:
    """The selection of the filters of a request. Raises UsageError for contradictory ones, as the commands do."""
    from penstock.control.filters import customer_ids, day_range
    from penstock.control.select import Selection

    filters = ("source", "customer", "query", "date", "since", "until")
    if values.get("key") and any(values.get(name) for name in filters):
        raise UsageError("name partitions either by key or by filters, not both")
    first, last = day_range(values.get("date"), values.get("since"), values.get("until"))
    return Selection(
        sorted(set(values.get("key", ()))),
        values.get("source"),
        customer_ids(values.get("customer") or ()),
        tuple(values.get("query") or ()),
        first,
        last,
        values.get("status"),
    )
