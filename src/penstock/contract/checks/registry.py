"""The registry of check kinds: the one place that links a kind to its module.

A new kind is a member of `CheckKind`, a declaration in `penstock.config.checks`, a module here and a line in
`check_class`. mypy refuses a kind that lacks one of these, and a kind that no group of `penstock.contract.evaluation`
evaluates.
"""

from __future__ import annotations

from typing import Any, assert_never

from penstock.config.checks import AnyCheck, CheckKind
from penstock.contract.checks.allowed import AllowedCheck
from penstock.contract.checks.base import CountCheck, RowCheck, StatsCheck
from penstock.contract.checks.compare import CompareCheck
from penstock.contract.checks.expression import ExpressionCheck
from penstock.contract.checks.freshness import FreshnessCheck
from penstock.contract.checks.not_null_share import NotNullShareCheck
from penstock.contract.checks.range import RangeCheck
from penstock.contract.checks.references import ReferencesCheck
from penstock.contract.checks.required import RequiredCheck
from penstock.contract.checks.rows import RowsCheck
from penstock.contract.checks.shrink import ShrinkCheck
from penstock.contract.checks.unique import UniqueCheck

EvaluatedCheck = RowCheck[Any] | UniqueCheck | CountCheck[Any] | StatsCheck[Any] | ReferencesCheck


def check_class(kind: CheckKind) -> type[EvaluatedCheck]:
    """Return the class that evaluates checks of this kind."""
    match kind:
        case CheckKind.REQUIRED:
            return RequiredCheck
        case CheckKind.UNIQUE:
            return UniqueCheck
        case CheckKind.EXPRESSION:
            return ExpressionCheck
        case CheckKind.ROWS:
            return RowsCheck
        case CheckKind.SHRINK:
            return ShrinkCheck
        case CheckKind.RANGE:
            return RangeCheck
        case CheckKind.ALLOWED:
            return AllowedCheck
        case CheckKind.NOT_NULL_SHARE:
            return NotNullShareCheck
        case CheckKind.FRESHNESS:
            return FreshnessCheck
        case CheckKind.REFERENCES:
            return ReferencesCheck
        case CheckKind.COMPARE:
            return CompareCheck
        case _:
            assert_never(kind)


def bind(declared: AnyCheck) -> EvaluatedCheck:
    """Return the declared check with the evaluation of its kind."""
    evaluated: type[Any] = check_class(declared.kind)  # mypy cannot relate the kind to the type of its declaration
    bound: EvaluatedCheck = evaluated(declared)
    return bound
