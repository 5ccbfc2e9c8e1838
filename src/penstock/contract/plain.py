"""Plain rules, which a worker evaluates itself on the rows it has just parsed.

Most rules compare a field with a number or with another field. Sending every row to the JVM and back for that costs as
much as parsing it. So rules whose meaning is the same in Arrow and in Spark are evaluated by Arrow; all others, and
everything this module is not sure about, go to Spark. A test holds both against each other on random rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.config.checks import Allowed, Expression, Range
from penstock.contract.contract import Contract
from penstock.contract.rules import NotNull, Rule

Plain = Callable[[pa.Table], pa.ChunkedArray]  # true where a row breaks the rule, never null

_INT64 = range(-(2**63), 2**63)
_COMPARISONS = {
    "<=": pc.less_equal,
    ">=": pc.greater_equal,
    "<": pc.less,
    ">": pc.greater,
    "=": pc.equal,
    "==": pc.equal,
    "<>": pc.not_equal,
    "!=": pc.not_equal,
}
_WORDS = ("null", "true", "false", "not", "and", "or")  # no names of fields to Spark
_AND = re.compile(r"\s+and\s+", re.IGNORECASE)
_COMPARISON = re.compile(r"\s*([a-z_]\w*)\s*(<=|>=|<>|!=|==|<|>|=)\s*([a-z_]\w*|-?\d+)\s*", re.IGNORECASE | re.ASCII)


def plain(rule: Rule, contract: Contract) -> Plain | None:
    """The rule as a function of parsed rows; None if it needs Spark."""
    match rule.condition:
        case NotNull(field):
            return lambda rows: rows.column(field).is_null()
        case Expression() as check:
            return _expression(check.expression, contract)
        case Range() as check:
            return _range(check, contract)
        case Allowed() as check:
            return _allowed(check, contract)


def spark_fields(rule: Rule, contract: Contract) -> list[str]:
    """The fields that Spark may need for this rule: never too few."""
    match rule.condition:
        case NotNull(field) | Range(field=field) | Allowed(field=field):
            return [field]
        case Expression() as check:
            text = check.expression.lower()
            return [field.name for field in contract.columns if field.name.lower() in text]


def _expression(text: str, contract: Contract) -> Plain | None:
    """Comparisons of long fields with each other or with whole numbers, joined by AND."""
    holds = [_comparison(part, contract) for part in _AND.split(text)]
    known = [condition for condition in holds if condition is not None]
    return partial(_broken_by, conditions=known) if len(known) == len(holds) else None


def _comparison(text: str, contract: Contract) -> Plain | None:
    found = _COMPARISON.fullmatch(text)
    if found is None:
        return None
    left, compare, right = _long_field(found[1], contract), _COMPARISONS[found[2]], found[3]
    if left is None:
        return None
    if right.lstrip("-").isdigit():
        number = int(right)
        return (lambda rows: compare(rows.column(left), pa.scalar(number, pa.int64()))) if number in _INT64 else None
    other = _long_field(right, contract)
    return None if other is None else (lambda rows: compare(rows.column(left), rows.column(other)))


def _long_field(name: str, contract: Contract) -> str | None:
    """The field of this name, if it is a long. Spark does not tell upper case from lower case in names; we let it."""
    if name.lower() in _WORDS:
        return None
    return next((field.name for field in contract.fields if field.name == name and field.type == "long"), None)


def _broken_by(rows: pa.Table, conditions: list[Plain]) -> pa.ChunkedArray:
    holds = reduce(pc.and_kleene, (condition(rows) for condition in conditions))
    return pc.invert(holds).fill_null(False)


def _range(check: Range, contract: Contract) -> Plain | None:
    if contract.type_of(check.field) != "long":
        return None
    bounds = [
        (compare, limit) for compare, limit in ((pc.less, check.min), (pc.greater, check.max)) if limit is not None
    ]
    if any(type(limit) is not int or limit not in _INT64 for _, limit in bounds):
        return None

    def outside(rows: pa.Table) -> pa.ChunkedArray:
        column = rows.column(check.field)
        return reduce(pc.or_, (compare(column, pa.scalar(limit, pa.int64())) for compare, limit in bounds)).fill_null(
            False
        )

    return outside


def _allowed(check: Allowed, contract: Contract) -> Plain | None:
    kinds: dict[str, tuple[type[Any], pa.DataType]] = {"long": (int, pa.int64()), "string": (str, pa.string())}
    python, arrow = kinds.get(contract.type_of(check.field), (None, None))
    if any(type(value) is not python for value in check.values):
        return None
    if python is int and any(value not in _INT64 for value in check.values):
        return None
    values = pa.array(check.values, arrow)

    def foreign(rows: pa.Table) -> pa.ChunkedArray:
        column = rows.column(check.field)
        return pc.and_(pc.invert(pc.is_in(column, value_set=values)), column.is_valid())

    return foreign
