"""range: values between two bounds, both included."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

from penstock.config.checks import CheckKind, Range
from penstock.contract.checks.base import INT64, ArrowRule, RowCheck

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column

    from penstock.contract.contract import Contract

_ODCS_BOUNDS = (("min", "minimum"), ("max", "maximum"))


class RangeCheck(RowCheck[Range]):
    __slots__ = ()

    @property
    def default_name(self) -> str:
        return f"range({self.declared.field})"

    @property
    def message(self) -> str:
        bounds = (("at least", self.declared.min), ("at most", self.declared.max))
        limits = " and ".join(f"{text} {value}" for text, value in bounds if value is not None)
        return f"{self.declared.field} is not {limits}"

    def arrow_rule(self, contract: Contract) -> ArrowRule | None:
        """Evaluates whole bounds on long fields."""
        import pyarrow as pa
        import pyarrow.compute as pc

        check = self.declared
        if contract.type_of(check.field) != "long":
            return None
        bounds = [
            (compare, limit) for compare, limit in ((pc.less, check.min), (pc.greater, check.max)) if limit is not None
        ]
        if any(type(limit) is not int or limit not in INT64 for _, limit in bounds):
            return None

        def outside(rows: pa.Table) -> pa.ChunkedArray:
            column = rows.column(check.field)
            found = [compare(column, pa.scalar(limit, pa.int64())) for compare, limit in bounds]
            return reduce(pc.or_, found).fill_null(False)

        return outside

    def spark_rule(self, contract: Contract) -> Column:
        from pyspark.sql import functions as F

        from penstock.contract.schema import spark_type

        column = F.col(self.declared.field)
        kind = spark_type(contract.type_of(self.declared.field))

        # Bounds on numbers stay numbers: a bound of 0.5 on a long must not become 0.
        def bound(value: object) -> Column:
            return F.lit(value).cast(kind) if kind in ("date", "timestamp") else F.lit(value)

        outside = F.lit(False)
        if self.declared.min is not None:
            outside = outside | (column < bound(self.declared.min))
        if self.declared.max is not None:
            outside = outside | (column > bound(self.declared.max))
        return F.coalesce(outside, F.lit(False))

    def spark_fields(self, contract: Contract) -> list[str]:
        return [self.declared.field]

    @classmethod
    def from_odcs_property(cls, item: Mapping[str, Any]) -> dict[str, Any] | None:
        options = item.get("logicalTypeOptions")
        if not isinstance(options, Mapping):
            return None
        bounds = {ours: options[theirs] for ours, theirs in _ODCS_BOUNDS if theirs in options}
        return {CheckKind.RANGE.value: {"field": item.get("name"), **bounds}} if bounds else None
