"""Collects the conditions of all rules in bulk. A rule that cannot be evaluated does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.app.context import Context
from penstock.config.alerts import AlertRule, RuleKind
from penstock.control.alerting import rules
from penstock.control.alerting.findings import Finding, conditions_of
from penstock.control.api_sunset import ending_apis
from penstock.control.select import Selection
from penstock.errors import PenstockError
from penstock.redaction import SECRETS
from penstock.source.registry import hooks_of
from penstock.state.alert_records import Alert, BrokenRuns, EvaluationCursor

if TYPE_CHECKING:
    from penstock.app.lateness import LatenessService
    from penstock.app.status import StatusService
    from penstock.control.alerting.policy import Condition
    from penstock.control.lateness import DayLateness
    from penstock.projections.fact import Fact
    from penstock.state.alert_facts import TerminalFailures

# Backfills are looked for from this long before the last evaluation on: other processes may have another clock, and
# commit later. Each is reported once, by the time of its end.
_OVERLAP = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Collected:
    """The conditions that hold, the rules that could not be evaluated, and the broken runs for the next evaluation."""

    conditions: list[Condition] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)  # the error by the label of the rule
    broken_runs: BrokenRuns | None = None


class ConditionCollector:
    """Collects conditions for one evaluation. Facts that several rules need are read once."""

    def __init__(
        self,
        context: Context,
        status: StatusService,
        lateness: LatenessService,
        now: datetime,
        cursor: EvaluationCursor,
        ended_runs: Sequence[Fact],
    ) -> None:
        self._context = context
        self._status = status
        self._lateness = lateness
        self._facts = context.alert_facts
        self._now = now
        self._late_since: datetime | None = None  # the oldest deadline that an active alert is about
        self._cursor = cursor
        self._broken, self._ended = rules.fold_runs(cursor.broken_runs, ended_runs)

    def collect(self, wanted: Sequence[AlertRule], alerts: Sequence[Alert]) -> Collected:
        """The conditions of these rules. `alerts` are the stored ones."""
        collected = Collected(broken_runs=self._broken)
        late = {rule.label for rule in wanted if rule.rule == "late"}
        self._late_since = min((one.since for one in alerts if one.rule in late and one.is_active), default=None)
        for rule in wanted:
            active = {alert.subject for alert in alerts if alert.rule == rule.label and alert.is_active}
            try:
                found = self._kinds[rule.rule](rule, active)
            except PenstockError as error:
                collected.unknown[rule.label] = str(error)
            except Exception as error:  # noqa: BLE001 - a defect in one rule must not silence the others
                collected.unknown[rule.label] = f"{type(error).__name__}: {error}"
            else:
                # Errors of sources may quote a token; a notification leaves this machine.
                collected.conditions.extend(replace(one, message=SECRETS.hide(one.message)) for one in found)
        return collected

    @cached_property
    def _kinds(self) -> Mapping[RuleKind, Callable[[AlertRule, set[str]], list[Condition]]]:
        return {
            "breaker_open": self._breakers,
            "api_end": self._api_ends,
            "terminal": self._terminal,
            "stale": self._stale,
            "late": self._late,
            "backfill_finished": self._backfills,
            "run_broken": self._runs,
            "publication_stuck": self._publications,
        }

    @property
    def _console(self) -> str | None:
        return self._context.settings.console.url

    def _conditions(
        self, rule: AlertRule, findings: Iterable[Finding], active: Collection[str] = ()
    ) -> list[Condition]:
        return conditions_of(rule, findings, self._now, self._console, active)

    def _breakers(self, rule: AlertRule, active: set[str]) -> list[Condition]:
        return self._conditions(rule, rules.open_breakers(self._context.breakers.all()))

    def _api_ends(self, rule: AlertRule, active: set[str]) -> list[Condition]:
        ends = ending_apis(self._context.settings.sources.values(), hooks_of, self._now.date())
        return self._conditions(rule, rules.api_ends(ends, self._now))

    def _terminal(self, rule: AlertRule, active: set[str]) -> list[Condition]:
        return self._conditions(rule, rules.terminal_failures(self._failures), active)

    def _stale(self, rule: AlertRule, active: set[str]) -> list[Condition]:
        return self._conditions(rule, rules.stale_tables(self._counts, self._now))

    def _late(self, rule: AlertRule, active: set[str]) -> list[Condition]:
        from penstock.control.alerting.late import late_days

        return self._conditions(rule, late_days(rule, self._days, self._now))

    def _publications(self, rule: AlertRule, active: set[str]) -> list[Condition]:
        waiting = self._facts.publications(self._now - rule.holds_for)
        return self._conditions(rule, rules.stuck_publications(waiting))

    def _backfills(self, rule: AlertRule, active: set[str]) -> list[Condition]:
        cursor = self._cursor
        if cursor.started_at is None or cursor.evaluated_at is None:
            return []
        since = max(cursor.started_at, cursor.evaluated_at - _OVERLAP)
        return rules.finished_backfills(rule, self._facts.finished_backfills(since), self._console)

    def _runs(self, rule: AlertRule, active: set[str]) -> list[Condition]:
        return rules.broken_runs(rule, self._broken, self._ended, self._console)

    @cached_property
    def _failures(self) -> list[TerminalFailures]:
        return self._facts.terminal(self._context.ranges(Selection()), self._now)

    @cached_property
    def _counts(self) -> list[dict[str, Any]]:
        return self._status.counts(Selection(), ["source", "query"]).rows

    @cached_property
    def _days(self) -> list[DayLateness]:
        return self._lateness.report(since=self._late_since)
