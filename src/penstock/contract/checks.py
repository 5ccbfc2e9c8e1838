"""Rules as Spark columns: true where a row breaks the rule. Spark's meaning of a rule is the one that counts."""

from __future__ import annotations

from typing import assert_never

from pyspark.sql import Column
from pyspark.sql import functions as F

from penstock.config.checks import Allowed, Expression, Range
from penstock.contract.contract import Contract
from penstock.contract.rules import NotNull, Rule
from penstock.contract.schema import spark_type
from penstock.errors import ConfigError
from penstock.sql_guard import SqlRefused, check_spark_expression


def broken(rule: Rule, contract: Contract) -> Column:
    """As in SQL's CHECK, an unknown (null) result does not break a rule."""
    match rule.condition:
        case NotNull(field):
            return F.col(field).isNull()
        case Expression() as check:
            _refuse_unsafe(check, rule, contract)
            return F.coalesce(~F.expr(f"({check.expression})"), F.lit(False))
        case Range() as check:
            return F.coalesce(_outside(check, contract), F.lit(False))
        case Allowed() as check:
            return F.coalesce(~F.col(check.field).isin(*check.values), F.lit(False))
        case _:
            assert_never(rule.condition)


def _refuse_unsafe(check: Expression, rule: Rule, contract: Contract) -> None:
    """A workspace file with such an expression cannot be loaded; a contract may have been kept by an older release."""
    try:
        check_spark_expression(check.expression)
    except SqlRefused as error:
        raise ConfigError(f"{contract.place}: the check {rule.name} is not valid: {error}") from error


def _outside(check: Range, contract: Contract) -> Column:
    column = F.col(check.field)
    kind = spark_type(contract.type_of(check.field))

    # Bounds on numbers stay numbers: a bound of 0.5 on a long must not become 0.
    def bound(value: object) -> Column:
        return F.lit(value).cast(kind) if kind in ("date", "timestamp") else F.lit(value)

    outside = F.lit(False)
    if check.min is not None:
        outside = outside | (column < bound(check.min))
    if check.max is not None:
        outside = outside | (column > bound(check.max))
    return outside
