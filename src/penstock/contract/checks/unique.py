"""unique: combinations of fields that do not repeat inside a partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.config.checks import CheckKind, Unique
from penstock.contract.checks.base import BaseCheck, forbids, library_rule, listed, rule_fields

if TYPE_CHECKING:
    import pyarrow as pa


class UniqueCheck(BaseCheck[Unique]):
    __slots__ = ()

    @property
    def default_name(self) -> str:
        return f"unique({', '.join(self.fields)})"

    @property
    def message(self) -> str:
        return f"{listed(self.fields)} is not unique"

    @property
    def fields(self) -> tuple[str, ...]:
        return self.declared.fields

    def to_odcs(self) -> dict[str, Any]:
        return library_rule("duplicateValues", properties=list(self.fields))

    @classmethod
    def from_odcs(cls, rule: Mapping[str, Any], field: str | None) -> dict[str, Any] | None:
        fields = rule_fields(rule, field)
        return {CheckKind.UNIQUE.value: fields} if forbids(rule, "duplicateValues") and fields else None

    @classmethod
    def from_odcs_property(cls, item: Mapping[str, Any]) -> dict[str, Any] | None:
        return {CheckKind.UNIQUE.value: [item.get("name")]} if item.get("unique") else None


def repeated_keys(rows: pa.Table, fields: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Yield `_item`, the number of surplus rows and the last `_line` of each key that occurs more than once in an item.
    As in SQL, keys with a null are not compared."""
    import pyarrow.compute as pc

    for name in fields:
        if rows.column(name).null_count:
            rows = rows.filter(rows.column(name).is_valid())
    grouped = rows.group_by(["_item", *fields], use_threads=False).aggregate([("_line", "count"), ("_line", "max")])
    again = grouped.filter(pc.greater(grouped.column("_line_count"), 1))
    columns = (again.column(name).to_pylist() for name in ("_item", "_line_count", "_line_max"))
    for item, count, line in zip(*columns, strict=True):
        yield item, count - 1, line
