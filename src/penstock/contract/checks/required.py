"""required: fields that have a value in every row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from penstock.config.checks import CheckKind, Required
from penstock.contract.checks.base import ArrowRule, RowCheck, forbids, library_rule, rule_fields

if TYPE_CHECKING:
    from pyspark.sql import Column

    from penstock.contract.contract import Contract


class RequiredCheck(RowCheck[Required]):
    """Fields with `required: true` have the same check."""

    __slots__ = ()

    @classmethod
    def of_field(cls, name: str) -> RequiredCheck:
        return cls(Required.model_construct(fields=(name,)))

    @property
    def name(self) -> str:
        # each field is reported on its own, so a declared name would not name the missing one
        return self.default_name

    @property
    def default_name(self) -> str:
        return f"required({', '.join(self.declared.fields)})"

    @property
    def message(self) -> str:
        return f"{self._field} is missing"

    @property
    def _field(self) -> str:
        [field] = self.declared.fields
        return field

    def rules(self) -> Iterator[RequiredCheck]:
        yield from (
            RequiredCheck(Required.model_construct(fields=(name,), severity=self.severity))
            for name in self.declared.fields
        )

    def arrow_rule(self, contract: Contract) -> ArrowRule:
        field = self._field
        return lambda rows: rows.column(field).is_null()

    def spark_rule(self, contract: Contract) -> Column:
        from pyspark.sql import functions as F

        return F.col(self._field).isNull()

    def spark_fields(self, contract: Contract) -> list[str]:
        return [self._field]

    def to_odcs(self) -> dict[str, Any]:
        return library_rule("nullValues", properties=list(self.declared.fields))

    @classmethod
    def from_odcs(cls, rule: Mapping[str, Any], field: str | None) -> dict[str, Any] | None:
        fields = rule_fields(rule, field)
        return {CheckKind.REQUIRED.value: fields} if forbids(rule, "nullValues") and fields else None
