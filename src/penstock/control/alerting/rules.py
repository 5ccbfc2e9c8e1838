"""The findings of each rule, from the facts that the control plane and the warehouse hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, time
from typing import Any

from penstock.config.alerts import AlertRule
from penstock.control.alerting.causes import cause_subject, normalised
from penstock.control.alerting.findings import EVERYTHING, Finding
from penstock.control.alerting.policy import Condition
from penstock.control.api_sunset import WARNED, ApiEnd
from penstock.lifecycle import DisplayStatus
from penstock.plural import counted
from penstock.projections.fact import Fact
from penstock.state.alert_facts import FinishedBackfill, TerminalFailures, WaitingPublications
from penstock.state.alert_records import BrokenRuns
from penstock.state.records import Breaker

_BROKEN = ("broken", "abandoned")
EndedIncident = tuple[BrokenRuns, datetime]  # broken runs, and when a run ended normally after them


def open_breakers(breakers: Iterable[Breaker]) -> list[Finding]:
    """The sources whose breaker is open."""
    return [
        Finding(one.source, None, 1, one.opened_at, f"the breaker of {one.source} is open: {one.error_message}")
        for one in breakers
        if one.opened_at is not None
    ]


def api_ends(ends: Iterable[ApiEnd], now: datetime) -> list[Finding]:
    """The sources whose API ends soon. The condition holds since the first day of the warning."""
    return [
        Finding(end.source, None, 1, datetime.combine(end.day - WARNED, time.min, UTC), end.describe(now.date()))
        for end in ends
    ]


def terminal_failures(failures: Iterable[TerminalFailures]) -> list[Finding]:
    """Terminal partitions by table and cause."""
    found: dict[tuple[str, str, str], list[TerminalFailures]] = {}
    for one in failures:
        cause = cause_subject(one.source, one.error_class, one.error_message)
        found.setdefault((one.source, f"{one.source}.{one.query_name}", cause), []).append(one)
    return [
        Finding(
            source,
            table,
            count := sum(one.partitions for one in same),
            min(one.since for one in same),
            f"{counted(count)} of {table} failed for good:"
            f" {same[0].error_message if len(same) == 1 else normalised(same[0].error_message)}",
            cause,
            example=min(one.example for one in same),
        )
        for (source, table, cause), same in sorted(found.items())
    ]


def stale_tables(counts: Iterable[Mapping[str, Any]], now: datetime) -> list[Finding]:
    """The stale partitions of each table, from counts by source, query and displayed status."""
    expected: dict[tuple[str, str], int] = {}
    stale: dict[tuple[str, str], int] = {}
    for row in counts:
        table = (row["source"], row["query"])
        expected[table] = expected.get(table, 0) + row["n"]
        if row["display"] == DisplayStatus.STALE:
            stale[table] = stale.get(table, 0) + row["n"]
    return [
        Finding(
            source,
            f"{source}.{query}",
            count,
            now,
            f"{count:,} of {counted(total)} of {source}.{query} {'is' if count == 1 else 'are'} stale",
            expected=total,
        )
        for (source, query), total in sorted(expected.items())
        for count in (stale.get((source, query), 0),)
    ]


def stuck_publications(waiting: Iterable[WaitingPublications]) -> list[Finding]:
    """Tables with accepted partitions that readers do not see."""
    return [
        Finding(
            one.source,
            table := f"{one.source}.{one.query_name}",
            one.partitions,
            one.since,
            f"{counted(one.partitions, 'partition waits', 'partitions wait')} for publication to {table}"
            f" since {one.since:%Y-%m-%d %H:%M} UTC",
        )
        for one in waiting
    ]


def finished_backfills(rule: AlertRule, backfills: Iterable[FinishedBackfill], console: str | None) -> list[Condition]:
    """One condition for each finished backfill: it is over at once, so that it is reported and does not recover."""
    return [
        Condition(
            rule.label,
            one.backfill_id,
            one.total,
            one.finished_at,
            f"backfill {one.backfill_id} of {counted(one.total)} by {one.created_by} is finished",
            link=None if console is None else f"{console}/backfills/{one.backfill_id}",
            ended_at=one.finished_at,
        )
        for one in backfills
    ]


def fold_runs(before: BrokenRuns | None, ended: Sequence[Fact]) -> tuple[BrokenRuns | None, list[EndedIncident]]:
    """Fold the ends of runs, in the order of the ledger. Returns the broken runs since the last run that ended
    normally, and each incident that a run ended normally."""
    broken, over = before, list[EndedIncident]()
    for fact in ended:
        if fact.payload["end"] in _BROKEN:
            since, runs = (fact.occurred_at, 0) if broken is None else (broken.since, broken.runs)
            broken = BrokenRuns(since, runs + 1, str(fact.run_id))
        elif fact.payload["end"] == "done" and broken is not None:
            over.append((broken, fact.occurred_at))
            broken = None
    return broken, over


def broken_runs(
    rule: AlertRule, broken: BrokenRuns | None, ended: Iterable[EndedIncident], console: str | None
) -> list[Condition]:
    """The conditions that runs broke, and that a run ended normally since; and the condition that they break now."""
    incidents: list[tuple[BrokenRuns, datetime | None]] = [*ended, *([(broken, None)] if broken else [])]
    return [
        Condition(
            rule.label,
            EVERYTHING,
            found.runs,
            found.since,
            f"run {found.last_run_id} broke{'' if found.runs == 1 else f', the last of {found.runs:,} in a row'}:"
            f" see `penstock runs show {found.last_run_id}`",
            example=found.last_run_id,
            link=None if console is None else f"{console}/runs/{found.last_run_id}",
            ended_at=ended_at,
        )
        for found, ended_at in incidents
        if rule.least.is_reached(found.runs)
    ]
