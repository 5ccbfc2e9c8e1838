"""The findings of the rule `late`: days that missed their deadline, and with `include_at_risk` those that may."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from penstock.config.alerts import AlertRule
from penstock.control.alerting.findings import Finding
from penstock.control.lateness import DayLateness, Punctuality

_CAUSES = 3


def late_days(rule: AlertRule, days: Iterable[DayLateness], now: datetime) -> list[Finding]:
    """One finding for each day that is late or, if the rule includes it, at risk."""
    wanted = {Punctuality.LATE} | ({Punctuality.AT_RISK} if rule.include_at_risk else set())
    return [_finding(day, now) for day in days if day.punctuality in wanted]


def _finding(day: DayLateness, now: datetime) -> Finding:
    source = day.table.partition(".")[0]
    late = day.punctuality is Punctuality.LATE
    largest = sorted(day.missing, key=lambda one: (-one.count, one.cause))[:_CAUSES]
    causes = ", ".join(f"{one.count:,} {one.cause.value.replace('_', ' ')}" for one in largest)
    example = next((str(one.example) for one in largest if one.example is not None), None)
    message = (
        f"{day.table} of {day.day} {'is late' if late else 'is at risk'}: {day.available:,} of {day.required:,}"
        f" required partitions, deadline {day.deadline:%Y-%m-%d %H:%M} UTC"
    )
    since = min(day.deadline, now)
    text = message + (f"; missing: {causes}" if causes else "")
    return Finding(source, day.table, 1, since, text, day=day.day, example=example)
