"""The state machine of alerts: one firing and one recovery for each episode of a condition.

| state | condition | next state | notification |
|---|---|---|---|
| none, recovered | holds | pending, or firing if it has held for `after` | firing: fired |
| pending | holds for `after` | firing | fired |
| pending | is over | recovered | none |
| firing | holds | firing | none; with `repeat`, repeated |
| firing | is over | recovered | recovered |
| none, recovered | held, and is over | recovered | fired and recovered; of a finished backfill only fired |
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ulid import ULID

from penstock.config.alerts import AlertRule
from penstock.state.alert_records import Alert, AlertState, NoticeKind


@dataclass(frozen=True, slots=True)
class Condition:
    """A rule holds for a subject. With `ended_at` it held and is over already."""

    rule: str
    subject: str
    count: int
    first_seen: datetime
    message: str
    example: str | None = None
    link: str | None = None
    ended_at: datetime | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.rule, self.subject


@dataclass(frozen=True, slots=True)
class Transition:
    """An alert after a step, and the notifications that the step causes, in their order."""

    alert: Alert
    notices: tuple[NoticeKind, ...] = ()


def observe(
    conditions: Iterable[Condition],
    alerts: Iterable[Alert],
    now: datetime,
    rules: Mapping[str, AlertRule],
    unknown: Collection[str] = (),
    unsent: Collection[str] = (),
) -> list[Transition]:
    """Return the alerts that change, by rule and subject; several transitions of one subject are in the order of time.
    `rules` are those in force, by label: an alert of another rule is over. The alerts of the rules `unknown`, which
    could not be evaluated, stay as they are. An alert with a notification in `unsent` is not repeated: its receiver
    does not know of it yet.

    The order and the repetition of conditions do not matter. A second call with the changed alerts returns nothing.
    """
    found: dict[tuple[str, str], list[Condition]] = {}
    for condition in conditions:
        found.setdefault(condition.key, []).append(condition)
    known = {alert.key: alert for alert in alerts}
    transitions = []
    for key in sorted(known.keys() | found.keys()):
        rule = rules.get(key[0])
        if key[0] in unknown:
            continue
        alert = known.get(key)
        for present in _in_order(found.get(key, ())) if rule else (None,):
            step = _step(alert, present, rule, now, unsent)
            if step is not None and (step.notices or step.alert != alert):
                transitions.append(step)
                alert = step.alert
    return transitions


def _in_order(conditions: Collection[Condition]) -> list[Condition | None]:
    """The conditions of one subject that are over, by time, and then the one that holds, or None if none does. If only
    ended ones are given, the last of them is the present."""
    ended = {(one.ended_at, one.first_seen): one for one in sorted(conditions, key=_rank) if one.ended_at is not None}
    held = [one for one in conditions if one.ended_at is None]
    past: list[Condition | None] = [ended[key] for key in sorted(ended)]
    return [*past, max(held, key=_rank)] if held else past or [None]


def episode_id(rule: str, subject: str, episode: int, since: datetime) -> str:
    """The id of an episode: a ULID of its begin and a digest. A repeated evaluation derives the same id."""
    digest = hashlib.sha256("\0".join((rule, subject, str(episode))).encode()).digest()[:10]
    return derived_ulid(since, digest)


def derived_ulid(moment: datetime, digest: bytes) -> str:
    """A ULID of a moment and the first ten bytes of a digest."""
    milliseconds = max(0, int(moment.timestamp() * 1000))
    return str(ULID.from_bytes(milliseconds.to_bytes(6) + digest[:10]))


def _rank(condition: Condition) -> tuple[bool, int, datetime, str, str]:
    """Of two reports about one subject, the same one counts in any order."""
    described = (condition.message, condition.example or "")
    return condition.ended_at is None, condition.count, condition.first_seen, *described


def _step(
    alert: Alert | None, condition: Condition | None, rule: AlertRule | None, now: datetime, unsent: Collection[str]
) -> Transition | None:
    if condition is not None and condition.ended_at is None and rule is not None:
        return _held(alert, condition, rule, now, unsent)
    if alert is not None and alert.is_active:  # over: no condition, or one that ended
        if condition is not None and condition.first_seen < alert.since:
            return None  # an earlier episode
        notices = (NoticeKind.RECOVERED,) if alert.state is AlertState.FIRING else ()
        ended = now if condition is None or condition.ended_at is None else min(now, condition.ended_at)
        over = replace(alert, state=AlertState.RECOVERED, recovered_at=max(alert.since, ended))
        return Transition(over, notices)
    if condition is None or rule is None:
        return None
    return _passed(alert, condition, rule, now)


def _held(
    alert: Alert | None, condition: Condition, rule: AlertRule, now: datetime, unsent: Collection[str]
) -> Transition:
    current = _described(alert, condition) if alert is not None and alert.is_active else _begun(alert, condition, now)
    if current.state is AlertState.PENDING and now - current.since >= rule.holds_for:
        fired = replace(current, state=AlertState.FIRING, fired_at=now, notified_at=now, notices=1)
        return Transition(fired, (NoticeKind.FIRED,))
    is_due = current.notified_at is not None and rule.repeat is not None and now - current.notified_at >= rule.repeat
    if is_due and current.alert_id not in unsent:
        return Transition(replace(current, notified_at=now, notices=current.notices + 1), (NoticeKind.REPEATED,))
    return Transition(current)


def _passed(alert: Alert | None, condition: Condition, rule: AlertRule, now: datetime) -> Transition | None:
    """A condition that held and is over. It is known by its begin, so that a repeated report changes nothing."""
    ended = condition.ended_at or now
    if alert is not None and alert.since >= condition.first_seen:
        return None
    if ended - condition.first_seen < rule.holds_for:
        return None
    begun = replace(_begun(alert, condition, now), since=condition.first_seen)
    over = replace(
        begun, state=AlertState.RECOVERED, fired_at=now, notified_at=now, notices=1, recovered_at=min(now, ended)
    )
    is_point = rule.rule == "backfill_finished"
    return Transition(over, (NoticeKind.FIRED,) if is_point else (NoticeKind.FIRED, NoticeKind.RECOVERED))


def _begun(before: Alert | None, condition: Condition, now: datetime) -> Alert:
    """A new episode. A condition that holds again since before the last recovery is counted from now."""
    since = min(condition.first_seen, now)
    if before is not None and before.recovered_at is not None and since <= before.recovered_at:
        since = max(now, before.recovered_at + timedelta(milliseconds=1))
    episode = 1 if before is None else before.episode + 1
    return _described(
        Alert(
            condition.rule,
            condition.subject,
            episode_id(condition.rule, condition.subject, episode, since),
            episode,
            AlertState.PENDING,
            since,
            condition.count,
            condition.message,
        ),
        condition,
    )


def _described(alert: Alert, condition: Condition) -> Alert:
    return replace(
        alert, matches=condition.count, message=condition.message, example=condition.example, link=condition.link
    )
