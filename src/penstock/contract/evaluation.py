"""The checks of a contract, grouped by the way in which they are evaluated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, assert_never

from penstock.contract.checks.base import CountCheck, RowCheck, StatsCheck
from penstock.contract.checks.compare import CompareCheck
from penstock.contract.checks.references import ReferencesCheck
from penstock.contract.checks.registry import bind
from penstock.contract.checks.required import RequiredCheck
from penstock.contract.checks.unique import UniqueCheck
from penstock.contract.complaint import Complaint
from penstock.contract.contract import Contract

if TYPE_CHECKING:
    from datetime import date

    from penstock.contract.slice_stats import SliceStats


@dataclass(frozen=True, slots=True)
class _Groups:
    """The checks of a contract, each in exactly one list, in the order of the contract."""

    rows: list[RowCheck[Any]] = field(default_factory=list)
    keys: list[UniqueCheck] = field(default_factory=list)
    counts: list[CountCheck[Any]] = field(default_factory=list)
    stats: list[StatsCheck[Any]] = field(default_factory=list)
    references: list[ReferencesCheck] = field(default_factory=list)


def _grouped(contract: Contract) -> _Groups:
    groups = _Groups()
    for declared in contract.checks:
        check = bind(declared)
        match check:
            case RowCheck():
                groups.rows.append(check)
            case UniqueCheck():
                groups.keys.append(check)
            case CountCheck():
                groups.counts.append(check)
            case StatsCheck():
                groups.stats.append(check)
            case ReferencesCheck():
                groups.references.append(check)
            case _:
                assert_never(check)
    return groups


def row_rules(contract: Contract) -> list[RowCheck[Any]]:
    """Every condition on single rows: required fields first, then checks in the order of the contract."""
    required = [RequiredCheck.of_field(field.name) for field in contract.fields if field.required]
    return [*required, *(rule for check in _grouped(contract).rows for rule in check.rules())]


def unique_checks(contract: Contract) -> list[UniqueCheck]:
    return _grouped(contract).keys


def reference_checks(contract: Contract) -> list[ReferencesCheck]:
    return _grouped(contract).references


def count_complaints(contract: Contract, count: int, previous: int | None) -> list[Complaint]:
    """Evaluate the checks on the number of rows; `previous` is the count of the trusted run, if there is one."""
    return [complaint for check in _grouped(contract).counts for complaint in check.complaints(count, previous)]


def stats_complaints(contract: Contract, stats: SliceStats) -> list[Complaint]:
    """Evaluate the checks on statistics of fields."""
    return [complaint for check in _grouped(contract).stats for complaint in check.complaints(stats)]


def stats_fields(contract: Contract) -> list[str]:
    """The fields whose statistics some check needs, each once."""
    return list(dict.fromkeys(name for check in _grouped(contract).stats for name in check.declared.named_fields))


def measures(contract: Contract, stats: SliceStats) -> dict[str, float | None]:
    """The aggregates that later runs are compared with."""
    found = (check for check in _grouped(contract).stats if isinstance(check, CompareCheck))
    return {check.declared.measure: check.measured(stats) for check in found}


def guard_names(contract: Contract) -> set[str]:
    """The names of the checks whose rejection an operator may overrule."""
    return {check.name for check in map(bind, contract.checks) if check.is_guard}


def missing_inputs(contract: Contract, day: date | None) -> list[str]:
    """The checks that cannot be evaluated on the rows of one file of this day, each with what it needs."""
    found = ((check.name, check.missing_input(day)) for check in map(bind, contract.checks))
    return [f"{name}: {reason}" for name, reason in found if reason is not None]
