"""What a rule finds, and its conditions: findings are grouped by subject and compared with the threshold."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from urllib.parse import urlencode

from penstock.config.alerts import AlertRule, Grouping, Threshold
from penstock.control.alerting.policy import Condition

EVERYTHING = "all"  # the subject of a rule that is not grouped
OTHER_CAUSES = "other causes"
MOST_CAUSES = 20  # alerts about causes of one rule; further causes share one alert
_LISTED = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a rule is about: one table, one source, or one error of a table."""

    source: str
    table: str | None
    count: int
    since: datetime
    message: str
    cause: str | None = None
    day: date | None = None
    expected: int = 0
    example: str | None = None


def conditions_of(
    rule: AlertRule, findings: Iterable[Finding], now: datetime, console: str | None, active: Collection[str] = ()
) -> list[Condition]:
    """The conditions of a rule: one for each subject that reaches the threshold. `console` is the address of the
    console, for links. `active` are the subjects of alerts that are not over: their causes keep their own alert.

    A threshold of several partitions is reached `now`, however old the first of them is, unless the rule counts only
    those that are old enough."""
    groups: dict[str, list[Finding]] = {}
    for one in findings:
        if rule.covers(one.source, one.table):
            groups.setdefault(_subject(rule.grouping, one), []).append(one)
    if rule.grouping is Grouping.CAUSE:
        groups = _limited(groups, active)
    conditions = []
    for subject, found in sorted(groups.items()):
        count = sum(one.count for one in found)
        if rule.least.is_reached(count, sum(one.expected for one in found)):
            largest = sorted(
                (one for one in found if one.count), key=lambda one: (-one.count, one.table or one.source, one.message)
            )
            is_old = rule.least == Threshold() or rule.shape.counts_old_ones
            first_seen = min(one.since for one in largest) if is_old else now
            link = None if console is None else console + _path(rule, largest)
            conditions.append(
                Condition(rule.label, subject, count, first_seen, _message(largest), largest[0].example, link)
            )
    return conditions


def _subject(grouping: Grouping, finding: Finding) -> str:
    match grouping:
        case Grouping.SOURCE:
            return finding.source
        case Grouping.TABLE:
            return finding.table or finding.source
        case Grouping.DAY:
            return f"{finding.table}/{finding.day}"
        case Grouping.CAUSE:
            return finding.cause or finding.source
        case _:
            return EVERYTHING


def _limited(groups: dict[str, list[Finding]], active: Collection[str]) -> dict[str, list[Finding]]:
    """At most MOST_CAUSES subjects. Causes with an alert keep it; the others share one beyond the limit. While the
    shared alert is active, none of its causes gets an alert of its own: it would be reported twice."""
    order = sorted(groups, key=lambda subject: (subject not in active, subject))
    most = sum(subject in active for subject in order) if OTHER_CAUSES in active else MOST_CAUSES
    kept = {subject: groups[subject] for subject in order[:most]}
    others = [finding for subject in order[most:] for finding in groups[subject]]
    return kept | ({OTHER_CAUSES: others} if others else {})


def _message(findings: Sequence[Finding]) -> str:
    texts = list(dict.fromkeys(one.message for one in findings))
    more = f"; and {len(texts) - _LISTED} more" if len(texts) > _LISTED else ""
    return "; ".join(texts[:_LISTED]) + more


def _path(rule: AlertRule, findings: Sequence[Finding]) -> str:
    """The page of the console about the findings."""
    sources = sorted({one.source for one in findings})
    tables = sorted({one.table for one in findings if one.table})
    match rule.rule:
        case "breaker_open" | "api_end":
            return "/sources"
        case "terminal":
            words = {"status": "failed"}
            words |= {"source": sources[0]} if len(sources) == 1 else {}
            words |= {"query": tables[0].partition(".")[2]} if len(tables) == 1 else {}
            return f"/partitions?{urlencode(words)}"
        case _:
            return f"/tables/{tables[0]}" if len(tables) == 1 else "/"
