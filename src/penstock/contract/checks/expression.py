"""expression: a Spark SQL predicate on every row."""

from __future__ import annotations

import re
from functools import partial, reduce
from typing import TYPE_CHECKING

from penstock.config.checks import Expression
from penstock.contract.checks.base import INT64, ArrowRule, RowCheck
from penstock.errors import ConfigError
from penstock.sql_guard import SqlRefused, check_spark_expression

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column

    from penstock.contract.contract import Contract

_FUNCTIONS = {  # in pyarrow.compute
    "<=": "less_equal",
    ">=": "greater_equal",
    "<": "less",
    ">": "greater",
    "=": "equal",
    "==": "equal",
    "<>": "not_equal",
    "!=": "not_equal",
}
_KEYWORDS = ("null", "true", "false", "not", "and", "or")  # Spark does not read them as names of fields
_AND = re.compile(r"\s+and\s+", re.IGNORECASE)
_COMPARISON = re.compile(r"\s*([a-z_]\w*)\s*(<=|>=|<>|!=|==|<|>|=)\s*([a-z_]\w*|-?\d+)\s*", re.IGNORECASE | re.ASCII)


class ExpressionCheck(RowCheck[Expression]):
    __slots__ = ()

    @property
    def default_name(self) -> str:
        return f"expression({self.declared.expression})"

    @property
    def message(self) -> str:
        return f"not ({self.declared.expression})"

    def arrow_rule(self, contract: Contract) -> ArrowRule | None:
        """Evaluates comparisons of long fields with each other or with whole numbers, joined by AND."""
        holds = [_comparison(part, contract) for part in _AND.split(self.declared.expression)]
        known = [condition for condition in holds if condition is not None]
        return partial(_broken, conditions=known) if len(known) == len(holds) else None

    def spark_rule(self, contract: Contract) -> Column:
        """Raises ConfigError for an expression that `sql_guard` refuses. A workspace file with such an expression is
        refused when it is loaded, but an older release may have stored a contract with it."""
        from pyspark.sql import functions as F

        try:
            check_spark_expression(self.declared.expression)
        except SqlRefused as error:
            raise ConfigError(f"{contract.place}: the check {self.name} is not valid: {error}") from error
        return F.coalesce(~F.expr(f"({self.declared.expression})"), F.lit(False))

    def spark_fields(self, contract: Contract) -> list[str]:
        text = self.declared.expression.lower()
        return [field.name for field in contract.columns if field.name.lower() in text]


def _comparison(text: str, contract: Contract) -> ArrowRule | None:
    """Return a function that is true where the comparison holds; None if Arrow does not evaluate it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = _COMPARISON.fullmatch(text)
    if found is None:
        return None
    left, right = _long_field(found[1], contract), found[3]
    compare = getattr(pc, _FUNCTIONS[found[2]])
    if left is None:
        return None
    if right.lstrip("-").isdigit():
        number = int(right)
        return (lambda rows: compare(rows.column(left), pa.scalar(number, pa.int64()))) if number in INT64 else None
    other = _long_field(right, contract)
    return None if other is None else (lambda rows: compare(rows.column(left), rows.column(other)))


def _long_field(name: str, contract: Contract) -> str | None:
    """Return the name if a field of type long has exactly this name. Spark ignores the case of names; names that differ
    in case are left to Spark."""
    if name.lower() in _KEYWORDS:
        return None
    return next((field.name for field in contract.fields if field.name == name and field.type == "long"), None)


def _broken(rows: pa.Table, conditions: list[ArrowRule]) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    holds = reduce(pc.and_kleene, (condition(rows) for condition in conditions))
    return pc.invert(holds).fill_null(False)
