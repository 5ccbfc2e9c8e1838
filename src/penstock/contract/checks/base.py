"""Base classes of the check kinds: one for each way of evaluation that several kinds share.

| class | evaluated on | kinds |
|---|---|---|
| `RowCheck` | single rows: by Arrow in the worker, else by Spark | required, expression, range, allowed |
| `CountCheck` | the number of rows | rows, shrink |
| `StatsCheck` | statistics of fields | not_null_share, freshness, compare |
| `UniqueCheck` | the keys of a partition | unique |
| `ReferencesCheck` | rows of another table | references |

Modules of this package import Arrow and Spark only inside the functions that evaluate with them, so that commands which
only parse or export contracts load neither.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from penstock.config.checks import AnyCheck, Severity, check_to_mapping
from penstock.contract.complaint import Complaint

if TYPE_CHECKING:
    from datetime import date

    import pyarrow as pa
    from pyspark.sql import Column

    from penstock.contract.contract import Contract
    from penstock.contract.slice_stats import SliceStats

C = TypeVar("C", bound=AnyCheck)
ArrowRule = Callable[["pa.Table"], "pa.ChunkedArray"]  # true where a row breaks the rule, never null

INT64 = range(-(2**63), 2**63)
ENGINE = "penstock"  # of quality rules that the Open Data Contract Standard has no metric for


@dataclass(frozen=True, slots=True)
class BaseCheck(ABC, Generic[C]):
    """A declared check with the evaluation, messages and exchange formats of its kind."""

    declared: C

    is_guard: ClassVar[bool] = False  # compares with the trusted run, so an operator may approve the rejected run

    @property
    def name(self) -> str:
        """The name of the check in complaints."""
        return self.declared.name or self.default_name

    @property
    def severity(self) -> Severity:
        return self.declared.severity

    @property
    @abstractmethod
    def default_name(self) -> str:
        """The name of a check that declares none."""

    def missing_input(self, day: date | None) -> str | None:
        """Return what the check needs beside the rows of one file, or None if it can be evaluated on a file. `day` is
        the logical date of the rows, if it is known."""
        return None

    def to_odcs(self) -> dict[str, Any]:
        """Return the check as a quality rule of the Open Data Contract Standard, without name and severity."""
        mapping = check_to_mapping(self.declared)
        kind = self.declared.kind.value
        return {"type": "custom", "engine": ENGINE, "implementation": {kind: mapping[kind]}}

    @classmethod
    def from_odcs(cls, rule: Mapping[str, Any], field: str | None) -> dict[str, Any] | None:
        """Return the check that a library quality rule states, as a mapping; None if it is not of this kind. `field`
        is the property that the rule belongs to, None for rules of the table."""
        return None

    @classmethod
    def from_odcs_property(cls, item: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the check of this kind that the attributes of a property state, or None."""
        return None


class RowCheck(BaseCheck[C]):
    """A condition on every row. As with CHECK in SQL, an unknown (null) result does not break it."""

    __slots__ = ()

    @property
    @abstractmethod
    def message(self) -> str: ...

    def rules(self) -> Iterator[RowCheck[C]]:
        """The check as checks with one condition each, which are counted and reported on their own."""
        yield self

    @abstractmethod
    def arrow_rule(self, contract: Contract) -> ArrowRule | None:
        """Return the evaluation by Arrow, or None if it might differ from the evaluation by Spark."""

    @abstractmethod
    def spark_rule(self, contract: Contract) -> Column:
        """Return a boolean column that is true where a row breaks the check. Its result is the reference for Arrow."""

    @abstractmethod
    def spark_fields(self, contract: Contract) -> list[str]:
        """Return the fields that `spark_rule` may read: possibly too many, never too few."""


class CountCheck(BaseCheck[C]):
    """A condition on the number of rows of a partition."""

    __slots__ = ()

    @abstractmethod
    def problems(self, count: int, previous: int | None) -> Iterator[str]:
        """Yield a message for each violation; `previous` is the row count of the trusted run, if there is one."""

    def complaints(self, count: int, previous: int | None) -> list[Complaint]:
        return [
            Complaint(self.name, message, count, severity=self.severity) for message in self.problems(count, previous)
        ]


class StatsCheck(BaseCheck[C]):
    """A condition on statistics of a partition's fields."""

    __slots__ = ()

    @abstractmethod
    def problems(self, stats: SliceStats) -> Iterator[tuple[int, str]]:
        """Yield the number of affected rows and a message for each violation."""

    def complaints(self, stats: SliceStats) -> list[Complaint]:
        return [Complaint(self.name, message, count, severity=self.severity) for count, message in self.problems(stats)]


def library_rule(metric: str, **arguments: Any) -> dict[str, Any]:
    """A quality rule of the standard's library that must not find any row."""
    return {"type": "library", "metric": metric, "arguments": arguments, "mustBe": 0}


def forbids(rule: Mapping[str, Any], metric: str) -> bool:
    """Whether a quality rule demands that no row is found by this metric. Rules with other limits, such as shares, have
    no counterpart among the checks."""
    return (rule.get("metric") or rule.get("rule")) == metric and rule.get("mustBe") == 0


def rule_fields(rule: Mapping[str, Any], field: str | None) -> list[str]:
    """The fields that a quality rule names in its arguments, else the property that it belongs to."""
    return list(arguments(rule).get("properties") or ([field] if field else []))


def arguments(rule: Mapping[str, Any]) -> Mapping[str, Any]:
    found = rule.get("arguments")
    return found if isinstance(found, Mapping) else {}


def listed(fields: Sequence[str]) -> str:
    """One field by its name, several in parentheses."""
    return fields[0] if len(fields) == 1 else f"({', '.join(fields)})"
