"""Laws of the alert state machine: repetition and disorder change nothing; one firing and one recovery per episode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from penstock.config.alerts import AlertRule, Threshold
from penstock.control.alerting.findings import MOST_CAUSES, OTHER_CAUSES, Finding, conditions_of
from penstock.control.alerting.notices import changes_of
from penstock.control.alerting.policy import Condition, observe
from penstock.control.alerting.rules import broken_runs, fold_runs
from penstock.projections.fact import Fact
from penstock.state.alert_records import Alert, AlertState, BrokenRuns, NoticeKind

BEGIN = datetime(2024, 6, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
AFTER = 3  # minutes that a condition holds before the alert fires
RULES = {
    "breaker_open": AlertRule(rule="breaker_open"),
    "terminal": AlertRule(rule="terminal", after=AFTER * MINUTE),
}
SUBJECTS = ("a", "b", "c")
KEYS = [(rule, subject) for rule in RULES for subject in SUBJECTS]

# For each minute, the subjects of each rule for which the condition holds.
schedules = st.lists(st.sets(st.sampled_from(KEYS)), min_size=1, max_size=25)


def conditions_at(held: Iterable[tuple[str, str]], minute: int) -> list[Condition]:
    at = BEGIN + minute * MINUTE
    return [Condition(rule, subject, 1 + minute % 3, at, f"{rule} holds") for rule, subject in sorted(held)]


class Memory:
    """The alerts and the notifications of evaluations, as a store keeps them."""

    def __init__(self) -> None:
        self.alerts: dict[tuple[str, str], Alert] = {}
        self.notices: list[tuple[str, str, str, NoticeKind]] = []

    def evaluate(self, conditions: Sequence[Condition], minute: int, unknown: Sequence[str] = ()) -> int:
        found = observe(conditions, list(self.alerts.values()), BEGIN + minute * MINUTE, RULES, unknown)
        for transition in found:
            self.alerts[transition.alert.key] = transition.alert
            self.notices += [(*transition.alert.key, transition.alert.alert_id, kind) for kind in transition.notices]
        return len(found)


def episodes(schedule: Sequence[set[tuple[str, str]]], key: tuple[str, str]) -> list[int]:
    """How many minutes the condition held in a row, each time; by plain counting."""
    lengths, current = [], 0
    for held in schedule:
        if key in held:
            current += 1
        elif current:
            lengths.append(current)
            current = 0
    return [*lengths, current] if current else lengths


@given(schedules)
def test_every_episode_that_lasts_fires_once_and_recovers_once(schedule: list[set[tuple[str, str]]]) -> None:
    memory = Memory()
    for minute, held in enumerate(schedule):
        memory.evaluate(conditions_at(held, minute), minute)
    memory.evaluate([], len(schedule))
    for rule, subject in KEYS:
        after = AFTER if rule == "terminal" else 0
        lasting = [length for length in episodes(schedule, (rule, subject)) if length - 1 >= after]
        mine = [(alert_id, kind) for r, s, alert_id, kind in memory.notices if (r, s) == (rule, subject)]
        assert [kind for _, kind in mine] == [NoticeKind.FIRED, NoticeKind.RECOVERED] * len(lasting)
        ids = [alert_id for alert_id, _ in mine]
        assert ids[::2] == ids[1::2], "a recovery names the alert that fired"
        assert len(set(ids)) == len(lasting), "each episode has an id of its own"


@given(schedules, st.data())
def test_repetition_and_order_of_conditions_change_nothing(
    schedule: list[set[tuple[str, str]]], data: st.DataObject
) -> None:
    plain, shaken = Memory(), Memory()
    for minute, held in enumerate(schedule):
        conditions = conditions_at(held, minute)
        plain.evaluate(conditions, minute)
        repeated = conditions + (data.draw(st.lists(st.sampled_from(conditions), max_size=3)) if conditions else [])
        mixed = data.draw(st.permutations(repeated))
        shaken.evaluate(mixed, minute)
        assert shaken.evaluate(mixed, minute) == 0, "a second evaluation changes nothing"
    assert (shaken.alerts, shaken.notices) == (plain.alerts, plain.notices)


@given(schedules)
def test_an_evaluation_that_is_lost_in_a_crash_is_repeated_with_the_same_ids(
    schedule: list[set[tuple[str, str]]],
) -> None:
    memory = Memory()
    for minute, held in enumerate(schedule):
        conditions, now = conditions_at(held, minute), BEGIN + minute * MINUTE
        alerts = list(memory.alerts.values())

        def made(alerts: list[Alert] = alerts, conditions: list[Condition] = conditions, now: datetime = now) -> object:
            return changes_of(observe(conditions, alerts, now, RULES), RULES, lambda rule: ("ops", "team"), now)

        assert made() == made()
        memory.evaluate(conditions, minute)


@given(schedules, st.integers(0, 24))
def test_a_rule_that_could_not_be_evaluated_keeps_its_alerts(schedule: list[set[tuple[str, str]]], lost: int) -> None:
    memory = Memory()
    for minute, held in enumerate(schedule):
        before = dict(memory.alerts)
        if minute != lost:
            memory.evaluate(conditions_at(held, minute), minute)
            continue
        memory.evaluate([], minute, unknown=list(RULES))
        assert memory.alerts == before


@given(schedules)
def test_a_rule_that_is_removed_recovers(schedule: list[set[tuple[str, str]]]) -> None:
    memory = Memory()
    for minute, held in enumerate(schedule):
        memory.evaluate(conditions_at(held, minute), minute)
    firing = [alert for alert in memory.alerts.values() if alert.state is AlertState.FIRING]
    found = observe([], memory.alerts.values(), BEGIN + timedelta(days=1), {})
    assert [t.alert.key for t in found if t.notices] == sorted(alert.key for alert in firing)
    assert all(t.notices in ((), (NoticeKind.RECOVERED,)) for t in found)
    assert not any(t.alert.is_active for t in found)


ends = st.lists(st.sampled_from(["done", "broken", "abandoned", "cancelled"]), max_size=12)


def facts(kinds: Sequence[str]) -> list[Fact]:
    return [
        Fact(at, f"e{at}", "RunFinished", 1, BEGIN + at * MINUTE, f"run{at}", {"end": end, "counts": {}})
        for at, end in enumerate(kinds)
    ]


@given(ends, st.integers(0, 12))
def test_broken_runs_are_the_same_however_the_ledger_is_read_in_pages(kinds: list[str], cut: int) -> None:
    whole, ended = fold_runs(None, facts(kinds))
    first, ended_first = fold_runs(None, facts(kinds)[:cut])
    second, ended_second = fold_runs(first, facts(kinds)[cut:])
    assert (second, ended_first + ended_second) == (whole, ended)
    since_done = kinds[len(kinds) - kinds[::-1].index("done") :] if "done" in kinds else kinds
    broken = [kind for kind in since_done if kind in ("broken", "abandoned")]
    assert (whole.runs if isinstance(whole, BrokenRuns) else 0) == len(broken)


@given(ends, st.lists(st.integers(0, 12), max_size=4), st.integers(1, 3))
def test_every_incident_of_broken_runs_fires_once_and_recovers_once(
    kinds: list[str], cuts: list[int], threshold: int
) -> None:
    """However often the rule is evaluated meanwhile, and whatever happens between two evaluations."""
    rule = AlertRule(rule="run_broken", threshold=Threshold(threshold))
    rules, alerts, notices = {rule.label: rule}, dict[tuple[str, str], Alert](), list[tuple[str, NoticeKind]]()
    broken: BrokenRuns | None = None
    places = sorted({*(min(cut, len(kinds)) for cut in cuts), len(kinds)})
    for first, last in zip([0, *places], places, strict=False):
        broken, ended = fold_runs(broken, facts(kinds)[first:last])
        conditions = broken_runs(rule, broken, ended, None)
        now = BEGIN + last * MINUTE
        for again in (False, True):
            found = observe(conditions, alerts.values(), now, rules)
            assert not (again and found), "a second evaluation changes nothing"
            alerts |= {one.alert.key: one.alert for one in found}
            notices += [(one.alert.alert_id, kind) for one in found for kind in one.notices]
    lengths = [0]
    for kind in kinds:
        if kind == "done":
            lengths.append(0)
        lengths[-1] += kind in ("broken", "abandoned")
    incidents = sum(length >= threshold for length in lengths)
    fired = [alert_id for alert_id, kind in notices if kind is NoticeKind.FIRED]
    recovered = [alert_id for alert_id, kind in notices if kind is NoticeKind.RECOVERED]
    assert len(set(fired)) == len(fired) == incidents
    assert recovered == (fired[:-1] if lengths[-1] >= threshold else fired)


@given(st.integers(1, 60), st.sets(st.integers(0, 59)))
def test_any_number_of_causes_makes_a_bounded_number_of_alerts_and_loses_none(causes: int, active: set[int]) -> None:
    rule = AlertRule(rule="terminal")
    findings = [Finding("demo", "demo.t", 7, BEGIN, f"error {n}", cause=f"demo/data/{n:03}") for n in range(causes)]
    known = {f"demo/data/{n:03}" for n in list(active)[:MOST_CAUSES]}
    found = conditions_of(rule, findings, BEGIN, None, known)
    assert len(found) <= MOST_CAUSES + 1
    assert sum(one.count for one in found) == 7 * causes
    subjects = {one.subject for one in found}
    assert known & {str(one.cause) for one in findings} <= subjects
    assert (OTHER_CAUSES in subjects) == (causes > MOST_CAUSES)
    assert conditions_of(rule, [replace(one) for one in reversed(findings)], BEGIN, None, known) == found
