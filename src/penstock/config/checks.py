"""What a slice is held against: the fields of a table, and the checks on them. One that cannot hold is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

import pydantic
from pydantic import (
    AfterValidator,
    BeforeValidator,
    TypeAdapter,
    ValidationInfo,
)

from penstock import field_types
from penstock.config.values import LIST, Declared, Duration, KeyDoc, Names, did_you_mean, distinct, in_words, named
from penstock.errors import ConfigError
from penstock.sql_guard import check_spark_expression

RESERVED_FIELDS = ("customer_id", "logical_date", "schema_version")
FIELD_TYPES = field_types.WRITTEN
_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}([T ].+)?")


def _field_name(text: str) -> str:
    if text in RESERVED_FIELDS or text.startswith("_"):
        names = f"{', '.join(RESERVED_FIELDS)} and names that start with _"
        raise ValueError(f"{text!r} is reserved; Penstock adds columns of its own: {names}")
    return named(text)


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

    documentation: ClassVar = {
        "name": KeyDoc(
            "The column. Reserved: `customer_id`, `logical_date`, `schema_version`, and names with a leading `_`.",
            "clicks",
        ),
        "type": KeyDoc("The type: see [contracts](../contracts.md#fields).", '"decimal(10,2)"', "type"),
        "required": KeyDoc("Whether a null in the column rejects the partition.", "true"),
        "default": KeyDoc(
            "The value of rows that do not have the field. An explicit null stays null.", "DE", "value of the type"
        ),
    }

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
    values: Annotated[tuple[Scalar, ...], LIST, AfterValidator(distinct)]


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


def safe_to_run(check: _AnyCheck) -> _AnyCheck:
    """Refuses an expression that calls functions beyond the list of `sql_guard`. Contracts that are already stored are
    checked when they are used, because they must stay readable."""
    if isinstance(check, Expression):
        check_spark_expression(check.expression)
    return check


def fits_the_fields(check: _AnyCheck, info: ValidationInfo) -> _AnyCheck:
    """Refuses a check on a field that the query does not have, or of a type that the check cannot judge."""
    safe_to_run(check)
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
