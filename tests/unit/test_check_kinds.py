"""Every kind of check is declared, evaluated, exported and tested."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

import penstock
from penstock.config.checks import AnyCheck, CheckKind, Field, check_from_mapping, check_to_mapping, declaration
from penstock.contract.checks.registry import bind, check_class
from penstock.contract.contract import Contract
from penstock.contract.evaluation import (
    count_complaints,
    guard_names,
    missing_inputs,
    reference_checks,
    row_rules,
    stats_fields,
    unique_checks,
)
from support.builders import contract

# One check of each kind: a new kind needs a line here.
EXAMPLES: dict[CheckKind, Any] = {
    CheckKind.REQUIRED: ["clicks", "campaign_id"],
    CheckKind.UNIQUE: ["campaign_id"],
    CheckKind.EXPRESSION: "clicks <= impressions",
    CheckKind.ROWS: {"min": 1},
    CheckKind.SHRINK: {"max_drop": 0.5},
    CheckKind.RANGE: {"field": "clicks", "min": 0},
    CheckKind.ALLOWED: {"field": "clicks", "values": [1, 2]},
    CheckKind.NOT_NULL_SHARE: {"field": "clicks", "min": 0.9},
    CheckKind.FRESHNESS: {"field": "at", "max_lag": "1h"},
    CheckKind.REFERENCES: {"fields": ["campaign_id"], "to": "demo.campaign"},
    CheckKind.COMPARE: {"field": "clicks", "function": "sum", "max_change": 0.5},
}
FIELDS = tuple(Field(name=name, type="long") for name in ("campaign_id", "clicks", "impressions"))
CHECKS = Path(penstock.__file__).parent / "contract" / "checks"


def declared(kind: CheckKind) -> AnyCheck:
    return check_from_mapping({kind.value: EXAMPLES[kind]})


def contract_with(*kinds: CheckKind) -> Contract:
    fields = (*FIELDS, Field(name="at", type="timestamp"))
    return contract(fields=fields, checks=tuple(declared(kind) for kind in kinds))


@pytest.mark.parametrize("kind", CheckKind)
def test_a_kind_has_a_declaration_and_a_module_of_its_name(kind: CheckKind) -> None:
    check = declared(kind)
    assert type(check) is declaration(kind)
    assert check.kind is kind
    bound = bind(check)
    assert type(bound) is check_class(kind)
    assert type(bound).__module__ == f"penstock.contract.checks.{kind.value}"
    assert bound.declared is check
    assert bound.name.startswith(kind.value)


@pytest.mark.parametrize("kind", CheckKind)
def test_a_kind_survives_storage_under_its_plain_name(kind: CheckKind) -> None:
    stored = check_to_mapping(declared(kind))
    assert stored == {kind.value: EXAMPLES[kind]}
    assert [type(key) for key in stored] == [str]
    assert check_from_mapping(stored) == declared(kind)


def test_every_declaration_and_every_module_belongs_to_a_kind() -> None:
    assert [declaration(kind) for kind in CheckKind] == list(get_args(AnyCheck))
    modules = {file.stem for file in CHECKS.glob("*.py")} - {"__init__", "base", "registry"}
    assert modules == {kind.value for kind in CheckKind}


@pytest.mark.parametrize("kind", CheckKind)
def test_every_kind_is_evaluated_in_exactly_one_way(kind: CheckKind) -> None:
    checked = contract_with(kind)
    ways = {
        "rows": row_rules(checked),
        "unique": unique_checks(checked),
        "count": count_complaints(checked, 0, 10),
        "stats": stats_fields(checked),
        "references": reference_checks(checked),
    }
    assert len([way for way, found in ways.items() if found]) == 1, ways


def test_guards_compare_with_the_trusted_run() -> None:
    guards = {kind for kind in CheckKind if check_class(kind).is_guard}
    assert guards == {CheckKind.SHRINK, CheckKind.COMPARE}
    checked = contract_with(*CheckKind)
    assert guard_names(checked) == {"shrink", "compare(sum(clicks))"}
    assert missing_inputs(checked, None) == [
        "shrink: needs a trusted run to compare with",
        "freshness(at): needs the day that the rows are of (--date)",
        "references(campaign_id): needs the rows of demo.campaign",
        "compare(sum(clicks)): needs a trusted run to compare with",
    ]
