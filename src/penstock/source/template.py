"""Templates in options, such as `{customer_id}`, filled in for one partition."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from penstock.errors import ConfigError

_PLACE = re.compile(r"\{([^{}]*)\}")

_WHOLE = re.compile(r"\{([a-z_]+):int\}")

DAY_NAMES = ("date", "yyyy", "mm", "dd")
SPAN_NAMES = tuple(f"{which}_{name}" for which in ("first", "last") for name in DAY_NAMES)
INSTANT_NAMES = ("unix_start", "unix_end")  # of a day, in the time zone of the customer


def names_in(template: str) -> set[str]:
    return set(_PLACE.findall(template))


def filled(template: str, values: Mapping[str, str]) -> str:
    """The template with every name replaced. Raises ConfigError for unknown names. Values are ids, names and dates,
    which are safe in paths and addresses."""
    if unknown := sorted(names_in(template) - values.keys()):
        listed = ", ".join(f"{{{name}}}" for name in values)
        raise ConfigError(f"{{{unknown[0]}}} cannot be filled in (known here: {listed})")
    return _PLACE.sub(lambda found: values[found[1]], template)


def filled_document(template: Any, values: Mapping[str, str]) -> Any:
    """The JSON document with every known name in its texts replaced. Other braces stay: query languages use them. A
    text that is only `{name:int}` becomes a number."""
    if isinstance(template, Mapping):
        return {name: filled_document(item, values) for name, item in template.items()}
    if isinstance(template, list | tuple):
        return [filled_document(item, values) for item in template]
    if not isinstance(template, str):
        return template
    whole = _WHOLE.fullmatch(template)
    if whole and whole[1] in values:
        return int(values[whole[1]])
    return _PLACE.sub(lambda found: values.get(found[1], found[0]), template)


def texts_in(document: Any) -> Iterator[str]:
    """Every text of a JSON document."""
    if isinstance(document, Mapping):
        document = list(document.values())
    if isinstance(document, list | tuple):
        for item in document:
            yield from texts_in(item)
    elif isinstance(document, str):
        yield _WHOLE.sub(r"{\1}", document)


def of_day(day: date) -> dict[str, str]:
    text = day.isoformat()
    return dict(zip(DAY_NAMES, (text, text[:4], text[5:7], text[8:]), strict=True))


def of_span(first: date, last: date) -> dict[str, str]:
    """The names of a request for many days: `first_date`, `first_yyyy`, and so on, and those of the last day."""
    days = {"first": of_day(first), "last": of_day(last)}
    return {f"{which}_{name}": text for which, names in days.items() for name, text in names.items()}


def of_instants(day: date, time_zone: str) -> dict[str, str]:
    """The begin and the end of a day in a time zone, in seconds since the epoch."""
    zone = ZoneInfo(time_zone)
    begin, end = (datetime.combine(at, time.min, zone) for at in (day, day + timedelta(days=1)))
    return dict(zip(INSTANT_NAMES, (str(int(at.timestamp())) for at in (begin, end)), strict=True))
