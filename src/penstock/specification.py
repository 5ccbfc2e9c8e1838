"""What a query and a model promise: fields, checks, freshness, retry. A promise that cannot hold is refused at once."""

from __future__ import annotations

import difflib
import math
import re
from calendar import monthrange
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

import pydantic
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    ModelWrapValidatorHandler,
    PlainSerializer,
    TypeAdapter,
    ValidationInfo,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from penstock import field_types, partition
from penstock.errors import ConfigError, UsageError

RESERVED_FIELDS = ("customer_id", "logical_date", "schema_version")
FIELD_TYPES = field_types.WRITTEN

_DURATION = re.compile(r"(\d+)([smhd])")
_RATE = re.compile(r"(\d+)/([smhd])")
_KEEPS = re.compile(r"(\d{1,5}) ?(d|days?|months?|years?)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}([T ].+)?")
_WORDS = {
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


def in_words(problem: ErrorDetails, known_keys: Iterable[str] = ()) -> str:
    """One problem that pydantic found, in the words of the workspace file. Never the value itself."""
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
    return _WORDS.get(kind, problem["msg"])


def refusal(problems: Iterable[tuple[tuple[int | str, ...], str]]) -> pydantic.ValidationError:
    """Problems with their places, as pydantic passes them upwards; without the input, which may be a secret."""
    details = [
        InitErrorDetails(type=PydanticCustomError("explained", "{text}", {"text": text}), loc=where, input=None)
        for where, text in problems
    ]
    return pydantic.ValidationError.from_exception_data("workspace", details)


class Declared(pydantic.BaseModel):
    """Something that is written in the workspace file: unknown keys and wrong types are refused in plain words."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, validate_by_name=True
    )

    not_in_yaml: ClassVar[frozenset[str]] = frozenset()
    also_in_yaml: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def keys_in_yaml(cls) -> list[str]:
        fields = {name: field.validation_alias or name for name, field in cls.model_fields.items()}
        return [str(key) for name, key in fields.items() if name not in cls.not_in_yaml] + [*cls.also_in_yaml]

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _in_words(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(value)
        except pydantic.ValidationError as error:
            # only here is it known which keys this map may have
            known = cls.keys_in_yaml()
            raise refusal((item["loc"], in_words(item, known)) for item in error.errors(include_url=False)) from None


def _name(text: str) -> str:
    try:
        return partition.name(text)
    except UsageError as error:
        raise ValueError(str(error)) from None


def _day(value: object) -> object:
    """A date as YAML reads it, or as text. A date with a time is neither."""
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
    except OverflowError:
        length = timedelta()
    if length <= timedelta():
        raise ValueError(f"{value!r} is not a duration: write 30s, 5m, 2h or 30d")
    return length


def duration(text: str) -> timedelta:
    """A length of time as people write it: 30s, 5m, 2h, 30d."""
    try:
        return _duration(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def spelled(length: timedelta) -> str:
    """A length of time as `duration` reads it, in the largest unit that divides it."""
    seconds = int(length.total_seconds())
    size, unit = next((n, u) for n, u in ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")) if seconds % n == 0)
    return f"{seconds // size}{unit}"


def _rate(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    if found is None or int(found[1]) == 0:
        raise ValueError(f"{value!r} is not a rate: write 10/s, 600/m, 5000/h or 15000/d")
    return int(found[1]) / timedelta(**{_UNITS[found[2]]: 1}).total_seconds()


@dataclass(frozen=True, slots=True)
class Keeps:
    """For how long a source can be asked for a day: so many calendar months and days, or for ever if both are 0."""

    months: int = 0
    days: int = 0

    def first_day(self, today: date) -> date | None:
        """The oldest day that can still be asked for; None if every day can."""
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


def filled(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if not values:
        raise ValueError("must not be empty")
    return values


def distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The list as it is, when it has something and nothing twice."""
    filled(values)
    first: dict[tuple[type, Any], int] = {}
    for index, value in enumerate(values):
        # with the type, because 1 and True are equal in Python but not in a column
        first.setdefault((type(value), value), index)
    if repeated := set(range(len(values))) - set(first.values()):
        raise refusal(((index,), f"{values[index]!r} is listed twice") for index in sorted(repeated))
    return values


Name = Annotated[str, AfterValidator(_name)]
Day = Annotated[date, BeforeValidator(_day)]
Rate = Annotated[float, BeforeValidator(_rate)]  # requests per second
Duration = Annotated[timedelta, BeforeValidator(_duration), PlainSerializer(spelled, when_used="json")]
Kept = Annotated[Keeps, BeforeValidator(_keeps)]
# YAML has lists only, and strict mode would refuse a list for a tuple; what is in the list stays strict
_LIST = pydantic.Field(strict=False)
Names = Annotated[tuple[str, ...], _LIST, AfterValidator(distinct)]


def _field_name(text: str) -> str:
    if text in RESERVED_FIELDS or text.startswith("_"):
        names = f"{', '.join(RESERVED_FIELDS)} and names that start with _"
        raise ValueError(f"{text!r} is reserved; Penstock adds columns of its own: {names}")
    return _name(text)


def _field_type(text: str) -> str:
    """The type in its one spelling."""
    try:
        return str(field_types.kind_of(text))
    except ValueError as error:
        if not str(error).endswith("is not a type"):
            raise
    brackets = text.startswith(("decimal(", "array<", "struct<"))
    hint = "; inside { } put it in quotes" if brackets else did_you_mean(text, FIELD_TYPES)
    raise ValueError(f"{text!r} is not a type (types: {', '.join(FIELD_TYPES)}){hint}")


def _as_json(value: object) -> object:
    """A value of the workspace file as JSON has it: dates and times are text."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    return {str(name): _as_json(item) for name, item in value.items()} if isinstance(value, Mapping) else value


class Field(Declared):
    """One column of a query."""

    name: Annotated[str, AfterValidator(_field_name)]
    type: Annotated[str, AfterValidator(_field_type)]
    required: bool = False
    # stands in where a row does not have the field at all; a null that was sent stays null
    default: Annotated[Any, BeforeValidator(_as_json)] = None

    @pydantic.field_validator("default")
    @classmethod
    def _of_its_type(cls, value: Any, info: ValidationInfo) -> Any:
        type_ = info.data.get("type")
        if value is not None and type_ is not None and not field_types.reader(field_types.kind_of(type_))(value):
            raise ValueError(f"{value!r} is not a value of the type {type_}")
        return value


def _scalar(value: object) -> object:
    """A value that JSON can hold and that compares with a column; dates become text."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError("must be text, a number, true, false or a date")


def _bound(value: object) -> object:
    value = None if value is None else _scalar(value)
    if isinstance(value, bool) or (isinstance(value, str) and _moment(value) is None):
        raise ValueError(f"{value!r} is no bound: write a number, or a date as YYYY-MM-DD")
    return value


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text) if _MOMENT.fullmatch(text) else None
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment and moment.tzinfo is None else moment


Severity = Literal["reject", "warn"]
Scalar = Annotated[str | int | float | bool, BeforeValidator(_scalar)]
Bound = Annotated[int | float | str | None, BeforeValidator(_bound)]


class _Check(Declared):
    not_in_yaml = frozenset({"kind", "name", "severity"})

    name: Annotated[str, pydantic.Field(min_length=1)] | None = None
    severity: Severity = "reject"

    @property
    def named_fields(self) -> tuple[str, ...]:
        """The fields that must exist for this check to make sense."""
        return ()


class _FieldsCheck(_Check):
    fields: Names

    @property
    def named_fields(self) -> tuple[str, ...]:
        return self.fields


class _FieldCheck(_Check):
    field: str

    @property
    def named_fields(self) -> tuple[str, ...]:
        return (self.field,)


class Required(_FieldsCheck):
    """No row leaves one of these fields empty."""

    kind: Literal["required"] = "required"


class Unique(_FieldsCheck):
    """No two rows of the slice agree in all of these fields."""

    kind: Literal["unique"] = "unique"


class Expression(_Check):
    """A Spark SQL predicate that holds for every row."""

    kind: Literal["expression"] = "expression"
    expression: str

    @pydantic.field_validator("expression")
    @classmethod
    def _not_blank(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("must not be empty: write a Spark SQL predicate, for example clicks <= impressions")
        return text


class _Bounded(_Check):
    @pydantic.model_validator(mode="after")
    def _some_bound(self) -> Self:
        lowest, highest = getattr(self, "min", None), getattr(self, "max", None)
        if lowest is None and highest is None:
            raise ValueError("needs min, max or both")
        if lowest is None or highest is None:
            return self
        if isinstance(lowest, str) != isinstance(highest, str):
            raise ValueError("min and max must both be numbers or both be dates")
        low, high = (_moment(bound) if isinstance(bound, str) else bound for bound in (lowest, highest))
        if low is not None and high is not None and high < low:
            raise ValueError(f"max {highest!r} is below min {lowest!r}")
        return self


class Rows(_Bounded):
    """The slice has at least min and at most max rows."""

    kind: Literal["rows"] = "rows"
    min: Annotated[int, pydantic.Field(ge=0)] | None = None
    max: Annotated[int, pydantic.Field(ge=0)] | None = None


class Shrink(_Check):
    """The slice has not lost more than this share of the rows of the run it would replace."""

    kind: Literal["shrink"] = "shrink"
    max_drop: Annotated[float, pydantic.Field(gt=0, le=1)]


class Range(_FieldCheck, _Bounded):
    """Every value of the field lies between min and max, both included."""

    kind: Literal["range"] = "range"
    min: Bound = None
    max: Bound = None


class Allowed(_FieldCheck):
    """Every value of the field is one of these."""

    kind: Literal["allowed"] = "allowed"
    values: Annotated[tuple[Scalar, ...], _LIST, AfterValidator(distinct)]


class NotNullShare(_FieldCheck):
    """At least this share of the rows has a value in the field."""

    kind: Literal["not_null_share"] = "not_null_share"
    min: Annotated[float, pydantic.Field(gt=0, le=1)]


class Recent(_FieldCheck):
    """The newest time in the field is not older than max_lag at the end of the logical date, in UTC."""

    kind: Literal["freshness"] = "freshness"
    max_lag: Duration


class References(_Check):
    """Every value exists in the vouched slice of another table, of the same customer and day."""

    also_in_yaml = ("field", "to_field")

    kind: Literal["references"] = "references"
    fields: Names
    to: str
    to_fields: Names | None = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _one_or_many(cls, written: dict[str, Any]) -> dict[str, Any]:
        body = dict(written)
        for one, many in (("field", "fields"), ("to_field", "to_fields")):
            if one in body and many in body:
                raise ValueError(f"{one} and {many} exclude each other")
            if isinstance(body.get(one), str):
                body[many] = [body.pop(one)]
        return body

    @pydantic.model_validator(mode="after")
    def _as_many(self) -> Self:
        if self.to_fields is not None and len(self.to_fields) != len(self.fields):
            raise ValueError(f"{len(self.fields)} fields cannot be found in {len(self.to_fields)} of {self.to}")
        return self

    @property
    def named_fields(self) -> tuple[str, ...]:
        return self.fields

    @property
    def their_fields(self) -> tuple[str, ...]:
        return self.to_fields or self.fields


class Compare(_Check):
    """A figure of the slice differs from that of the trusted run by at most this share."""

    kind: Literal["compare"] = "compare"
    field: str | None = None
    function: Literal["sum", "count", "avg", "min", "max"]
    max_change: Annotated[float, pydantic.Field(gt=0)]

    @pydantic.model_validator(mode="after")
    def _of_something(self) -> Self:
        if self.field is None and self.function != "count":
            raise ValueError(f"{self.function} needs a field; only count can do without one, it counts rows then")
        return self

    @property
    def named_fields(self) -> tuple[str, ...]:
        return () if self.field is None else (self.field,)

    @property
    def figure(self) -> str:
        return f"{self.function}({self.field or '*'})"


_AnyCheck = (
    Required | Unique | Expression | Rows | Shrink | Range | Allowed | NotNullShare | Recent | References | Compare
)
_KINDS: dict[str, type[_Check]] = {kind.model_fields["kind"].default: kind for kind in get_args(_AnyCheck)}
# these hold one thing, so their value in YAML is that thing and not a map
_SINGLE = {"required": "fields", "unique": "fields", "expression": "expression"}
_BESIDE = ("name", "severity")  # said of a check, not by it


def _spread(written: object) -> object:
    """`{unique: [a], name: x}` as the fields of its model: `{kind: unique, fields: [a], name: x}`."""
    if isinstance(written, _Check):
        return written
    kinds = ", ".join(_KINDS)
    if not isinstance(written, Mapping):
        raise ValueError(f"a check is a map with one of the keys {kinds}, for example {{unique: [campaign_id]}}")
    for key in written:
        if key not in _KINDS and key not in _BESIDE:
            raise ValueError(f"{key!r} is not a check (checks: {kinds}){did_you_mean(key, [*_KINDS, *_BESIDE])}")
    kind, *more = [key for key in written if key not in _BESIDE] or [None]
    if kind is None or more:
        raise ValueError(f"a check has exactly one of the keys {kinds}")
    body = written[kind]
    if kind in _SINGLE:
        body = {_SINGLE[kind]: body}
    elif not isinstance(body, Mapping):
        raise ValueError(f"{kind} takes a map of {', '.join(_KINDS[kind].keys_in_yaml())}")
    elif misplaced := [key for key in body if key in _Check.not_in_yaml]:
        raise ValueError(f"{misplaced[0]!r} does not belong inside {kind}; name and severity stand beside it")
    return {**body, "kind": kind} | {key: written[key] for key in _BESIDE if key in written}


Check = Annotated[_AnyCheck, pydantic.Field(discriminator="kind"), BeforeValidator(_spread)]
_CHECK: TypeAdapter[_AnyCheck] = TypeAdapter(Check)


def check_from_mapping(mapping: Mapping[str, Any]) -> _AnyCheck:
    """The check that YAML or a stored contract spells as `{unique: [campaign_id]}`."""
    try:
        return _CHECK.validate_python(mapping)
    except pydantic.ValidationError as error:
        raise ConfigError("\n".join(in_words(problem) for problem in error.errors(include_url=False))) from None


def check_to_mapping(check: _AnyCheck) -> dict[str, Any]:
    """The spelling of a check that JSON can hold and `check_from_mapping` reads back."""
    body: Any = check.model_dump(mode="json", exclude={"kind", *_BESIDE}, exclude_none=True)
    if check.kind in _SINGLE:
        body = body[_SINGLE[check.kind]]
    beside = check.model_dump(include=set(_BESIDE), exclude_defaults=True)
    return {check.kind: body} | {key: beside[key] for key in _BESIDE if key in beside}


def _suits(type_: str, value: object) -> bool:
    """True when the value may be compared with a column of this type."""
    if isinstance(value, bool):
        return type_ == "boolean"
    if isinstance(value, int):
        return _is_numeric(type_)
    if isinstance(value, float):
        return type_ == "double" or type_.startswith("decimal")
    moment = _moment(value) if isinstance(value, str) else None
    if type_ == "date":
        return moment is not None and len(str(value)) == len("2024-06-01")
    return type_ == "string" or (type_ == "timestamp" and moment is not None)


def _fits_the_fields(check: _AnyCheck, info: ValidationInfo) -> _AnyCheck:
    """Refuses a check on a field that the query does not have, or of a type that the check cannot judge."""
    owner: str = info.data.get("name", "this query")
    fields: tuple[Field, ...] | None = info.data.get("fields")
    if fields is None:
        # some field was refused; its siblings' names still tell whether this check is wrong as well
        names = list((info.context or {}).get("field_names", {}).get(owner, ()))
    else:
        names = [field.name for field in fields]
    if not names:
        return check
    problems = [
        f"{name!r} is not a field of {owner} (fields: {', '.join(names)}){did_you_mean(name, names)}"
        for name in check.named_fields
        if name not in names
    ]
    types = {field.name: field.type for field in fields or ()}
    problems += [
        text for name in check.named_fields if name in types for text in _type_problems(check, name, types[name])
    ]
    if problems:
        raise ValueError("; ".join(problems))
    return check


def _type_problems(check: _AnyCheck, name: str, type_: str) -> list[str]:
    if isinstance(check, Required | NotNullShare):
        return []
    unfit = f"{check.kind} does not suit {name}, which is a {type_}"
    if field_types.is_nested(type_):
        return [f"{unfit}; use expression"]
    match check:
        case Allowed():
            wrong = [value for value in check.values if not _suits(type_, value)]
            return [f"{value!r} cannot be a value of {name}, which is a {type_}" for value in wrong]
        case Range() if type_ in ("string", "boolean"):
            return [f"{unfit}; use allowed or expression"]
        case Range():
            # a fraction is a fair bound for whole numbers
            compared = "double" if type_ == "long" else type_
            bounds = [bound for bound in (check.min, check.max) if bound is not None and not _suits(compared, bound)]
            return [f"{bound!r} cannot be a bound of {name}, which is a {type_}" for bound in bounds]
        case Recent() if type_ != "timestamp":
            return [f"{unfit}; it needs a timestamp"]
        case Compare() if check.function != "count" and not _is_numeric(type_):
            return [f"{unfit}; {check.function} needs numbers"]
    return []


def _is_numeric(type_: str) -> bool:
    return type_ in ("long", "double") or type_.startswith("decimal")


class Freshness(Declared):
    """How old the newest good slice may be before it reads as stale."""

    max_lag: Duration


class Restate(Declared):
    """How many past days are fetched again, because the source still changes them."""

    days: Annotated[int, pydantic.Field(ge=1)]
    # at which ages (days after the day's end) it is fetched again; by default daily at first, then ever more rarely
    ages: Annotated[tuple[Annotated[int, pydantic.Field(ge=1)], ...], _LIST, AfterValidator(distinct)] | None = None

    @pydantic.model_validator(mode="after")
    def _inside_the_horizon(self) -> Self:
        if self.ages is not None and max(self.ages) > self.days:
            raise ValueError(f"ages go up to {max(self.ages)}, but days is {self.days}: after that the day is settled")
        return self


_BACKOFF = (timedelta(minutes=5), timedelta(minutes=30), timedelta(hours=2))


class Retry(Declared):
    """When a failed partition is tried again, and when it no longer is."""

    max_attempts: Annotated[int, pydantic.Field(ge=1)] = 5
    backoff: Annotated[tuple[Duration, ...], _LIST, AfterValidator(filled)] = _BACKOFF
    jitter: Annotated[float, pydantic.Field(ge=0, le=1)] = 0.2
    max_age: Duration = timedelta(days=30)
    # which failures are retried without being asked; quota and credentials never count as failures of a partition
    errors: Annotated[tuple[Literal["transient", "config", "data", "internal"], ...], _LIST] = ("transient", "internal")


def _distinct_fields(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    distinct(tuple(field.name for field in fields))
    return fields


class Query(Declared):
    """One report of one source: what is fetched per customer and day, and what it must look like."""

    not_in_yaml = frozenset({"name"})

    name: Name
    source: str
    schema_version: Name = "v1"
    start_date: Day | None = None
    fields: Annotated[tuple[Field, ...], _LIST, AfterValidator(_distinct_fields)]
    checks: Annotated[tuple[Annotated[Check, AfterValidator(_fits_the_fields)], ...], _LIST] = ()
    unknown_fields: Literal["reject", "ignore", "keep"] = "reject"
    missing_fields: Literal["reject", "ignore"] = "ignore"
    freshness: Freshness | None = None
    restate: Restate | None = None
    retry: Retry = Retry()
    options: dict[str, Any] = pydantic.Field(default_factory=dict, repr=False)
    customers: Names | None = None


def query_to_mapping(query: Query) -> dict[str, Any]:
    """What a workspace file says under the name of the query; what has its default is left out."""
    written: dict[str, Any] = query.model_dump(mode="json", exclude_defaults=True, exclude={"name", "checks"})
    if query.checks:
        written["checks"] = [check_to_mapping(check) for check in query.checks]
    return {key: written[key] for key in Query.keys_in_yaml() if key in written}


def _joined(value: object) -> object:
    return ",".join(map(str, value)) if isinstance(value, list) else value


def _window(value: object) -> object:
    """How many days are read for one: `7 days`, `7d` or 7."""
    found = re.fullmatch(r"(\d+)(?: days?|d)", value) if isinstance(value, str) else None
    days = int(found[1]) if found else value
    if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= 3_660:
        raise ValueError(f"{value!r} is not a number of days: write 7 days")
    return days


def _completeness(value: object) -> str:
    """`all`, `any`, a number of partitions, or a share such as `95%`."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not re.fullmatch(r"all|any|[1-9]\d*|(100|[1-9]\d?)%", text):
        raise ValueError(f"{value!r} is not a rule: write all, any, a number, or a share such as 95%")
    return text


class Model(Declared):
    """A table made from other tables, per date or per customer and date."""

    not_in_yaml = frozenset({"name"})

    name: Name
    sql: str | None = None  # a file of Spark SQL; without it, and without python, models/<name>.sql
    python: str | None = None  # a file that defines model(inputs, partitions)
    schema_version: Name = "v1"
    depends_on: Names
    # in a `{ }` map a comma ends the value, so a list says the same
    per: Annotated[Literal["date", "customer,date"], BeforeValidator(_joined)] = "date"
    needs: Annotated[int, BeforeValidator(_window)] = 1  # days that are read for one, the day itself among them
    require: Annotated[str, BeforeValidator(_completeness)] = "all"  # how much of each input must be there
    refresh: bool = True  # made again when its inputs or its code changed
    checks: Annotated[tuple[Check, ...], _LIST] = ()
    freshness: Freshness | None = None
    retry: Retry = Retry()

    source: ClassVar[str] = partition.MODELS
    restate: ClassVar[None] = None  # what is derived follows its inputs

    @pydantic.model_validator(mode="after")
    def _one_definition(self) -> Self:
        if self.sql is not None and self.python is not None:
            raise ValueError("sql and python exclude each other: one file says how it is made")
        return self

    @property
    def definition(self) -> str:
        """The file that says how it is made."""
        return self.python or self.sql or f"models/{self.name}.sql"

    @property
    def per_customer(self) -> bool:
        return self.per == "customer,date"


Asset = Query | Model
