"""The whole control plane against a model, with a clock that jumps: plans, retries, marks, acts and restatement.

The model uses plain dictionaries and simple rules. After every step the real planner must agree with the model on each
partition, and an accepted run must never be lost without an operator's act.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.config.assets import Retry
from penstock.control.plan import DUE, planned
from penstock.control.retry import terminal
from penstock.control.schedule import schedule
from penstock.db.engine import Database
from penstock.errors import ActRefused, ErrorClass
from penstock.expected import ExpectedRange
from penstock.lifecycle import PartitionStatus, PlanReason, Stage
from penstock.partition import AttemptKey, PartitionKey
from penstock.state.authority import AuthorityStore
from penstock.state.marks import MarkStore
from penstock.state.pause_scope import Scope
from penstock.state.pauses import PauseStore
from penstock.state.reader import StateReader
from penstock.state.recheck import FailedRecheck
from penstock.state.records import Accepted, Cancelled, Rejected
from penstock.state.retries import RetryStore
from support import builders
from support.builders import Actors, audit_entry, days, key, resumed

KEYS = tuple(key(day) for day in (2, 3))
BACKOFF = (timedelta(minutes=5), timedelta(hours=2))
POLICY = Retry(max_attempts=3, backoff=BACKOFF, jitter=0, max_age=timedelta(days=6))
STRICTER = POLICY.model_copy(update={"max_attempts": 2})
AGES = (1, 2, 3, 4, 5, 7, 10, 20)
START = datetime(2024, 6, 4, 6, tzinfo=UTC)

a_key = st.sampled_from(KEYS)


@dataclass
class Tried:
    attempt: AttemptKey
    issued_at: datetime
    outcome: str | None = None
    error: str | None = None
    demoted: bool = False
    approved: bool = False
    closed_at: datetime | None = None

    @property
    def trusted_once(self) -> bool:
        return self.outcome == "SUCCEEDED" or self.approved


@dataclass
class Known:
    """The model's state of one partition."""

    explicit: bool = False
    status: str = "pending"
    run: str | None = None
    count: int = 0
    authority: int = 0
    attempts: list[Tried] = field(default_factory=list)
    forgiven: int = 0  # attempts before this one no longer count as failures
    next_run_at: datetime | None = None
    marked: bool = False
    paused: bool = False
    held: bool = False

    @property
    def open(self) -> Tried | None:
        return self.attempts[-1] if self.attempts and self.attempts[-1].outcome is None else None

    def failures(self) -> list[Tried]:
        row: list[Tried] = []
        for number, tried in enumerate(self.attempts, start=1):
            if tried.trusted_once:
                row = []
            elif tried.outcome == "FAILED" and number > self.forgiven:
                row.append(tried)
        return row

    def exhausted(self, partition: PartitionKey, policy: Retry, now: datetime) -> bool:
        return len(self.failures()) >= policy.max_attempts or now >= builders.due_at(partition) + policy.max_age

    def terminal(self, partition: PartitionKey, policy: Retry, now: datetime) -> bool:
        return self.status == "failed" and (self.marked or self.exhausted(partition, policy, now))

    def reason(self, partition: PartitionKey, policy: Retry, now: datetime) -> str:
        if self.open:
            return "open"
        if self.paused:
            return "paused"
        if self.status == "pending":
            return "requeued" if self.explicit else "missing"
        withdrawn = (self.marked and self.status == "failed") or self.exhausted(partition, policy, now)
        if self.next_run_at is not None and self.next_run_at <= now and not withdrawn:
            return "retry"
        if self.status == "success" and not self.held and self._outdated(partition, now):
            return "restate"
        return self.status

    def _outdated(self, partition: PartitionKey, now: datetime) -> bool:
        ended = datetime.combine(partition.logical_date, datetime.min.time(), UTC) + timedelta(days=1)
        reached = [ended + timedelta(days=age) for age in AGES if ended + timedelta(days=age) <= now]
        judged = [tried.issued_at for tried in self.attempts if tried.outcome in ("SUCCEEDED", "FAILED")]
        return bool(reached and judged and max(judged) < max(reached))


class ControlPlane(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.stack = ExitStack()
        folder = self.stack.enter_context(builders.quick_folder())
        self.actors = Actors.on(builders.migrated(Database(f"sqlite:///{folder}/state.db")))
        self.policy = POLICY
        self.actors.clock.now = START
        self.marks = MarkStore(self.actors.database, self.actors.clock)
        self.acts = AuthorityStore(self.actors.database, self.actors.clock)
        self.known = {partition: Known() for partition in KEYS}

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()

    @property
    def now(self) -> datetime:
        return self.actors.clock.now

    @property
    def reader(self) -> StateReader:
        return StateReader(self.actors.database, {"campaign_daily": self.policy})

    def ranges(self) -> list[ExpectedRange]:
        over = self.now.date() - timedelta(days=1)
        [span] = [days(2, 3)]
        return [ExpectedRange(span.source, span.customer_id, span.query_name, span.first, span.last, over)]

    # --- time and plans --------------------------------------------------------------------------------------------

    @rule(minutes=st.sampled_from([1, 5, 119, 120, 24 * 60, 3 * 24 * 60]))
    def time_passes(self, minutes: int) -> None:
        self.actors.clock.now += timedelta(minutes=minutes)

    @rule(policy=st.sampled_from([POLICY, STRICTER]))
    def the_policy_is_edited(self, policy: Retry) -> None:
        self.policy = policy

    @rule()
    def whatever_is_due_is_issued(self) -> None:
        found = self.reader.candidates(self.ranges(), DUE, self.now, {"campaign_daily": AGES})
        plan = [planned(candidate, builders.FINGERPRINT, "v1") for candidate in found]
        issued, refused = self.actors.try_to_issue(*plan)
        assert refused == []
        assert len(issued) == len(plan)
        for item in issued:
            known = self.known[item.attempt.partition]
            reason = known.reason(item.attempt.partition, self.policy, self.now)
            assert reason in DUE
            if reason == "retry" and known.status == "failed":
                known.status = "pending"
            known.attempts.append(Tried(item.attempt, self.now))
            assert item.attempt_no == len(known.attempts)

    @rule(fates=st.tuples(*[st.sampled_from(["accept", "accept", "transient", "data", "cancel", "leave"])] * len(KEYS)))
    def a_round(self, fates: tuple[str, ...]) -> None:
        """The usual course of things in one step, so that long histories are not rare."""
        self.whatever_is_due_is_issued()
        for partition, fate in zip(KEYS, fates, strict=True):
            if fate == "accept":
                self.an_attempt_is_accepted(partition)
            elif fate == "cancel":
                self.an_attempt_is_given_up(partition)
            elif fate != "leave":
                self.an_attempt_is_rejected(partition, fate)

    @rule(partition=a_key)
    def a_day_later_it_is_fetched_again(self, partition: PartitionKey) -> None:
        self.time_passes(24 * 60)
        self.whatever_is_due_is_issued()
        self.an_attempt_is_accepted(partition)

    # --- verdicts --------------------------------------------------------------------------------------------------

    def _open(self, partition: PartitionKey) -> Tried | None:
        return self.known[partition].open

    @rule(partition=a_key)
    def an_attempt_is_accepted(self, partition: PartitionKey) -> None:
        known = self.known[partition]
        if (tried := known.open) is None:
            return
        verdict = Accepted(tried.attempt, self.actors.token, "v1", 10, "p", 9, "c")
        for _ in range(2):  # delivered twice
            self.actors.validator.judge([verdict])
        tried.outcome, tried.closed_at = "SUCCEEDED", self.now
        known.status, known.run, known.explicit = "success", tried.attempt.run_id, True
        known.count += 1
        known.authority += 1
        known.next_run_at = None

    @rule(partition=a_key, error=st.sampled_from(["transient", "data"]))
    def an_attempt_is_rejected(self, partition: PartitionKey, error: str) -> None:
        known = self.known[partition]
        if (tried := known.open) is None:
            return
        verdict = Rejected(
            tried.attempt, self.actors.token, Stage.VALIDATE, ErrorClass(error), "no", (), 3, "p", 9, "c"
        )
        for _ in range(2):
            self.actors.validator.judge([verdict])
        tried.outcome, tried.error, tried.closed_at = "FAILED", error, self.now
        known.explicit = True
        known.count += 1
        if known.status != "success":
            known.status = "failed"
        queries = {"campaign_daily": builders.query(retry=self.policy)}
        schedule(RetryStore(self.actors.database), queries, lambda: 0.5, builders.due_at)
        row = known.failures()
        known.next_run_at = None
        if row and error == "transient" and len(row) < self.policy.max_attempts:
            at = self.now + BACKOFF[min(len(row), len(BACKOFF)) - 1]
            known.next_run_at = at if at < builders.due_at(partition) + self.policy.max_age else None

    @rule(partition=a_key)
    def an_attempt_is_given_up(self, partition: PartitionKey) -> None:
        if (tried := self._open(partition)) is None:
            return
        self.actors.control.cancel(
            [Cancelled(tried.attempt, self.actors.token, Stage.EXTRACT, ErrorClass.QUOTA, "a pause")]
        )
        tried.outcome = "CANCELLED"

    @rule(partition=a_key)
    def a_verdict_comes_too_late(self, partition: PartitionKey) -> None:
        closed = [tried for tried in self.known[partition].attempts if tried.outcome == "CANCELLED"]
        if closed:
            verdict = Accepted(closed[0].attempt, self.actors.token, "v1", 99, "late", 9, "late")
            assert self.actors.validator.judge([verdict]).refused

    @rule(partition=a_key)
    def the_trusted_run_is_found_wanting(self, partition: PartitionKey) -> None:
        known = self.known[partition]
        if known.run is None:
            return
        trusted = next(tried for tried in known.attempts if tried.attempt.run_id == known.run)
        withdrawn = self.actors.validator.withdraw([FailedRecheck(trusted.attempt, "no longer")])
        assert bool(withdrawn) == (known.status == "success")
        if withdrawn:
            trusted.demoted = True
            known.status = "failed"
            known.count += 1
            known.authority += 1

    # --- operators -------------------------------------------------------------------------------------------------

    @rule(partition=a_key)
    def an_operator_retries(self, partition: PartitionKey) -> None:
        known = self.known[partition]
        moved = self.actors.control.requeue([partition], audit_entry())
        assert moved == (known.status == "failed")
        known.next_run_at = None
        if moved:
            known.status, known.forgiven = "pending", len(known.attempts)

    @rule(partition=a_key)
    def an_operator_pauses(self, partition: PartitionKey) -> None:
        day = partition.logical_date.day
        free = [view.key for view in self.actors.reader.views([days(day, day)], paused=False)]
        assert len(free) == (not self.known[partition].paused)
        assert self.marks.pause(free, "because", audit_entry()) == len(free)
        self.known[partition].paused = True

    @rule(since=a_key)
    def an_operator_pauses_by_filters(self, since: PartitionKey) -> None:
        scope = Scope("demo", first=since.logical_date)
        stopped = [known for partition, known in self.known.items() if partition >= since]
        fresh = sum(not known.paused for known in stopped)
        count = partial(self.actors.reader.count, [days(since.logical_date.day, 3)], paused=False)
        pauses = PauseStore(self.actors.database, self.actors.clock)
        changed = pauses.pause([scope], None, audit_entry(), lambda connection: count(within=connection))
        assert changed == fresh or (changed is None and not fresh)
        for known in stopped:
            known.paused = True

    @rule(partition=a_key)
    def an_operator_resumes(self, partition: PartitionKey) -> None:
        known = self.known[partition]
        assert resumed(self.actors.database, self.actors.clock, partition) == (known.paused or known.held)
        known.paused = known.held = False

    @rule(partition=a_key)
    def an_operator_gives_up(self, partition: PartitionKey) -> None:
        known = self.known[partition]
        changed = self.marks.mark_terminal([partition], "enough", audit_entry())
        assert changed == (known.status == "failed" and not known.marked)
        if changed:
            known.marked, known.next_run_at = True, None

    @rule(partition=a_key)
    def an_operator_clears(self, partition: PartitionKey) -> None:
        known = self.known[partition]
        if self.marks.clear_terminal([partition], audit_entry()):
            known.marked, known.next_run_at, known.forgiven = False, None, len(known.attempts)

    @rule(partition=a_key, fate=st.sampled_from(["accept", "transient", "data"]))
    def an_operator_clears_and_tries_again(self, partition: PartitionKey, fate: str) -> None:
        self.an_operator_clears(partition)
        self.an_operator_retries(partition)
        self.a_round(tuple(fate if partition == each else "leave" for each in KEYS))

    @rule(partition=a_key)
    def an_operator_demotes(self, partition: PartitionKey) -> None:
        known = self.known[partition]
        try:
            changed = self.acts.demote(partition, "wrong", audit_entry())
        except ActRefused:
            assert known.run is None or known.status == "pending"
            return
        assert changed == (known.status == "success")
        if changed:
            trusted = next(tried for tried in known.attempts if tried.attempt.run_id == known.run)
            trusted.demoted, known.status = True, "failed"
            known.authority += 1

    @precondition(lambda self: any(known.attempts for known in self.known.values()))
    @rule(partition=a_key, number=st.integers(0, 3), approve=st.booleans())
    def an_operator_returns_to_a_run(self, partition: PartitionKey, number: int, approve: bool) -> None:
        known = self.known[partition]
        if not known.attempts:
            return
        target = known.attempts[number % len(known.attempts)]
        run = target.attempt.run_id
        try:
            if approve:
                changed = self.acts.approve(partition, run, "it shrank", audit_entry())
            else:
                changed = self.acts.rollback(partition, run, audit_entry())
        except ActRefused:
            assert known.open or not self._may_return(known, target, approve=approve)
            return
        if known.status == "success" and known.run == run:
            assert not changed
            return
        assert changed
        assert not known.open
        assert self._may_return(known, target, approve=approve)
        target.approved = target.approved or approve
        known.status, known.run, known.held, known.next_run_at = "success", run, True, None
        known.marked, known.forgiven = False, len(known.attempts)
        known.authority += 1

    def _may_return(self, known: Known, target: Tried, *, approve: bool) -> bool:
        if not approve:
            return target.trusted_once and not target.demoted
        holder = known.run if known.status == "success" else None
        newest = next((n for n, tried in enumerate(known.attempts) if tried.attempt.run_id == holder), -1)
        return target.outcome == "FAILED" and not target.demoted and newest <= known.attempts.index(target)

    # --- invariants ------------------------------------------------------------------------------------------------

    @invariant()
    def the_planner_says_what_the_model_says(self) -> None:
        if not hasattr(self, "known"):
            return
        everything = (*DUE, PlanReason.OPEN, PlanReason.PAUSED, PlanReason.SUCCESS, PlanReason.FAILED)
        found = self.reader.candidates(self.ranges(), everything, self.now, {"campaign_daily": AGES})
        expected = {k: known.reason(k, self.policy, self.now) for k, known in self.known.items()}
        assert {c.key: c.reason for c in found} == expected

    @invariant()
    def everybody_agrees_on_what_is_terminal(self) -> None:
        if not hasattr(self, "known"):
            return
        expected = {k for k, known in self.known.items() if known.terminal(k, self.policy, self.now)}
        assert {view.key for view in self.reader.views(self.ranges(), terminal_at=self.now)} == expected
        failed = self.reader.views(self.ranges(), status=PartitionStatus.FAILED)
        by_words = {v.key for v in failed if terminal(self.policy, v.control, v.expires_at, self.now) is not None}
        assert by_words == expected

    @invariant()
    def the_state_is_what_the_model_says(self) -> None:
        if not hasattr(self, "known"):
            return
        for view in self.actors.reader.views([days(2, 3)]):
            known, state = self.known[view.key], view.state
            assert (state.status, state.current_run_id) == (known.status, known.run)
            assert (state.attempt_count, state.authority_version) == (known.count, known.authority)
            assert view.control.next_run_at == known.next_run_at

    @invariant()
    def attempts_equal_verdicts(self) -> None:
        if not hasattr(self, "known"):
            return
        for partition, known in self.known.items():
            found = [(a.run_id, a.outcome) for a in reversed(self.actors.reader.attempts(partition))]
            assert found == [(tried.attempt.run_id, tried.outcome) for tried in known.attempts]


TestControlPlane = ControlPlane.TestCase
TestControlPlane.settings = settings(
    max_examples=120, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
