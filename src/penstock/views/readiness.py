"""Document of `penstock ready`: whether the expected partitions of tables are published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.views.document import Document

if TYPE_CHECKING:
    from penstock.control.lateness import DayLateness
    from penstock.control.requested_days import RequestedDays
    from penstock.warehouse.readiness import Coverage, Rule


def ready_document(
    require: str,
    rule: Rule,
    asked: Mapping[str, RequestedDays],
    found: Mapping[str, Sequence[Coverage]],
    reasons: Sequence[DayLateness] | None = None,
    most_absent: int | None = None,
) -> Document:
    """Each table with its expected and available partitions, and the days that lack some; with `reasons`, why. A day
    names at most `most_absent` absent partitions; without it, all."""
    from penstock.views.lateness import day_fields

    document = {
        "ready": all(rule.holds(day) for days in found.values() for day in days),
        "require": require,
        "tables": [_table(asked[name], days, rule, most_absent) for name, days in found.items()],
    }
    if reasons is not None:
        document["explained"] = [day_fields(day) for day in reasons]
    return Document(document)


def _table(asked: RequestedDays, days: Sequence[Coverage], rule: Rule, most_absent: int | None) -> dict[str, Any]:
    return {
        "table": asked.table,
        "ready": all(rule.holds(day) for day in days),
        "expected": sum(day.expected for day in days),
        "available": sum(day.available for day in days),
        "since": asked.since,
        "until": asked.until,
        "first_expected": asked.first,
        "last_expected": asked.last,
        "notes": asked.notes,
        "days": [
            {
                "date": day.day,
                "expected": day.expected,
                "available": day.available,
                "ready": rule.holds(day),
                "absent": [str(key) for key in day.absent[:most_absent]],
                "withdrawn_inputs": [str(key) for key in day.withdrawn_inputs[:most_absent]],
                "not_over": day.not_over,
            }
            for day in days
            if day.absent
        ],
    }
