"""Declarations of fields and checks as penstock.yaml and stored contracts write them.

`penstock.contract.checks` evaluates checks, one module per kind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, Self, assert_never

import pydantic
from pydantic import (
    AfterValidator,
    BeforeValidator,
    TypeAdapter,
    ValidationInfo,
)

from penstock import field_types
from penstock.config.values import (
    LIST,
    Declared,
    Duration,
    KeyDoc,
    Names,
    describe_problem,
    did_you_mean,
    distinct,
    named,
)
from penstock.errors import ConfigError
from penstock.sql_guard import check_spark_expression

RESERVED_FIELDS = ("customer_id", "logical_date", "schema_version")
FIELD_TYPES = field_types.WRITTEN
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}([T ].+)?")


def _field_name(text: str) -> str:
    if text in RESERVED_FIELDS or text.startswith("_"):
        names = f"{', '.join(RESERVED_FIELDS)} and names that start with _"
        raise ValueError(f"{text!r} is reserved; Penstock adds columns of its own: {names}")
    return named(text)


def _field_type(text: str) -> str:
    """Return the canonical spelling of the type."""
    try:
        return str(field_types.kind_of(text))
    except field_types.UnknownType:
        pass  # refused below, with a hint
    brackets = text.startswith(("decimal(", "array<", "struct<"))
    hint = "; inside { } put it in quotes" if brackets else did_you_mean(text, FIELD_TYPES)
    raise ValueError(f"{text!r} is not a type (types: {', '.join(FIELD_TYPES)}){hint}")


def _as_json(value: object) -> object:
    """Return a value of the workspace file as JSON stores it, with dates and times as text."""
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
    # the value of rows without the field; an explicit null stays null
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
    def _has_the_type_of_the_field(cls, value: Any, info: ValidationInfo) -> Any:
        type_ = info.data.get("type")
        if value is not None and type_ is not None and not field_types.reader(field_types.kind_of(type_))(value):
            raise ValueError(f"{value!r} is not a value of the type {type_}")
        return value


def _scalar(value: object) -> object:
    """Return a value that JSON can store and a column can be compared with; dates become text."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError("must be text, a number, true, false or a date")


def _bound(value: object) -> object:
    value = None if value is None else _scalar(value)
    if isinstance(value, bool) or (isinstance(value, str) and _parse_time(value) is None):
        raise ValueError(f"{value!r} is no bound: write a number, or a date as YYYY-MM-DD")
    return value


def _parse_time(text: str) -> datetime | None:
    """Return the date or time in the text, in UTC if it has no offset; None if it is neither."""
    try:
        moment = datetime.fromisoformat(text) if _TIME.fullmatch(text) else None
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment and moment.tzinfo is None else moment


Severity = Literal["reject", "warn"]
Scalar = Annotated[str | int | float | bool, BeforeValidator(_scalar)]
Bound = Annotated[int | float | str | None, BeforeValidator(_bound)]


class CheckKind(StrEnum):
    """The kinds of checks, by the names that penstock.yaml and stored contracts use."""

    REQUIRED = "required"
    UNIQUE = "unique"
    EXPRESSION = "expression"
    ROWS = "rows"
    SHRINK = "shrink"
    RANGE = "range"
    ALLOWED = "allowed"
    NOT_NULL_SHARE = "not_null_share"
    FRESHNESS = "freshness"
    REFERENCES = "references"
    COMPARE = "compare"


class _Check(Declared):
    not_in_yaml = frozenset({"kind", "name", "severity"})
    # the only key of the check, whose value YAML writes directly under the kind; None if the kind takes a map
    single_key: ClassVar[str | None] = None

    kind: CheckKind
    name: Annotated[str, pydantic.Field(min_length=1)] | None = None
    severity: Severity = "reject"

    @property
    def named_fields(self) -> tuple[str, ...]:
        """The fields that the check names; each must be a field of the query."""
        return ()

    def type_problems(self, field: str, type_: str) -> list[str]:
        """Return the reasons why the check cannot be applied to this field of this type."""
        return [f"{self._unfit(field, type_)}; use expression"] if field_types.is_nested(type_) else []

    def _unfit(self, field: str, type_: str) -> str:
        return f"{self.kind} does not suit {field}, which is a {type_}"


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
    """The fields have a value in every row."""

    single_key = "fields"

    kind: Literal[CheckKind.REQUIRED] = CheckKind.REQUIRED

    def type_problems(self, field: str, type_: str) -> list[str]:
        return []


class Unique(_FieldsCheck):
    """The combination of these fields does not repeat inside a partition."""

    single_key = "fields"

    kind: Literal[CheckKind.UNIQUE] = CheckKind.UNIQUE


class Expression(_Check):
    """A Spark SQL predicate is not false for any row."""

    single_key = "expression"

    kind: Literal[CheckKind.EXPRESSION] = CheckKind.EXPRESSION
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
        low, high = (_parse_time(bound) if isinstance(bound, str) else bound for bound in (lowest, highest))
        if low is not None and high is not None and high < low:
            raise ValueError(f"max {highest!r} is below min {lowest!r}")
        return self


class Rows(_Bounded):
    """The partition has at least min and at most max rows."""

    kind: Literal[CheckKind.ROWS] = CheckKind.ROWS
    min: Annotated[int, pydantic.Field(ge=0)] | None = None
    max: Annotated[int, pydantic.Field(ge=0)] | None = None


class Shrink(_Check):
    """The partition has lost at most this share of the rows of the trusted run."""

    kind: Literal[CheckKind.SHRINK] = CheckKind.SHRINK
    max_drop: Annotated[float, pydantic.Field(gt=0, le=1)]


class Range(_FieldCheck, _Bounded):
    """Every value of the field lies between min and max, both included."""

    kind: Literal[CheckKind.RANGE] = CheckKind.RANGE
    min: Bound = None
    max: Bound = None

    def type_problems(self, field: str, type_: str) -> list[str]:
        if field_types.is_nested(type_):
            return super().type_problems(field, type_)
        if type_ in ("string", "boolean"):
            return [f"{self._unfit(field, type_)}; use allowed or expression"]
        # a whole number may have a fraction as its bound
        compared = "double" if type_ == "long" else type_
        bounds = [bound for bound in (self.min, self.max) if bound is not None and not _is_comparable(compared, bound)]
        return [f"{bound!r} cannot be a bound of {field}, which is a {type_}" for bound in bounds]


class Allowed(_FieldCheck):
    """Every value of the field is one of these."""

    kind: Literal[CheckKind.ALLOWED] = CheckKind.ALLOWED
    values: Annotated[tuple[Scalar, ...], LIST, AfterValidator(distinct)]

    def type_problems(self, field: str, type_: str) -> list[str]:
        if field_types.is_nested(type_):
            return super().type_problems(field, type_)
        wrong = [value for value in self.values if not _is_comparable(type_, value)]
        return [f"{value!r} cannot be a value of {field}, which is a {type_}" for value in wrong]


class NotNullShare(_FieldCheck):
    """At least this share of the rows has a value in the field."""

    kind: Literal[CheckKind.NOT_NULL_SHARE] = CheckKind.NOT_NULL_SHARE
    min: Annotated[float, pydantic.Field(gt=0, le=1)]

    def type_problems(self, field: str, type_: str) -> list[str]:
        return []


class Recent(_FieldCheck):
    """The newest time in the field is at most max_lag before the end of the logical date in UTC."""

    kind: Literal[CheckKind.FRESHNESS] = CheckKind.FRESHNESS
    max_lag: Duration

    def type_problems(self, field: str, type_: str) -> list[str]:
        if field_types.is_nested(type_) or type_ == "timestamp":
            return super().type_problems(field, type_)
        return [f"{self._unfit(field, type_)}; it needs a timestamp"]


class References(_Check):
    """Every value exists in the trusted partition of another table, of the same customer and day."""

    also_in_yaml = ("field", "to_field")

    kind: Literal[CheckKind.REFERENCES] = CheckKind.REFERENCES
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
    def referenced_fields(self) -> tuple[str, ...]:
        return self.to_fields or self.fields


class Compare(_Check):
    """An aggregate of the partition differs from that of the trusted run by at most this share."""

    kind: Literal[CheckKind.COMPARE] = CheckKind.COMPARE
    field: str | None = None
    function: Literal["sum", "count", "avg", "min", "max"]
    max_change: Annotated[float, pydantic.Field(gt=0)]

    @pydantic.model_validator(mode="after")
    def _field_or_count(self) -> Self:
        if self.field is None and self.function != "count":
            raise ValueError(f"{self.function} needs a field; only count can do without one, it counts rows then")
        return self

    def type_problems(self, field: str, type_: str) -> list[str]:
        if field_types.is_nested(type_) or self.function == "count" or _is_numeric(type_):
            return super().type_problems(field, type_)
        return [f"{self._unfit(field, type_)}; {self.function} needs numbers"]

    @property
    def named_fields(self) -> tuple[str, ...]:
        return () if self.field is None else (self.field,)

    @property
    def measure(self) -> str:
        """The name under which the aggregate is stored with an attempt, for example sum(clicks)."""
        return f"{self.function}({self.field or '*'})"


AnyCheck = (
    Required | Unique | Expression | Rows | Shrink | Range | Allowed | NotNullShare | Recent | References | Compare
)


def declaration(kind: CheckKind) -> type[AnyCheck]:
    """Return the class that declares checks of this kind."""
    match kind:
        case CheckKind.REQUIRED:
            return Required
        case CheckKind.UNIQUE:
            return Unique
        case CheckKind.EXPRESSION:
            return Expression
        case CheckKind.ROWS:
            return Rows
        case CheckKind.SHRINK:
            return Shrink
        case CheckKind.RANGE:
            return Range
        case CheckKind.ALLOWED:
            return Allowed
        case CheckKind.NOT_NULL_SHARE:
            return NotNullShare
        case CheckKind.FRESHNESS:
            return Recent
        case CheckKind.REFERENCES:
            return References
        case CheckKind.COMPARE:
            return Compare
        case _:
            assert_never(kind)


_KINDS = [kind.value for kind in CheckKind]
_BESIDE = ("name", "severity")  # keys beside the kind, not inside its map


def _model_fields(written: object) -> object:
    """Turn `{unique: [a], name: x}` into the fields of its model: `{kind: unique, fields: [a], name: x}`."""
    if isinstance(written, _Check):
        return written
    kinds = ", ".join(_KINDS)
    if not isinstance(written, Mapping):
        raise ValueError(f"a check is a map with one of the keys {kinds}, for example {{unique: [campaign_id]}}")
    for key in written:
        if key not in _KINDS and key not in _BESIDE:
            raise ValueError(f"{key!r} is not a check (checks: {kinds}){did_you_mean(key, [*_KINDS, *_BESIDE])}")
    found, *more = [key for key in written if key not in _BESIDE] or [None]
    if found is None or more:
        raise ValueError(f"a check has exactly one of the keys {kinds}")
    kind, body = CheckKind(found), written[found]
    declared = declaration(kind)
    if declared.single_key is not None:
        body = {declared.single_key: body}
    elif not isinstance(body, Mapping):
        raise ValueError(f"{kind} takes a map of {', '.join(declared.keys_in_yaml())}")
    elif misplaced := [key for key in body if key in _Check.not_in_yaml]:
        raise ValueError(f"{misplaced[0]!r} does not belong inside {kind}: put name and severity next to it")
    return {**body, "kind": kind} | {key: written[key] for key in _BESIDE if key in written}


Check = Annotated[AnyCheck, pydantic.Field(discriminator="kind"), BeforeValidator(_model_fields)]
_CHECK: TypeAdapter[AnyCheck] = TypeAdapter(Check)


def check_from_mapping(mapping: Mapping[str, Any]) -> AnyCheck:
    """Parse a check from its form in YAML and stored contracts, `{unique: [campaign_id]}`; ConfigError if invalid."""
    try:
        return _CHECK.validate_python(mapping)
    except pydantic.ValidationError as error:
        raise ConfigError("\n".join(describe_problem(problem) for problem in error.errors(include_url=False))) from None


def check_to_mapping(check: AnyCheck) -> dict[str, Any]:
    """Return the check as JSON, in the form that `check_from_mapping` parses."""
    body: Any = check.model_dump(mode="json", exclude={"kind", *_BESIDE}, exclude_none=True)
    if check.single_key is not None:
        body = body[check.single_key]
    beside = check.model_dump(include=set(_BESIDE), exclude_defaults=True)
    return {check.kind.value: body} | {key: beside[key] for key in _BESIDE if key in beside}


def _is_comparable(type_: str, value: object) -> bool:
    """Return whether the value may be compared with a column of this type."""
    if isinstance(value, bool):
        return type_ == "boolean"
    if isinstance(value, int):
        return _is_numeric(type_)
    if isinstance(value, float):
        return type_ == "double" or type_.startswith("decimal")
    moment = _parse_time(value) if isinstance(value, str) else None
    if type_ == "date":
        return moment is not None and len(str(value)) == len("2024-06-01")
    return type_ == "string" or (type_ == "timestamp" and moment is not None)


def refuse_unsafe_expression(check: AnyCheck) -> AnyCheck:
    """Refuse an expression that calls a function outside the list of `sql_guard`. Stored contracts are not refused
    when they are parsed, because they must stay readable; their expressions are checked again before Spark evaluates
    them."""
    if isinstance(check, Expression):
        check_spark_expression(check.expression)
    return check


def refuse_unfit_check(check: AnyCheck, info: ValidationInfo) -> AnyCheck:
    """Refuse an unsafe expression, a check on an unknown field, and a check on a field of a type that it does not
    support."""
    refuse_unsafe_expression(check)
    owner: str = info.data.get("name", "this query")
    fields: tuple[Field, ...] | None = info.data.get("fields")
    if fields is None:
        # some field was refused; the names of all fields are still known, so unknown names can be reported as well
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
        text for name in check.named_fields if name in types for text in check.type_problems(name, types[name])
    ]
    if problems:
        raise ValueError("; ".join(problems))
    return check


def _is_numeric(type_: str) -> bool:
    return type_ in ("long", "double") or type_.startswith("decimal")
