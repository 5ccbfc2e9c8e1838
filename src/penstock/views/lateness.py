"""Documents of lateness: days beside their deadlines, what is missing by cause, and the history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.views.document import Document

if TYPE_CHECKING:
    from datetime import date, datetime

    from penstock.control.lateness import DayLateness
    from penstock.control.lateness_history import DayCompletion, TableHistory


def late_document(days: Sequence[DayLateness]) -> Document:
    """The days of the tables with a deadline, and how many of them have each state."""
    from penstock.control.lateness import Punctuality

    counts = {state.value: sum(day.punctuality is state for day in days) for state in Punctuality}
    return Document({"counts": counts, "items": [day_fields(day) for day in days], "total": len(days)})


def day_fields(day: DayLateness, shown: set[tuple[str, date]] | None = None) -> dict[str, Any]:
    """One day of a table. A day without a deadline has null. Below one day, the inputs of an input are listed where it
    occurs first: the size of a chain grows with its tables and days, not with its paths."""
    from penstock.control.deadlines import NO_DEADLINE

    shown = set() if shown is None else shown
    has_deadline = day.deadline != NO_DEADLINE
    return {
        "table": day.table,
        "date": day.day,
        "punctuality": day.punctuality if has_deadline else None,
        "deadline": day.deadline if has_deadline else None,
        "expected": day.expected,
        "required": day.required,
        "available": day.available,
        "expected_at": day.expected_at,
        "missing": [
            {
                "cause": one.cause,
                "count": one.count,
                "until": one.until,
                "example": None if one.example is None else str(one.example),
                "detail": one.detail,
            }
            for one in day.missing
        ],
        "inputs": [day_fields(one, shown) for one in first_inputs(day, shown)],
    }


def first_inputs(day: DayLateness, shown: set[tuple[str, date]]) -> Iterator[DayLateness]:
    """The inputs of a day; those in `shown`, to which the others are added, without their own inputs."""
    for one in day.inputs:
        is_first = (one.table, one.day) not in shown
        shown.add((one.table, one.day))
        yield one if is_first else replace(one, inputs=())


def history_document(tables: Sequence[TableHistory], days: Sequence[DayCompletion], now: datetime) -> Document:
    """How often and how long each table was late, and every day whose deadline has passed."""
    items = [
        {
            "table": one.table,
            "days": one.days,
            "late": one.late,
            "never_complete": one.never_complete,
            "median_late_seconds": None if one.median_late is None else int(one.median_late.total_seconds()),
            "worst_late_seconds": None if one.worst_late is None else int(one.worst_late.total_seconds()),
            "worst_day": one.worst_day,
        }
        for one in tables
    ]
    over = [
        {
            "table": day.table,
            "date": day.day,
            "expected": day.expected,
            "required": day.required,
            "deadline": day.deadline,
            "completed_at": day.completed_at,
            "late_seconds": day.late_seconds,
            "late": day.was_late(now),
        }
        for day in days
        if now >= day.deadline
    ]
    return Document({"items": items, "total": len(items), "days": over})
