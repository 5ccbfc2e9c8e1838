"""Claims, requests, returns, crashes, changed budgets and the passing of time, in any order, on the real store."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.config.rates import RateLimit, RateWindow
from penstock.db import schema
from penstock.db.types import UtcTimestamp
from penstock.errors import QuotaUsedUp
from penstock.source.budget import Budget, RequestClaim
from penstock.state.quota import Claim, QuotaStore
from support import builders

START = datetime(2026, 11, 17, 22, 30, tzinfo=UTC)
RESERVE = 0.2


@dataclass
class Process:
    """One process with a claim: its budget, as a worker task has it, and what it has sent."""

    claim: Claim
    budget: Budget
    sent: int = 0


class QuotaMachine(RuleBasedStateMachine):
    """Requests are counted by the time at which they are sent, in every hour and every day."""

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        folder = self._stack.enter_context(builders.quick_folder())
        self.database = builders.migrated(builders.open_database("sqlite", folder, str))
        self._stack.callback(self.database.close)
        self.now = START
        self.processes: list[Process] = []
        self.sent: dict[tuple[RateWindow, datetime], int] = {}
        self.largest: dict[tuple[RateWindow, datetime], int] = {}  # the largest budget in force in the window

    @initialize(day=st.integers(1, 30), hour=st.integers(1, 20))
    def begin(self, day: int, hour: int) -> None:
        self.limits = (RateLimit(day, RateWindow.DAY), RateLimit(hour, RateWindow.HOUR))

    @property
    def store(self) -> QuotaStore:
        return QuotaStore(self.database, sa.literal(self.now, UtcTimestamp()))

    def windows(self) -> list[tuple[RateWindow, datetime, int]]:
        return [(limit.window, limit.window.start(self.now), int(limit.requests)) for limit in self.limits]

    @rule(spans=st.integers(1, 12), old=st.booleans(), growth=st.sampled_from([1.0, 4.0]))
    def claim(self, spans: int, old: bool, growth: float) -> None:
        for window, start, largest in self.windows():
            self.largest[window, start] = max(self.largest.get((window, start), 0), largest)
        before = self.store.read("ads", self.limits)
        claim = self.store.claim("ads", self.limits, spans, share=RESERVE if old else 0.0, growth=growth)
        if old and claim.requests:
            assert all(w.claimed + claim.requests <= w.budget - w.reserved(RESERVE) for w in before.windows)
        expires_at = self.now.timestamp() + claim.seconds
        budget = Budget(
            claim=RequestClaim("c", "ads", claim.requests, expires_at, "-"), wall=lambda: self.now.timestamp()
        )
        budget.allow(claim.requests)
        self.processes.append(Process(claim, budget))

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), requests=st.integers(1, 8))
    def send(self, data: st.DataObject, requests: int) -> None:
        process = data.draw(st.sampled_from(self.processes))
        for _ in range(requests):
            try:
                process.budget.spend()
            except QuotaUsedUp:
                return
            process.sent += 1
            for window in (RateWindow.DAY, RateWindow.HOUR):
                place = (window, window.start(self.now))
                self.sent[place] = self.sent.get(place, 0) + 1

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        process = self.processes.pop(self.processes.index(data.draw(st.sampled_from(self.processes))))
        assert process.budget.take_spent() == process.sent
        self.store.settle(process.claim, process.sent, spans=1)

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        self.processes.remove(data.draw(st.sampled_from(self.processes)))

    @rule(minutes=st.sampled_from([1, 29, 30, 61, 24 * 60, 6 * 24 * 60]))
    def pass_time(self, minutes: int) -> None:
        self.now += timedelta(minutes=minutes)

    @rule(day=st.integers(1, 30), hour=st.integers(1, 20))
    def change_the_rate(self, day: int, hour: int) -> None:
        self.begin(day, hour)

    @invariant()
    def no_window_has_more_requests_than_its_budget(self) -> None:
        for place, sent in self.sent.items():
            assert sent <= self.largest[place]

    @invariant()
    def every_request_was_claimed_before_it_was_sent(self) -> None:
        table = schema.source_quota
        with self.database.snapshot() as connection:
            rows = connection.execute(sa.select(table)).all()
        for row in rows:
            assert self.sent.get((RateWindow(row.window_name), row.window_start), 0) <= row.claimed

    def teardown(self) -> None:
        self._stack.close()


TestQuota = QuotaMachine.TestCase
TestQuota.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
