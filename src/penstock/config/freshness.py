"""Declarations of freshness: how long a run is fresh, and by when a day must be complete."""

from __future__ import annotations

import re
from datetime import time
from typing import Annotated, ClassVar, Self

import pydantic
from pydantic import BeforeValidator, PlainSerializer

from penstock.config.values import Declared, Duration, KeyDoc, TimeZone

_CLOCK_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")


def _completeness(value: object) -> str:
    """Parse a completeness rule: `all`, `any`, a number of partitions, or a share such as `95%`."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not re.fullmatch(r"all|any|[1-9]\d*|(100|[1-9]\d?)%", text):
        raise ValueError(f"{value!r} is not a rule: write all, any, a number, or a share such as 95%")
    return text


def _clock_time(value: object) -> time:
    """Parse a time of day. YAML reads 10:30 without quotes as a number."""
    if isinstance(value, time):
        return value
    found = _CLOCK_TIME.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f'{value!r} is not a time of day: write it in quotes, from "00:00" to "23:59"')
    return time(int(found[1]), int(found[2]))


Completeness = Annotated[str, BeforeValidator(_completeness)]
ClockTime = Annotated[time, BeforeValidator(_clock_time), PlainSerializer(lambda at: f"{at:%H:%M}", when_used="json")]


class Freshness(Declared):
    """How old the newest successful partition may be before it counts as stale, and by when each day is complete."""

    max_lag: Duration | None = None
    complete_by: ClockTime | None = None
    complete_after_days: Annotated[int, pydantic.Field(ge=1, le=31)] = 1
    time_zone: TimeZone = "UTC"
    require: Completeness = "all"

    documentation: ClassVar = {
        "max_lag": KeyDoc(
            "How long an accepted run is fresh. Then its partition is stale, if it can still be restated or derived.",
            "36h",
        ),
        "complete_by": KeyDoc(
            "The deadline: the local time, on the day after the logical date, by which the day is complete."
            " `penstock late` reports it.",
            '"09:00"',
            "time of day",
        ),
        "complete_after_days": KeyDoc("How many days after the logical date the deadline is.", "2"),
        "time_zone": KeyDoc("The time zone of `complete_by`.", "Europe/Berlin", "time zone"),
        "require": KeyDoc(
            "How many partitions make a day complete: `all`, `any`, a number, or a share, as in `ready --require`.",
            "99%",
            "rule",
        ),
    }

    @pydantic.model_validator(mode="after")
    def _has_a_purpose(self) -> Self:
        if self.complete_by is None:
            unused = [name for name in ("complete_after_days", "time_zone", "require") if name in self.model_fields_set]
            if unused:
                raise ValueError(f"{unused[0]} belongs to a deadline: add complete_by")
            if self.max_lag is None:
                raise ValueError("must have max_lag, complete_by or both")
        return self
