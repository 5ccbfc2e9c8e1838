"""allowed: values out of a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.config.checks import Allowed, CheckKind
from penstock.contract.checks.base import INT64, ArrowRule, RowCheck, arguments, forbids, library_rule

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column

    from penstock.contract.contract import Contract


class AllowedCheck(RowCheck[Allowed]):
    __slots__ = ()

    @property
    def default_name(self) -> str:
        return f"allowed({self.declared.field})"

    @property
    def message(self) -> str:
        values = ", ".join(str(value) for value in self.declared.values)
        return f"{self.declared.field} is not one of {values}"

    def arrow_rule(self, contract: Contract) -> ArrowRule | None:
        """Evaluates lists of whole numbers on long fields and lists of strings on string fields."""
        import pyarrow as pa
        import pyarrow.compute as pc

        check = self.declared
        types: dict[str, tuple[type[Any], pa.DataType]] = {"long": (int, pa.int64()), "string": (str, pa.string())}
        python, arrow = types.get(contract.type_of(check.field), (None, None))
        if any(type(value) is not python for value in check.values):
            return None
        if python is int and any(value not in INT64 for value in check.values):
            return None
        values = pa.array(check.values, arrow)

        def not_listed(rows: pa.Table) -> pa.ChunkedArray:
            column = rows.column(check.field)
            return pc.and_(pc.invert(pc.is_in(column, value_set=values)), column.is_valid())

        return not_listed

    def spark_rule(self, contract: Contract) -> Column:
        from pyspark.sql import functions as F

        return F.coalesce(~F.col(self.declared.field).isin(*self.declared.values), F.lit(False))

    def spark_fields(self, contract: Contract) -> list[str]:
        return [self.declared.field]

    def to_odcs(self) -> dict[str, Any]:
        return library_rule("invalidValues", property=self.declared.field, validValues=list(self.declared.values))

    @classmethod
    def from_odcs(cls, rule: Mapping[str, Any], field: str | None) -> dict[str, Any] | None:
        named, values = arguments(rule).get("property") or field, arguments(rule).get("validValues")
        if not forbids(rule, "invalidValues") or not named or not values:
            return None
        return {CheckKind.ALLOWED.value: {"field": named, "values": list(values)}}

    @classmethod
    def from_odcs_property(cls, item: Mapping[str, Any]) -> dict[str, Any] | None:
        entries = item.get("enum")
        values = [
            entry["value"]
            for entry in (entries if isinstance(entries, list) else ())
            if isinstance(entry, Mapping) and "value" in entry
        ]
        return {CheckKind.ALLOWED.value: {"field": item.get("name"), "values": values}} if values else None
