"""Alerts on both databases: rules, the queue of notifications, crashes in every gap, leases and channels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml

from penstock.app import Workspace, alert_sender, load_workspace
from penstock.app.alert_loop import AlertLoop, run_once
from penstock.app.alert_sender import GIVE_UP, LONGEST_PAUSE, pause_after
from penstock.control.breaker import observed
from penstock.control.select import Selection
from penstock.db import schema
from penstock.errors import ConfigError, LeaseLost, UsageError
from penstock.observe.notifications.message import DeliveryFailed, Notification
from penstock.observe.notifications.webhook import Webhook
from penstock.partition import PartitionKey, new_run_id, new_ulid
from penstock.state import alerts as alert_store
from penstock.state.alert_deliveries import AlertDeliveryStore
from penstock.state.alert_records import AlertChanges, AlertState, Delivery, EvaluationCursor
from penstock.state.backfills import Backfill
from penstock.state.records import Breaker, Observation
from support import builders
from support.builders import Actors, SetClock, audit_entry, everything
from support.cli import in_process
from support.hooks import SECRET, Receiver, receiver
from support.workspaces import customer_id, write_workspace

NOON = datetime(2024, 6, 11, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
FIRED, RECOVERED = "fired", "recovered"


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


@dataclass
class House:
    """A workspace with rules and a receiver of webhooks, and one live control loop."""

    workspace: Workspace
    clock: SetClock
    hook: Receiver
    token: str

    def tick(self, minutes: float = 0) -> None:
        """Let time pass, then evaluate and deliver."""
        self.clock.now += minutes * MINUTE
        self.workspace.alerts.evaluate(self.token)
        self.workspace.alerts.deliver(self.token)

    def open_breaker(self, source: str = "demo", message: str = "invalid credentials") -> None:
        seen = Observation(refused=3, message=message)
        self.workspace.context.breakers.change(source, lambda breaker: observed(breaker, seen, self.clock.now))

    def close_breaker(self, source: str = "demo") -> None:
        self.workspace.context.breakers.change(source, lambda breaker: Breaker(source))

    def end_run(self, end: str) -> str:
        control, run_id = self.workspace.context.control, new_run_id()
        control.start_run(run_id, self.token, "control", {}, 0)
        control.finish_run(run_id, self.token, {}, end)
        return run_id

    def execute(self, statement: sa.Executable, rows: Any = None) -> None:
        self.workspace.context.database.transact(lambda connection: connection.execute(statement, rows))

    def rows(self, table: sa.Table) -> list[dict[str, Any]]:
        return everything(self.workspace.context.database, [table])[table.name]

    def new_loop(self) -> str:
        """The loop dies; its lease runs out, and another one starts."""
        Actors.on(self.workspace.context.database).expire(self.token)
        self.token = self.workspace.context.workers.register(control_loop=True)
        return self.token


Build = Callable[..., House]


@pytest.fixture(params=builders.BACKENDS)
def build(request: pytest.FixtureRequest, hook: Receiver) -> Iterator[Build]:
    opened: list[Workspace] = []
    folders = ExitStack()

    def make(*rules: dict[str, Any], channels: dict[str, Any] | None = None, **changes: Any) -> House:
        state, name = "sqlite:///state.db", None
        if request.param == "postgresql":
            state, name = request.getfixturevalue("postgres_url"), f"t_{new_ulid().lower()}"
        ops = {"ops": {"webhook": hook.url, "secret": SECRET}}
        alerts = {"channels": {**ops, **(channels or {})}, "rules": list(rules)}
        folder = Path(folders.enter_context(builders.quick_folder()))
        write_workspace(folder, state=state, schema=name, alerts=alerts, driver_partitions=32, **changes)
        clock = SetClock(NOON)
        workspace = load_workspace(folder, clock)
        workspace.maintenance.migrate()
        opened.append(workspace)
        return House(workspace, clock, hook, workspace.context.workers.register(control_loop=True))

    with folders:
        yield make
        for workspace in opened:
            workspace.close()


BREAKER = {"rule": "breaker_open"}


def test_an_incident_is_one_firing_and_one_recovery_with_the_same_alert(build: Build, hook: Receiver) -> None:
    house = build({**BREAKER, "after": "5m"})
    house.tick()
    house.open_breaker()
    for _ in range(4):
        house.tick(2)
    assert hook.notices() == [(FIRED, "breaker_open/demo")]
    house.close_breaker()
    for _ in range(3):
        house.tick(2)
    assert hook.notices() == [(FIRED, "breaker_open/demo"), (RECOVERED, "breaker_open/demo")]
    fired, recovered = hook.events
    assert fired["data"]["alert_id"] == recovered["data"]["alert_id"]
    assert {name: fired[name] for name in ("specversion", "source", "type", "subject", "time", "datacontenttype")} == {
        "specversion": "1.0",
        "source": "/penstock/acme/ads",
        "type": "dev.penstock.alert.fired",
        "subject": "breaker_open/demo",
        "time": "2024-06-11T12:06:00.000000Z",
        "datacontenttype": "application/json",
    }
    assert fired["data"]["message"] == "the breaker of demo is open: invalid credentials"
    assert (fired["data"]["since"], fired["data"]["count"]) == ("2024-06-11T12:00:00.000000Z", 1)


def test_a_condition_that_ends_before_its_time_is_reported_to_nobody(build: Build, hook: Receiver) -> None:
    house = build({**BREAKER, "after": "5m"})
    house.open_breaker()
    house.tick(1)
    house.close_breaker()
    house.tick(10)
    assert hook.requests == 0
    [alert] = house.workspace.context.alert_states.alerts()
    assert (alert.state, alert.fired_at) == (AlertState.RECOVERED, None)


def fail(house: House, count: int, message: str, query: str = "campaign_daily", customer: int = 1) -> None:
    """Failed partitions that are marked as terminal; `#` in the message is a number of the partition."""
    days = [date(2019, 1, 1) + timedelta(days=n) for n in range(count)]
    keys = [
        {"source": "demo", "customer_id": customer_id(customer), "query_name": query, "logical_date": day}
        for day in days
    ]
    states = [
        {**key, "status": "failed", "updated_at": NOON, "error_message": message.replace("#", str(n))}
        for n, key in enumerate(keys)
    ]
    marks = [{**key, "terminal_at": NOON, "terminal_by": "kim"} for key in keys]
    house.execute(sa.insert(schema.partition_state), states)
    house.execute(sa.insert(schema.partition_control), marks)


def test_a_thousand_partitions_with_one_cause_are_one_alert_with_a_count_and_a_link(
    build: Build, hook: Receiver
) -> None:
    house = build({"rule": "terminal", "threshold": 10}, query={"start_date": date(2019, 1, 1)}, customers=2)
    settings = house.workspace.settings
    console = settings.console.model_copy(update={"url": "https://penstock.example.com"})
    house.workspace.context.settings = settings.model_copy(update={"console": console})
    fail(house, 1000, "row # of 'file-#.csv' has 17.# columns")
    fail(house, 9, "the account is closed", customer=2)
    house.tick()
    house.tick(1)
    [event] = hook.events
    data = event["data"]
    assert (data["count"], data["example"]) == (1000, f"demo/{customer_id(1)}/campaign_daily/2019-01-01")
    assert data["message"] == ("1,000 partitions of demo.campaign_daily failed for good: row # of '*' has # columns")
    assert data["link"] == "https://penstock.example.com/partitions?status=failed&source=demo&query=campaign_daily"
    house.execute(sa.update(schema.partition_state).values(status="pending"))  # an operator retries them
    house.tick(1)
    assert [kind for kind, _ in hook.notices()] == [FIRED, RECOVERED]


def test_terminal_partitions_are_those_that_the_command_lists(build: Build) -> None:
    retry = {"max_attempts": 2, "backoff": ["5m"], "jitter": 0.0, "max_age": "2d"}
    query = {"start_date": date(2024, 6, 1), "retry": retry}
    house = build({"rule": "terminal"}, query=query, customers=2)
    context, actors = house.workspace.context, Actors.on(house.workspace.context.database)
    for customer in (1, 2):
        for day in (3, 9, 10):
            key = replace_day(customer, day)
            for _ in range(2 if customer == 1 and day == 10 else 1):
                actors.reject(key)
    listed = context.state.views(context.ranges(Selection()), terminal_at=NOON)
    found = context.alert_facts.terminal(context.ranges(Selection()), NOON)
    assert sum(one.partitions for one in found) == len(listed) > 0
    assert {one.example for one in found} <= {str(view.key) for view in listed}


def replace_day(customer: int, day: int) -> Any:
    return builders.key(day, customer_id(customer))


def test_broken_runs_are_one_alert_until_a_run_ends_normally(build: Build, hook: Receiver) -> None:
    house = build({"rule": "run_broken"})
    house.end_run("broken")  # before the first evaluation: it raises no alert
    house.tick()
    first = house.end_run("broken")
    house.tick(1)
    last = house.end_run("abandoned")
    house.end_run("cancelled")
    house.tick(1)
    assert hook.notices() == [(FIRED, "run_broken/all")]
    assert hook.events[0]["data"]["example"] == first
    [alert] = house.workspace.context.alert_states.alerts()
    assert (alert.matches, alert.example) == (2, last)
    house.end_run("done")
    house.tick(1)
    house.end_run("broken")
    house.end_run("done")  # both between two evaluations: nothing is lost
    house.tick(1)
    house.tick(1)
    assert [kind for kind, _ in hook.notices()] == [FIRED, RECOVERED, FIRED, RECOVERED]


def test_a_finished_backfill_is_reported_once_and_a_cancelled_one_never(build: Build, hook: Receiver) -> None:
    house = build({"rule": "backfill_finished"})
    store, ids = house.workspace.context.backfills, [new_ulid() for _ in range(3)]
    for backfill_id in ids:
        made = Backfill(backfill_id, "active", {}, False, 10, 0, 1, 40, None, NOON, "kim")
        store.create(made, audit_entry(command="backfill create"))
    store.end(ids[0])  # before the first evaluation
    house.clock.now += MINUTE
    house.tick()
    house.clock.now += MINUTE
    store.end(ids[1])
    store.move(ids[2], "cancelled", audit_entry(command="backfill cancel"))
    for _ in range(3):
        house.tick(1)
    assert hook.notices() == [(FIRED, f"backfill_finished/{ids[1]}")]


def test_a_publication_that_waits_too_long_fires_and_recovers(build: Build, hook: Receiver) -> None:
    house = build({"rule": "publication_stuck", "after": "30m"})
    actors = Actors.on(house.workspace.context.database)
    actors.clock.now = NOON
    actors.accept(builders.key(9))
    house.tick(20)
    assert hook.requests == 0
    house.execute(sa.update(schema.publish_due).values(since=NOON + 15 * MINUTE))  # others wait; none waits long
    house.tick(20)
    assert hook.requests == 0
    house.tick(10)
    assert hook.notices() == [(FIRED, "publication_stuck/demo.campaign_daily")]
    house.execute(sa.delete(schema.publish_due))
    house.tick(1)
    assert [kind for kind, _ in hook.notices()] == [FIRED, RECOVERED]


def test_an_api_that_ends_is_in_the_status_and_an_alert(build: Build, hook: Receiver) -> None:
    house = build({"rule": "api_end"})
    folder = house.workspace.settings.root
    file = folder / "penstock.yaml"
    body = yaml.safe_load(file.read_text())

    def use(version: str) -> None:
        body["sources"]["ads"] = {"kind": "google_ads", "api_version": version}
        file.write_text(yaml.safe_dump(body))
        house.workspace.close()
        house.workspace = load_workspace(folder, house.clock)

    use("v23")
    house.clock.now = datetime(2026, 12, 2, 23, tzinfo=UTC)
    house.tick()
    assert hook.notices() == []
    house.tick(60)
    assert hook.notices() == [(FIRED, "api_end/ads")]
    message = "ads: Google Ads API v23 ends on 2027-02-01, in 60 days: set `api_version` to a newer one"
    assert hook.events[0]["data"]["message"] == message
    assert message in house.workspace.partitions.source_errors()
    use("v26")
    house.tick(1)
    assert hook.notices()[1:] == [(RECOVERED, "api_end/ads")]
    house.workspace.close()


def test_stale_and_late_tables_fire_and_recover(build: Build, hook: Receiver) -> None:
    freshness = {"max_lag": "2h", "complete_by": "09:00", "time_zone": "UTC"}
    house = build({"rule": "stale", "threshold": "30%"}, {"rule": "late"}, query={"freshness": freshness})
    house.workspace.runs.start(Selection(), actor="test")
    house.tick()
    assert hook.requests == 0
    house.tick(180)
    assert hook.notices() == [(FIRED, "stale/demo.campaign_daily")]
    house.tick(60 * 18)  # 09:00 of the next day: its yesterday is missing
    assert hook.notices()[1:] == [(FIRED, "late/demo.campaign_daily/2024-06-11")]
    house.workspace.runs.start(Selection(), actor="test")
    house.tick()
    assert set(hook.notices()[2:]) == {
        (RECOVERED, "stale/demo.campaign_daily"),
        (RECOVERED, "late/demo.campaign_daily/2024-06-11"),
    }


def test_each_late_day_is_an_incident_and_none_recovers_before_it_is_there(build: Build, hook: Receiver) -> None:
    freshness = {"complete_by": "09:00", "time_zone": "UTC"}
    house = build({"rule": "late"}, query={"freshness": freshness})
    house.workspace.runs.start(Selection(), actor="test")
    house.tick()
    for _ in range(12):  # the day of the first tick stays away, for longer than the report looks back
        house.tick(24 * 60)
        house.workspace.runs.start(Selection(since=house.clock.now.date() - timedelta(days=1)), actor="test")
        house.tick()
    late = "late/demo.campaign_daily/"
    days = [f"{late}2024-06-{day:02}" for day in range(11, 23)]
    assert [subject for kind, subject in hook.notices() if kind == FIRED] == days
    assert [subject for kind, subject in hook.notices() if kind == RECOVERED] == days
    hook.events.clear()
    house.tick(24 * 60)
    for _ in range(10):
        house.tick(24 * 60)
    fired = [subject for kind, subject in hook.notices() if kind == FIRED]
    assert fired == [f"{late}{date(2024, 6, 23) + timedelta(days=n)}" for n in range(11)]
    assert not [subject for kind, subject in hook.notices() if kind == RECOVERED], "no day is there"
    house.workspace.runs.start(Selection(), actor="test")
    house.tick()
    assert sorted(subject for kind, subject in hook.notices() if kind == RECOVERED) == fired


def test_a_rule_with_at_risk_fires_before_the_deadline(build: Build, hook: Receiver) -> None:
    query = {"start_date": "2024-06-10", "freshness": {"complete_by": "13:00", "time_zone": "UTC"}}
    house = build({"rule": "late", "include_at_risk": True}, {"rule": "late", "name": "only_late"}, query=query)
    key = PartitionKey("demo", customer_id(1), "campaign_daily", date(2024, 6, 10))
    house.workspace.context.marks.pause([key], "not now", audit_entry())
    house.tick()
    assert hook.notices() == [(FIRED, "late/demo.campaign_daily/2024-06-10")]
    assert "is at risk" in hook.events[0]["data"]["message"]
    house.tick(61)
    assert hook.notices()[1:] == [(FIRED, "only_late/demo.campaign_daily/2024-06-10")]


# --- the queue -------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Simulates a power cut: no handler of ours catches it."""


GAPS = {
    "alerts.decided": alert_store,
    "alerts.written": alert_store,
    "alerts.advanced": alert_store,
    "alerts.committed": alert_store,
    "delivery.claimed": alert_sender,
    "delivery.sent": alert_sender,
    "delivery.recorded": alert_sender,
}


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("ends", [False, True], ids=["firing", "recovery"])
def test_a_loop_that_dies_in_a_gap_loses_nothing_and_doubles_nothing(
    gap: str, ends: bool, build: Build, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = build(BREAKER, {"rule": "run_broken"})
    house.tick()
    if ends:
        house.open_breaker()
        house.end_run("broken")
        house.tick(1)
        house.close_breaker()
        house.end_run("done")
    else:
        house.open_breaker()
        house.end_run("broken")

    def reach(point: str) -> None:
        if point == gap:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(GAPS[gap], "reach", reach)
        with pytest.raises(Killed):
            house.tick(1)
    house.new_loop()
    house.tick(1)
    house.tick(1)
    kinds = [FIRED, RECOVERED] if ends else [FIRED]
    for subject in ("breaker_open/demo", "run_broken/all"):
        assert [kind for kind, about in hook.notices() if about == subject] == kinds
    doubled = len(hook.events) - len(hook.notices())
    assert doubled == (1 if gap == "delivery.sent" else 0), "only a delivery that was sent is sent again, with its id"
    assert {row["state"] for row in house.rows(schema.alert_delivery)} == {"delivered"}


def test_one_of_several_loops_evaluates_until_its_lease_runs_out(build: Build) -> None:
    house = build(BREAKER)
    workspace, first = house.workspace, house.token
    second = workspace.context.workers.register(control_loop=True)
    house.open_breaker()
    assert workspace.alerts.evaluate(first) is not None
    assert workspace.alerts.evaluate(second) is None
    Actors.on(workspace.context.database).expire(first)
    assert workspace.alerts.evaluate(second) == AlertChanges()
    assert workspace.alerts.evaluate(first) is None


def test_an_evaluation_that_was_overtaken_changes_nothing(build: Build) -> None:
    """A loop that was suspended while it collected conditions."""
    house = build(BREAKER)
    store, first = house.workspace.context.alert_states, house.token
    before = store.lead(first)
    assert before is not None
    house.new_loop()
    house.tick()
    stored = house.rows(schema.alert_cursor)
    with pytest.raises(LeaseLost):
        store.evaluate(first, before, replace(before, evaluated_at=NOON), lambda *_: pytest.fail("decided"))
    assert house.rows(schema.alert_cursor) == stored
    stale = EvaluationCursor()
    with pytest.raises(LeaseLost):  # the same worker with a cursor that was advanced since
        store.evaluate(house.token, stale, stale, lambda *_: pytest.fail("decided"))


def test_a_recovery_waits_for_its_firing_and_a_channel_that_is_down_gets_one_request_at_a_time(
    build: Build, hook: Receiver
) -> None:
    house = build(BREAKER, {"rule": "run_broken"})
    house.tick()
    hook.status = 503
    house.open_breaker()
    house.end_run("broken")
    house.tick(1)
    assert hook.requests == 1
    house.close_breaker()
    house.end_run("done")
    house.tick(1)
    house.tick(6 * 60)
    assert hook.requests == 3
    assert {row["state"] for row in house.rows(schema.alert_delivery)} == {"waiting"}
    hook.status = 204
    house.tick(16)
    for subject in ("breaker_open/demo", "run_broken/all"):
        assert [kind for kind, about in hook.notices() if about == subject] == [FIRED, RECOVERED]
    assert len(hook.events) == 4


def test_an_event_that_the_receiver_refuses_does_not_hold_up_others(build: Build, hook: Receiver) -> None:
    house = build(BREAKER, {"rule": "run_broken"})
    house.tick()
    hook.refuses = "breaker_open"
    house.open_breaker()
    house.end_run("broken")
    house.tick(1)
    assert hook.notices() == [(FIRED, "run_broken/all")]
    for _ in range(8):
        house.tick(60 * 24)
    [dropped] = [row for row in house.rows(schema.alert_delivery) if row["rule"] == "breaker_open"]
    assert (dropped["state"], dropped["error_message"]) == ("dropped", "the webhook responded with 400 Bad Request")
    assert dropped["finished_at"] - dropped["created_at"] >= GIVE_UP


def test_a_receiver_that_is_gone_gets_no_second_request(build: Build, hook: Receiver) -> None:
    house = build(BREAKER)
    hook.status = 410
    house.open_breaker()
    house.tick()
    house.tick(60)
    assert hook.requests == 1
    assert [row["state"] for row in house.rows(schema.alert_delivery)] == ["dropped"]


def test_a_pause_that_the_receiver_asks_for_is_kept(build: Build, hook: Receiver) -> None:
    house = build(BREAKER)
    hook.status, hook.headers = 429, {"Retry-After": "600"}
    house.open_breaker()
    house.tick()
    hook.status = 204
    house.tick(9)
    assert hook.requests == 1
    house.tick(1)
    assert hook.notices() == [(FIRED, "breaker_open/demo")]


def test_pauses_between_attempts_double_up_to_a_limit() -> None:
    pauses = [pause_after(attempts) for attempts in range(1, 40)]
    assert pauses[:3] == [timedelta(seconds=15), timedelta(seconds=30), timedelta(minutes=1)]
    assert pauses == sorted(pauses)
    assert max(pauses) == LONGEST_PAUSE


def test_a_delivery_is_claimed_by_one_worker_and_taken_over_from_a_dead_one(build: Build) -> None:
    house = build(BREAKER)
    house.open_breaker()
    house.workspace.alerts.evaluate(house.token)
    context = house.workspace.context
    tokens = [context.workers.register() for _ in range(2)]

    def take(token: str) -> Callable[..., Delivery | None]:
        return lambda handle, clock: AlertDeliveryStore(handle).claim(token, NOON)

    taken = builders.race(context.database, *map(take, tokens))
    assert sorted(one is None for one in taken) == [False, True]
    [holder] = [one.worker_token for one in taken if one is not None]
    store = context.alert_deliveries
    assert store.claim(house.token, NOON) is None
    assert holder is not None
    Actors.on(context.database).expire(holder)
    over = store.claim(house.token, NOON)
    assert over is not None
    [lost] = [one for one in taken if one is not None]
    assert not store.delivered(lost, NOON)
    assert store.delivered(over, NOON)
    assert not store.delivered(over, NOON)


def test_notifications_of_the_quiet_hours_wait_for_their_end_and_come_as_a_pair(build: Build, hook: Receiver) -> None:
    quiet = {"from": "22:00", "until": "07:00", "time_zone": "Europe/Berlin"}
    house = build({**BREAKER, "quiet_hours": quiet})
    house.clock.now = datetime(2024, 6, 11, 22, tzinfo=UTC)  # midnight in Berlin
    house.open_breaker()
    house.tick()
    house.close_breaker()
    house.tick(60)
    house.tick(359)
    assert hook.requests == 0
    house.tick(1)  # 05:00 UTC
    assert hook.notices() == [(FIRED, "breaker_open/demo"), (RECOVERED, "breaker_open/demo")]


def test_a_retry_that_falls_into_the_quiet_hours_waits(build: Build, hook: Receiver) -> None:
    house = build({**BREAKER, "quiet_hours": {"from": "12:05", "until": "14:00"}})
    hook.status = 500
    house.open_breaker()
    house.tick()
    hook.status = 204
    house.tick(30)
    assert hook.requests == 1
    house.tick(90)
    assert hook.notices() == [(FIRED, "breaker_open/demo")]


def test_a_firing_alert_is_repeated_only_if_the_rule_asks_for_it(build: Build, hook: Receiver) -> None:
    house = build({**BREAKER, "repeat": "4h"}, {**BREAKER, "name": "once"})
    house.open_breaker()
    for _ in range(10):
        house.tick(60)
    by_rule = [event["data"]["rule"] for event in hook.events]
    assert (by_rule.count("breaker_open"), by_rule.count("once")) == (3, 1)
    assert len({event["id"] for event in hook.events}) == 4
    assert [e["data"]["notice"] for e in hook.events if e["data"]["rule"] == "breaker_open"] == [1, 2, 3]


def test_repeats_do_not_pile_up_while_nothing_can_be_sent(build: Build, hook: Receiver) -> None:
    quiet = {"from": "22:00", "until": "07:00", "time_zone": "UTC"}
    house = build({**BREAKER, "repeat": "15m", "quiet_hours": quiet}, {**BREAKER, "name": "down", "repeat": "5m"})
    house.clock.now = datetime(2024, 6, 11, 22, tzinfo=UTC)
    house.open_breaker()
    hook.status = 503
    for _ in range(54):
        house.tick(10)
    assert hook.events == []
    hook.status = 204
    house.tick(20)
    sent = [(event["data"]["rule"], event["data"]["notice"]) for event in hook.events]
    assert sorted(sent) == [("breaker_open", 1), ("down", 1)]
    house.tick(15)
    assert len(hook.events) == 4, "each rule repeats again"


def test_a_channel_with_an_unexpected_error_does_not_hold_up_the_others(
    build: Build, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = build(BREAKER, channels={"first": {"webhook": f"{hook.url}-broken"}})
    sent = Webhook.send

    def send(self: Webhook, notification: Notification, now: datetime) -> None:
        if self._url.endswith("broken"):
            raise ImportError("a proxy needs a package that is missing")
        sent(self, notification, now)

    monkeypatch.setattr(Webhook, "send", send)
    house.open_breaker()
    house.tick()
    house.close_breaker()
    house.tick(1)
    assert hook.notices() == [(FIRED, "breaker_open/demo"), (RECOVERED, "breaker_open/demo")]
    [status] = house.workspace.alerts.list()[0].alerts
    assert (status.waiting, status.last_error) == (2, "the channel cannot be used: ImportError")
    with pytest.raises(DeliveryFailed, match="ImportError"):
        house.workspace.alerts.test("first")


def test_a_response_without_an_end_does_not_hold_up_the_loop(build: Build, hook: Receiver) -> None:
    hook.endless = True
    house = build(BREAKER)
    house.open_breaker()
    house.tick()
    assert hook.notices() == [(FIRED, "breaker_open/demo")]
    [status] = house.workspace.alerts.list()[0].alerts
    assert status.waiting == 0


def test_no_notification_holds_a_secret(build: Build, hook: Receiver) -> None:
    house = build(BREAKER)
    house.open_breaker(message="GET /v1?access_token=s3cr3t-tok-en refused: Bearer abcdefghijkl")
    house.tick()
    assert hook.requests == 1
    assert not any(word in str(hook.events) for word in ("s3cr3t", "abcdefghijkl"))


def test_the_alerts_of_a_rule_that_is_removed_recover_at_the_same_channels(build: Build, hook: Receiver) -> None:
    house = build(BREAKER, {"rule": "run_broken"})
    house.open_breaker()
    house.tick()
    context = house.workspace.context
    assert context.settings.alerts is not None
    fewer = context.settings.alerts.model_copy(update={"rules": context.settings.alerts.rules[1:]})
    context.settings = context.settings.model_copy(update={"alerts": fewer})
    house.tick(1)
    assert hook.notices() == [(FIRED, "breaker_open/demo"), (RECOVERED, "breaker_open/demo")]


def test_a_rule_that_cannot_be_evaluated_keeps_its_alerts_and_stops_no_other(
    build: Build, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = build(BREAKER, {"rule": "run_broken"})
    house.tick()
    house.open_breaker()
    house.tick(1)

    def refuse(self: object) -> list[Breaker]:
        raise ConfigError("no breakers today")

    monkeypatch.setattr("penstock.state.breakers.BreakerStore.all", refuse)
    house.end_run("broken")
    house.tick(1)
    assert hook.notices() == [(FIRED, "breaker_open/demo"), (FIRED, "run_broken/all")]
    monkeypatch.setattr("penstock.state.breakers.BreakerStore.all", lambda self: 1 // 0)  # a defect of ours
    house.end_run("done")
    house.tick(1)
    assert hook.notices()[2:] == [(RECOVERED, "run_broken/all")]


def test_old_alerts_and_deliveries_are_deleted(build: Build, hook: Receiver) -> None:
    house = build(BREAKER, {"rule": "run_broken"})
    house.open_breaker()
    house.tick()
    house.close_breaker()
    house.tick(1)
    house.end_run("broken")
    house.tick(60 * 24 * 31)
    assert [row["rule"] for row in house.rows(schema.alert_delivery)] == ["run_broken"]
    assert [row["rule"] for row in house.rows(schema.alert)] == ["run_broken"]


# --- the loop --------------------------------------------------------------------------------------------------------


def test_a_loop_evaluates_beside_its_rounds_and_survives_errors(
    build: Build, hook: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    house = build(BREAKER)
    house.open_breaker()
    with AlertLoop(house.workspace.alerts, house.token):
        for _ in range(1000):
            if hook.events:
                break
            time.sleep(0.01)
        assert hook.notices() == [(FIRED, "breaker_open/demo")], "while the loop is open"
    house.close_breaker()
    hook.status = 503
    house.tick(1)
    hook.status = 204
    house.clock.now += MINUTE
    monkeypatch.setattr(type(house.workspace.alerts), "evaluate", lambda self, token: 1 // 0)
    run_once(house.workspace.alerts, house.token)
    assert "ZeroDivisionError" in caplog.text
    assert hook.notices()[1:] == [(RECOVERED, "breaker_open/demo")], "what was queued before is delivered"


def test_the_commands_list_the_states_and_test_a_channel(build: Build, hook: Receiver) -> None:
    house = build(BREAKER)
    folder = house.workspace.settings.root
    hook.status = 503
    house.open_breaker()
    house.tick()
    document = in_process("alerts", "list", "--json", workspace=folder).document
    [rule] = document["items"]
    [alert] = rule["alerts"]
    assert (document["firing"], rule["rule"], rule["channels"]) == (1, "breaker_open", ["ops"])
    assert (alert["subject"], alert["state"], alert["count"], alert["waiting"]) == ("demo", "firing", 1, 1)
    assert (alert["last_delivered_at"], alert["next_try_at"]) == (None, "2024-06-11T12:00:15.000000Z")
    assert alert["last_error"] == "the webhook responded with 503 Service Unavailable"
    shown = in_process("alerts", "list", workspace=folder).stdout
    assert all(text in shown for text in ("breaker_open", "firing", "503", "last evaluated 2024-06-11 12:00:00 UTC"))
    assert in_process("alerts", "test", "ops", workspace=folder).code == 75
    hook.status = 204
    assert in_process("alerts", "test", "ops", "--json", workspace=folder).document["accepted"] == 1
    assert in_process("alerts", "test", "oops", workspace=folder).code == 2


# --- channels --------------------------------------------------------------------------------------------------------


def test_a_test_message_reaches_a_channel(build: Build, hook: Receiver) -> None:
    house = build(BREAKER)
    assert house.workspace.alerts.test("ops") == ("ops",)
    [event] = hook.events
    assert (event["data"]["rule"], event["subject"]) == ("test", "test/ops")
    with pytest.raises(UsageError, match=r"'oops' is not a known channel \(known: ops\)"):
        house.workspace.alerts.test("oops")
    hook.status = 401
    with pytest.raises(DeliveryFailed, match="401"):
        house.workspace.alerts.test("ops")


def test_the_recovery_names_no_alert_of_its_own(build: Build) -> None:
    """The states of one subject share one row; a new episode has a new id."""
    house = build(BREAKER)
    ids = []
    for _ in range(2):
        house.open_breaker()
        house.tick(1)
        house.close_breaker()
        house.tick(1)
        [alert] = house.workspace.context.alert_states.alerts()
        ids.append((alert.alert_id, alert.episode))
    assert [episode for _, episode in ids] == [1, 2]
    assert ids[0][0] < ids[1][0], "ids are in the order of the episodes"
