"""Templates in options, such as `{customer_id}`, filled in for one partition."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date

from penstock.errors import ConfigError

_PLACE = re.compile(r"\{([^{}]*)\}")

DAY_NAMES = ("date", "yyyy", "mm", "dd")


def names_in(template: str) -> set[str]:
    return set(_PLACE.findall(template))


def filled(template: str, values: Mapping[str, str]) -> str:
    """The template with every name replaced. Raises ConfigError for unknown names. Values are ids, names and dates,
    which are safe in paths and addresses."""
    if unknown := sorted(names_in(template) - values.keys()):
        listed = ", ".join(f"{{{name}}}" for name in values)
        raise ConfigError(f"{{{unknown[0]}}} cannot be filled in (known here: {listed})")
    return _PLACE.sub(lambda found: values[found[1]], template)


def of_day(day: date) -> dict[str, str]:
    text = day.isoformat()
    return dict(zip(DAY_NAMES, (text, text[:4], text[5:7], text[8:]), strict=True))
