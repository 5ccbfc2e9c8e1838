"""Display status: after any history of a partition, the board shows the status that ADR-026 defines.

The rule is implemented a second time here, in Python, on the history that the test records.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import ActRefused
from penstock.expected import ExpectedRange
from penstock.lifecycle import DisplayStatus
from penstock.partition import RunId
from penstock.projections.staleness import Policy
from penstock.projections.status_board import Board
from penstock.state.authority import AuthorityStore
from penstock.state.recheck import FailedRecheck
from support import builders
from support.builders import FINGERPRINT, NOW, accepted, audit_entry, cancelled, key, rejected
from support.ledger_harness import LedgerHarness, attempt

DAYS = (1, 2)
EXPECTED = ExpectedRange("demo", "1000000001", "campaign_daily", date(2024, 6, 1), date(2024, 6, 2), date(2024, 6, 3))
POLICY = Policy("demo", "campaign_daily", FINGERPRINT, None, None, 0)
MAX_LAG = timedelta(hours=36)

# Histories that need several steps to differ, such as a rollback after a failure, are given explicitly.
ACTS = (
    ("accept",), ("reject",), ("cancel",), ("demote",), ("re-check",), ("approve",), ("requeue",),
    ("accept", "accept", "reject", "rollback"), ("accept", "reject", "approve"), ("accept", "demote", "reject"),
    ("accept", "accept", "rollback", "reject"),
)  # fmt: skip
a_step = st.tuples(st.sampled_from(ACTS), st.sampled_from(DAYS), st.integers(0, 3))
steps = st.lists(a_step, max_size=5).map(lambda chosen: [(act, day, n) for acts, day, n in chosen for act in acts])


@dataclass
class History:
    """The history of one partition, in order."""

    accepted: list[RunId]
    rejected: list[RunId]
    made_at: datetime | None = None
    made_step: int = 0
    trusted: bool = False
    failed_step: int = 0  # of the last attempt, if it failed

    def gives(self, step: int, now: datetime) -> None:
        self.made_step, self.made_at, self.trusted = step, now, True

    def display(self, *, stale: bool) -> DisplayStatus:
        """ADR-026, and `unavailable` for a run that was withdrawn."""
        if self.made_at is None:
            return DisplayStatus.NEVER_MATERIALIZED
        if not self.trusted:
            return DisplayStatus.UNAVAILABLE
        if self.failed_step > self.made_step:
            return DisplayStatus.LAST_ATTEMPT_FAILED
        return DisplayStatus.STALE if stale else DisplayStatus.MATERIALIZED


def play(harness: LedgerHarness, act: str, day: int, which: int, step: int, told: History) -> None:
    """Perform it if it is allowed, and record its effect."""
    actors = harness.actors
    acts = AuthorityStore(actors.database, actors.clock)
    now = actors.clock()
    if act in ("accept", "reject", "cancel"):
        run_id = harness.start(day)
        if act == "accept":
            told.accepted.append(run_id)
            actors.validator.judge([accepted(attempt(run_id, day), actors.token)])
            told.gives(step, now)
        elif act == "reject":
            told.rejected.append(run_id)
            facts: dict[str, Any] = {"record_count": 3, "payload_digest": "p", "content_digest": "c"}
            actors.validator.judge([rejected(attempt(run_id, day), actors.token, **facts)])
        else:
            actors.control.cancel([cancelled(attempt(run_id, day), actors.token)])
        told.failed_step = step if act == "reject" else 0
        return
    if act == "requeue":
        actors.control.requeue([key(day)], audit_entry())
        return
    try:
        if act == "demote":
            told.trusted = told.trusted and not acts.demote(key(day), "wrong", audit_entry())
        elif act == "re-check":
            state = actors.reader.state(key(day))
            run = state.current_run_id if state else None
            if run and actors.validator.withdraw([FailedRecheck(attempt(run, day), "no longer")]):
                told.trusted = False
        elif runs := told.accepted if act == "rollback" else told.rejected:
            run = runs[which % len(runs)]
            give = acts.rollback if act == "rollback" else lambda k, r, e: acts.approve(k, r, "right", e)
            if give(key(day), run, audit_entry()):
                told.gives(step, now)
    except ActRefused:
        pass


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(story=steps, hours=st.sampled_from([1, 20]), folded=st.booleans(), outdated=st.booleans(), lags=st.booleans())
def test_the_board_shows_what_the_rule_says(
    story: list[tuple[str, int, int]], hours: int, folded: bool, outdated: bool, lags: bool
) -> None:
    with ExitStack() as stack:
        folder = stack.enter_context(builders.quick_folder())
        harness = stack.enter_context(LedgerHarness.on(builders.open_database("sqlite", folder, str), folder))
        told = {day: History([], []) for day in DAYS}
        for step, (act, day, which) in enumerate(story, start=1):
            harness.actors.clock.now = NOW + timedelta(hours=step * hours)
            play(harness, act, day, which, step, told[day])
            if folded and step == len(story) // 2:
                harness.projector.advance()
        now = NOW + timedelta(hours=(len(story) + 1) * hours)
        policy = replace(POLICY, code_version="another" if outdated else FINGERPRINT, max_lag=MAX_LAG if lags else None)
        newest = max((day for day, found in told.items() if found.made_at), default=None)

        def is_stale(day: int, found: History) -> bool:
            late = lags and day == newest and found.made_at is not None and found.made_at + MAX_LAG < now
            return outdated or late

        shown = {
            s.key.logical_date.day: s.display for s in Board(harness.current(), [EXPECTED], [policy], now).everything()
        }
        assert shown == {day: found.display(stale=is_stale(day, found)) for day, found in told.items()}
