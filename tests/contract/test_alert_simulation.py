"""Thirty days of incidents under a virtual clock: every incident is one firing and one recovery, at the right moment.

The store, the policy, the rules, the webhook and the lateness of tables are the real ones; only the clock is not. The
loop is killed at random points and stands still for hours, and the receiver of the webhook is down for hours. An oracle
that knows only the times of the incidents and of the evaluations says what must arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random

import pytest
import sqlalchemy as sa

from penstock.app import Workspace, alert_sender, load_workspace
from penstock.control.breaker import observed
from penstock.db import schema
from penstock.partition import PartitionKey, new_run_id
from penstock.state import alerts as alert_store
from penstock.state.records import Breaker, Observation
from support import builders
from support.builders import Actors, SetClock
from support.hooks import SECRET, Receiver, receiver
from support.workspaces import CAMPAIGNS, customer_id, write_workspace

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
DAYS = 30
EVALUATED = (1, 6, 7, 8, 13, 19)  # hours of UTC: around the deadline, and a few others
POINTS = (
    "alerts.decided", "alerts.written", "alerts.advanced", "alerts.committed",
    "delivery.claimed", "delivery.sent", "delivery.recorded",
)  # fmt: skip


class Killed(BaseException):
    """Simulates a power cut: no handler of ours catches it."""


@dataclass(frozen=True, slots=True)
class Incident:
    """A condition that holds from one moment to another."""

    subject: str
    begins: datetime
    ends: datetime


def in_ledger(incidents: Sequence[Incident], evaluations: Sequence[datetime]) -> list[tuple[str, datetime]]:
    """The notifications about incidents that the ledger holds: none is missed, however short it is."""
    moments = [("fired", one.begins) for one in incidents] + [("recovered", one.ends) for one in incidents]
    ordered = sorted(moments, key=lambda moment: moment[1])
    seen = [(kind, next((now for now in evaluations if now >= at), None)) for kind, at in ordered]
    return [(kind, now) for kind, now in seen if now is not None]


def oracle(
    incidents: Sequence[Incident], evaluations: Sequence[datetime], after: timedelta
) -> list[tuple[str, datetime]]:
    """The notifications about one subject: what a person who saw the incidents at these moments would send."""
    expected, since, fired = list[tuple[str, datetime]](), None, False
    for now in evaluations:
        holding = [one for one in incidents if one.begins <= now < one.ends]
        if not holding:
            expected += [("recovered", now)] if fired else []
            since, fired = None, False
        else:
            since = since or min(one.begins for one in holding)
            if not fired and now - since >= after:
                expected.append(("fired", now))
                fired = True
    return expected


def spans(
    random: Random, begin: datetime, count: int, shortest: int, longest: int
) -> Iterator[tuple[datetime, datetime]]:
    """Stretches of time that do not touch each other, within the thirty days."""
    room = (DAYS - 2) * 24 // count
    for number in range(count):
        length = random.randint(shortest, min(longest, room - 8))
        start = begin + DAY + HOUR * (number * room + random.randint(0, room - length - 6)) + timedelta(minutes=17)
        yield start, start + length * HOUR


class World:
    """A workspace whose sources, runs and publications fail at known times."""

    def __init__(self, folder: Path, hook: Receiver, begin: datetime, seed: int) -> None:
        self.random, self.begin, self.hook = Random(seed), begin, hook
        self.clock = SetClock(begin)
        first = (begin - 3 * DAY).date()
        campaigns = {**CAMPAIGNS, "start_date": first}
        freshness = {"complete_by": "09:00", "time_zone": "Europe/Berlin"}
        rules = [
            {"rule": "breaker_open", "after": "2h"},
            {"rule": "terminal", "group_by": "cause"},
            {"rule": "late"},
            {"rule": "run_broken"},
            {"rule": "publication_stuck", "after": "3h", "group_by": "rule"},
        ]
        write_workspace(
            folder,
            queries={
                "campaign_daily": {**campaigns, "freshness": freshness},
                "network_daily": {
                    **campaigns,
                    "start_date": first - 9 * DAY,
                    "retry": {"max_attempts": 1, "max_age": "300d"},
                },
            },
            alerts={"channels": {"ops": {"webhook": hook.url, "secret": SECRET}}, "rules": rules},
        )
        self.workspace: Workspace = load_workspace(folder, self.clock)
        self.workspace.maintenance.migrate()
        self.actors = Actors.on(self.workspace.context.database)
        self.token = self.workspace.context.workers.register(control_loop=True)
        self.incidents: dict[str, list[Incident]] = {}
        self.acts: list[tuple[datetime, int, Callable[[], object]]] = []
        self.evaluations: list[datetime] = []

    def at(self, moment: datetime, act: Callable[[], object]) -> None:
        self.acts.append((moment, len(self.acts), act))

    def incident(self, subject: str, begins: datetime, ends: datetime) -> None:
        self.incidents.setdefault(subject, []).append(Incident(subject, begins, ends))

    # --- what happens ------------------------------------------------------------------------------------------------

    def plan(self) -> None:
        breakers, seen = self.workspace.context.breakers, Observation(refused=3, message="invalid credentials")
        for begins, ends in spans(self.random, self.begin, 4, 1, 40):
            self.incident("breaker_open/demo", begins, ends)
            self.at(begins, lambda: breakers.change("demo", lambda b: observed(b, seen, self.clock.now)))
            self.at(ends, lambda: breakers.change("demo", lambda b: Breaker("demo")))
        asks = Observation(quota_pause=7200.0)  # a pause that the source asks for is no incident
        for moment, _ in spans(self.random, self.begin, 3, 1, 2):
            self.at(moment, lambda: self._pause(asks))
        for number, (begins, ends) in enumerate(spans(self.random, self.begin, 4, 5, 48)):
            keys = [self._old(1 + 2 * number + n) for n in range(2)]  # the same cause each time
            self.incident("terminal", begins, ends)
            self.at(begins, partial(self._fail, keys))
            self.at(ends, partial(self._deliver, *keys))
        for begins, ends in spans(self.random, self.begin, 5, 5, 30):
            self.incident("run_broken/all", begins, ends)
            for moment in (begins, begins + HOUR, begins + 3 * HOUR):
                self.at(moment, lambda: self._end_run("broken"))
            self.at(ends, lambda: self._end_run("done"))
            again = ends + timedelta(minutes=10)  # a short incident, often between two evaluations
            self.incident("run_broken/all", again, again + timedelta(minutes=10))
            self.at(again, lambda: self._end_run("broken"))
            self.at(again + timedelta(minutes=10), lambda: self._end_run("done"))
        for begins, ends in spans(self.random, self.begin, 3, 6, 20):
            self.incident("publication_stuck/all", begins + 3 * HOUR, ends)
            self.at(begins, self._accept_another)
            self.at(ends, lambda: self.actors.execute(sa.delete(schema.publish_due)))
        self._plan_days()

    def _plan_days(self) -> None:
        """Each day arrives at five, or after its deadline: 09:00 in Berlin on the next day."""
        for number in range(-3, DAYS + 4):
            day = (self.begin + number * DAY).date()
            arrives = datetime.combine(day, datetime.min.time(), UTC) + DAY + 5 * HOUR
            due = deadline(day)
            if 0 <= number < DAYS - 3 and self.random.random() < 0.25:
                longest = 250 if number < DAYS - 12 else 50  # some are late for longer than a week
                arrives = due + HOUR * self.random.randint(1, longest) + timedelta(minutes=29)
                self.incident(f"late/demo.campaign_daily/{day}", due, arrives)
            key = PartitionKey("demo", customer_id(1), "campaign_daily", day)
            self.at(max(arrives, self.begin), partial(self._deliver, key))

    def _old(self, age: int) -> PartitionKey:
        """A partition of a table without a deadline, from before the thirty days."""
        return PartitionKey("demo", customer_id(1), "network_daily", self.begin.date() - age * DAY)

    def _pause(self, asks: Observation) -> None:
        self.workspace.context.breakers.change("demo", lambda breaker: observed(breaker, asks, self.clock.now))

    def _fail(self, keys: Sequence[PartitionKey]) -> None:
        for number, key in enumerate(keys):
            self.actors.reject(key, f"row {number} of 'part-{number}.csv' has {self.random.randint(1, 99)} columns")
        self.workspace.runners.schedule_retries()

    def _deliver(self, *keys: PartitionKey) -> None:
        """Accepted and published."""
        for key in keys:
            self.actors.accept(key)
            for table in (schema.warehouse_pointer, schema.publish_due):
                self.actors.execute(sa.delete(table).where(*builders.is_key(table, key)))
            self.actors.publish(key)

    def _accept_another(self) -> None:
        self.actors.accept(self._old(11))

    def _end_run(self, end: str) -> None:
        run_id = new_run_id()
        self.actors.control.start_run(run_id, self.actors.token, "control", {}, 0)
        self.actors.control.finish_run(run_id, self.actors.token, {}, end)

    # --- the loop ----------------------------------------------------------------------------------------------------

    def run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plan()
        acts, asleep = sorted(self.acts, key=lambda act: act[:2]), self.begin
        down = list(spans(self.random, self.begin, 4, 4, 12))
        for step in range((DAYS + 3) * 24):
            now = self.begin + step * HOUR
            if now.hour not in EVALUATED:
                continue
            while acts and acts[0][0] <= now:
                self.clock.now = self.actors.clock.now = acts[0][0]
                acts.pop(0)[2]()
            self.clock.now = self.actors.clock.now = now
            self.hook.status = 503 if any(begins <= now < ends for begins, ends in down) else 204
            if now < asleep:
                continue
            if self.random.random() < 0.05 and step < DAYS * 24:
                asleep = now + self.random.randint(1, 9) * HOUR  # the loop is stopped
                self._restart()
                continue
            if self.random.random() < 0.2:
                self._killed(monkeypatch)
            self.evaluations.append(now)
            self.workspace.alerts.evaluate(self.token)
            self.workspace.alerts.deliver(self.token)

    def _killed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The loop dies at a random point, if it reaches it; another one starts at once."""
        point = self.random.choice(POINTS)

        def reach(name: str) -> None:
            if name == point:
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(alert_store, "reach", reach)
            patch.setattr(alert_sender, "reach", reach)
            try:
                self.workspace.alerts.evaluate(self.token)
                self.workspace.alerts.deliver(self.token)
            except Killed:
                self._restart()

    def _restart(self) -> None:
        self.actors.expire(self.token)
        self.token = self.workspace.context.workers.register(control_loop=True)


# The clocks of Berlin change in the night before these days.
SUMMER, WINTER = date(2024, 3, 31), date(2024, 10, 27)


def deadline(day: date) -> datetime:
    """09:00 in Berlin on the day after: 07:00 UTC in summer, 08:00 UTC in winter."""
    after = day + DAY
    hour = 7 if SUMMER <= after < WINTER else 8
    return datetime(after.year, after.month, after.day, hour, tzinfo=UTC)


@pytest.mark.parametrize("begin", [datetime(2024, 3, 14, tzinfo=UTC), datetime(2024, 10, 12, tzinfo=UTC)])
def test_thirty_days_of_incidents(begin: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver() as hook, builders.quick_folder() as folder:
        world = World(Path(folder), hook, begin, seed=begin.month)
        world.run(monkeypatch)
        received: dict[str, list[tuple[str, datetime]]] = {}
        seen: set[str] = set()
        for event in hook.events:
            if event["id"] in seen:
                continue
            seen.add(event["id"])
            subject = event["subject"] if event["data"]["rule"] != "terminal" else "terminal"
            kind = event["type"].removeprefix("dev.penstock.alert.")
            received.setdefault(subject, []).append((kind, datetime.fromisoformat(event["data"]["at"])))
        after = {"breaker_open/demo": 2 * HOUR}
        expected = {
            subject: in_ledger(incidents, world.evaluations)
            if subject == "run_broken/all"
            else oracle(incidents, world.evaluations, after.get(subject, timedelta()))
            for subject, incidents in world.incidents.items()
        }
        assert received == {subject: notices for subject, notices in expected.items() if notices}
        assert sum(map(len, received.values())) > 25
        assert world.workspace.context.alert_deliveries.waiting() == 0
        world.workspace.close()
