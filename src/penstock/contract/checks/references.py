"""references: values that exist in the trusted partition of another table, of the same customer and day."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING

from penstock.config.checks import References
from penstock.contract.checks.base import BaseCheck, listed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PARTITION = ("customer_id", "logical_date")


class ReferencesCheck(BaseCheck[References]):
    __slots__ = ()

    @property
    def default_name(self) -> str:
        return f"references({', '.join(self.declared.fields)})"

    @property
    def message(self) -> str:
        check = self.declared
        referenced = ", ".join(check.referenced_fields)
        return f"{listed(check.fields)} is not in {check.to} ({referenced}) of this customer and day"

    def missing_input(self, day: date | None) -> str:
        return f"needs the rows of {self.declared.to}"

    def spark_missing(self, rows: DataFrame, tables: Sequence[DataFrame]) -> DataFrame:
        """Return the `rows` whose values are in none of the `tables`. `rows` has the columns customer_id, logical_date
        and the fields of the check. `tables` is one frame for each schema version of the other table, or a single frame
        if their types agree. Rows with a null are left out."""
        from pyspark.sql import functions as F

        fields, keys = self.declared.fields, [f"_key{number}" for number in range(len(self.declared.fields))]
        as_text = len(tables) > 1  # the types of the versions differ, so all values are compared as text

        def column(field: str, key: str) -> Column:
            return (F.col(field).cast("string") if as_text else F.col(field)).alias(key)

        found = rows.dropna(subset=list(fields)).select("*", *(column(f, k) for f, k in zip(fields, keys, strict=True)))
        for table in tables:
            referenced = zip(self.declared.referenced_fields, keys, strict=True)
            known = table.select(*_PARTITION, *(column(field, key) for field, key in referenced))
            found = found.join(known, [*_PARTITION, *keys], "left_anti")
        return found
