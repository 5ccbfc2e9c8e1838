"""Types of values in the workspace file: names, days, durations, rates; and error messages without pydantic terms."""

from __future__ import annotations

import difflib
import re
from calendar import monthrange
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Annotated, Any, ClassVar, NamedTuple, Self
from zoneinfo import ZoneInfo, available_timezones

import pydantic
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    ModelWrapValidatorHandler,
    PlainSerializer,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from penstock import partition
from penstock.clock import MAX_DURATION
from penstock.errors import UsageError

_DURATION = re.compile(r"(\d+)([smhd])")
_KEEPS = re.compile(r"(\d{1,5}) ?(d|days?|months?|years?)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_MESSAGES = {
    "string_type": "must be text; put a number, a date or a word like yes in quotes",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "dict_type": "must be a map",
    "model_type": "must be a map",
    "string_too_short": "must not be empty",
}


def did_you_mean(word: object, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(word), list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def describe_problem(problem: ErrorDetails, known_keys: Iterable[str] = ()) -> str:
    """Return a message for a problem that pydantic found. It never contains the value, which may be a secret."""
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "missing":
        return f"{problem['loc'][-1]!r} is missing"
    if kind == "extra_forbidden":
        key, known = problem["loc"][-1], list(known_keys)
        return f"unknown key {key!r} (known: {', '.join(known)}){did_you_mean(key, known)}"
    if kind == "literal_error":
        expected = str(context["expected"])
        choices = expected.split("'")[1::2]
        return f"must be {expected}{did_you_mean(problem['input'], choices)}"
    if kind == "value_error":
        return str(context["error"])
    if kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal"):
        return "must be " + problem["msg"].removeprefix("Input should be ")
    return _MESSAGES.get(kind, problem["msg"])


def refusal(problems: Iterable[tuple[tuple[int | str, ...], str]]) -> pydantic.ValidationError:
    """Return the problems with their places as a pydantic error, without the input, which may be a secret."""
    details = [
        InitErrorDetails(type=PydanticCustomError("explained", "{text}", {"text": text}), loc=where, input=None)
        for where, text in problems
    ]
    return pydantic.ValidationError.from_exception_data("workspace", details)


class KeyDoc(NamedTuple):
    """The documentation of one key of the workspace file, for the generated page docs/reference/settings.md."""

    meaning: str
    example: str  # as YAML
    type: str | None = None  # how the value is written, if the declared type does not define it


class Declared(pydantic.BaseModel):
    """Base of everything that the workspace file declares. Refuses unknown keys and values of a wrong type."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, validate_by_name=True
    )

    not_in_yaml: ClassVar[frozenset[str]] = frozenset()
    also_in_yaml: ClassVar[tuple[str, ...]] = ()
    documentation: ClassVar[Mapping[str, KeyDoc]] = {}

    @classmethod
    def keys_in_yaml(cls) -> list[str]:
        fields = {name: field.validation_alias or name for name, field in cls.model_fields.items()}
        return [str(key) for name, key in fields.items() if name not in cls.not_in_yaml] + [*cls.also_in_yaml]

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _describe_errors(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(value)
        except pydantic.ValidationError as error:
            # only the model knows which keys its map may have
            known = cls.keys_in_yaml()
            raise refusal(
                (item["loc"], describe_problem(item, known)) for item in error.errors(include_url=False)
            ) from None


def named(text: str) -> str:
    try:
        return partition.name(text)
    except UsageError as error:
        raise ValueError(str(error)) from None


def _day(value: object) -> object:
    """Parse a date that YAML has parsed already or left as text; refuse a date with a time."""
    if isinstance(value, datetime):
        raise ValueError("must be a date without a time: write YYYY-MM-DD")
    if value is None or isinstance(value, date):
        return value
    try:
        return partition.day(value if isinstance(value, str) else repr(value))
    except UsageError as error:
        raise ValueError(str(error)) from None


def _duration(value: object) -> timedelta:
    if isinstance(value, timedelta):
        return value
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    try:
        length = timedelta(**{_UNITS[found[2]]: int(found[1])}) if found else timedelta()
    except (OverflowError, ValueError):  # beyond timedelta, or thousands of digits
        length = timedelta()
    if length <= timedelta():
        raise ValueError(f"{value!r} is not a duration: write 30s, 5m, 2h or 30d")
    if length > MAX_DURATION:
        raise ValueError(f"{value!r} is too long: at most {format_duration(MAX_DURATION)}")
    return length


def duration(text: str) -> timedelta:
    """Parse a duration such as 30s, 5m, 2h or 30d. Raises UsageError beyond MAX_DURATION, so that the result can be
    added to and subtracted from the current time."""
    try:
        return _duration(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def format_duration(length: timedelta) -> str:
    """Format a duration in the largest unit that divides it; `duration` parses the result."""
    seconds = int(length.total_seconds())
    size, unit = next((n, u) for n, u in ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")) if seconds % n == 0)
    return f"{seconds // size}{unit}"


def time_span(value: timedelta | float | str, name: str) -> timedelta:
    """Convert a timedelta, a number of seconds, or text that `duration` parses; UsageError for anything else."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str):
        return duration(value)
    try:
        return timedelta(seconds=value)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(
            f"{name} {value!r} is not a length of time: use a timedelta, seconds, or text such as 10m"
        ) from None


@dataclass(frozen=True, slots=True)
class Keeps:
    """How long a source keeps a day, in calendar months and days; forever if both are 0."""

    months: int = 0
    days: int = 0

    def first_day(self, today: date) -> date | None:
        """Return the oldest day that the source still has; None if it has every day."""
        if not self.months and not self.days:
            return None
        months = today.year * 12 + today.month - 1 - self.months
        if months < 12:
            return None
        year, month = months // 12, months % 12 + 1
        return date(year, month, min(today.day, monthrange(year, month)[1])) - timedelta(days=self.days)

    def __str__(self) -> str:
        parts = [f"{number} {unit}" for number, unit in ((self.months, "months"), (self.days, "days")) if number]
        return " and ".join(parts) or "forever"


def _keeps(value: object) -> object:
    if isinstance(value, Keeps):
        return value
    found = _KEEPS.fullmatch(value) if isinstance(value, str) else None
    if value == "forever":
        return Keeps()
    if found is None or int(found[1]) == 0:
        raise ValueError(f"{value!r} is not a time that a source keeps its days: write 37 months, 400 days or forever")
    number, unit = int(found[1]), found[2][0]
    return Keeps(days=number) if unit == "d" else Keeps(months=number * (12 if unit == "y" else 1))


def not_empty(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if not values:
        raise ValueError("must not be empty")
    return values


def distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the list unchanged; refuse an empty list and repeated values."""
    not_empty(values)
    first: dict[tuple[type, Any], int] = {}
    for index, value in enumerate(values):
        # compares types as well: 1 and True are equal in Python but not in a column
        first.setdefault((type(value), value), index)
    if repeated := set(range(len(values))) - set(first.values()):
        raise refusal(((index,), f"{values[index]!r} is listed twice") for index in sorted(repeated))
    return values


def _time_zone(text: str) -> str:
    try:
        ZoneInfo(text)
    except (KeyError, ValueError, OSError):  # unknown, an invalid name, a folder of zones
        hint = did_you_mean(text, available_timezones()) or ": write a name such as Europe/Berlin"
        raise ValueError(f"{text!r} is not a known time zone{hint}") from None
    return text


Name = Annotated[str, AfterValidator(named)]
TimeZone = Annotated[str, AfterValidator(_time_zone)]
Day = Annotated[date, BeforeValidator(_day)]
Duration = Annotated[timedelta, BeforeValidator(_duration), PlainSerializer(format_duration, when_used="json")]
Kept = Annotated[Keeps, BeforeValidator(_keeps)]
# YAML has lists only, and strict mode refuses a list for a tuple; the items stay strict
LIST = pydantic.Field(strict=False)
Names = Annotated[tuple[str, ...], LIST, AfterValidator(distinct)]


def unknown_name(what: str, found: str, known: Iterable[str]) -> str:
    """The message about a name that is not among the known ones, with the closest of them."""
    names = list(known)
    listed = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "") if names else "none"
    return f"{found!r} is not a known {what} (known: {listed}){did_you_mean(found, names)}"
