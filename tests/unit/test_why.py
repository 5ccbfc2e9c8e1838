"""`penstock why`: which run readers get, what blocks the partition, and what happens next. No database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest

from penstock.control.why import Circumstances, RunReference, Why, explain
from penstock.expected import ExpectedRange
from penstock.lifecycle import DisplayStatus, Outcome, PartitionStatus
from penstock.partition import PartitionKey, RunId
from penstock.projections.staleness import StaleReason
from penstock.projections.status_board import PartitionStanding
from penstock.state.authority import AuthorityStore
from penstock.state.records import Attempt, PartitionControl, PartitionState, PartitionView
from penstock.warehouse.pointers import Pointer
from penstock.warehouse.withdrawn import DemotedRun
from support import builders
from support.builders import NOW, Actors, key

OLD, NEW = RunId("01J00000000000000000000001"), RunId("01J00000000000000000000002")
DAY = key(5).logical_date
DUE = ExpectedRange("demo", "1000000001", "campaign_daily", date(2024, 6, 1), date(2024, 6, 10))
MODEL = PartitionKey("models", "all", "spend", DAY)
TRUSTED = PartitionState(key(5), PartitionStatus.SUCCESS, NEW, "v1", 1200, NOW, None, 2, 2)
FAILED = replace(TRUSTED, status=PartitionStatus.FAILED, current_run_id=None, error_message="clicks is negative")
PENDING = PartitionState(key(5), PartitionStatus.PENDING, None, None, None, None, None, 0, 0)


def attempt(run_id: RunId, number: int, *complaints: dict[str, Any]) -> Attempt:
    return Attempt(key(5), run_id, number, "missing", "print", "v1", "t", 0, NOW, None, Outcome.SUCCEEDED, None, None,
                   list(complaints), 10, "sha", 20, "content", NOW)  # fmt: skip


WARNED = {"check": "range", "severity": "warn", "message": "odd"}
ATTEMPTS = [attempt(NEW, 2, WARNED), attempt(OLD, 1)]


def pointer(run_id: RunId, *, available: bool = True) -> Pointer:
    return Pointer(key(5), run_id, "v1", "demo.campaign_daily.v1", 3, available, 1200, NOW)


@pytest.fixture(scope="module", autouse=True)
def bases() -> Iterator[None]:
    """One view of each kind, as the store returns them; tests change the values that they are about."""
    with builders.quick_folder() as folder:
        database = builders.migrated(builders.open_database("sqlite", folder, str))
        actors = Actors.on(database)
        actors.accept(key(2))
        actors.accept(key(3))
        AuthorityStore(database, actors.clock).demote(key(3), "wrong", builders.audit_entry())
        BASES.update(
            zip(("never_materialized", "materialized", "unavailable"), actors.reader.views([DAYS]), strict=True)
        )
        database.close()
    yield
    BASES.clear()


BASES: dict[str, PartitionView] = {}
DAYS = builders.days(1, 3)


def view(state: PartitionState = TRUSTED, display: str = "materialized", **changes: Any) -> PartitionView:
    facts = {"last_attempt_no": 2, "last_attempt_run_id": NEW, "last_attempt_error": "no answer"}
    return replace(BASES[display], state=state, **{**facts, **changes})


def page(
    found: PartitionView | None = None,
    shown: Pointer | None = None,
    control: dict[str, Any] | None = None,
    display: str = "materialized",
    **facts: Any,
) -> Why:
    found = found or view()
    if control:
        found = replace(found, control=PartitionControl(**control))
    known = {"due": DUE, "publish_due": None, "standing": standing(display=display), **facts}
    return explain(found, shown, ATTEMPTS, Circumstances(**known))


def standing(*reasons: StaleReason, flags: tuple[str, ...] = (), display: str = "stale") -> PartitionStanding:
    return PartitionStanding(
        key(5), DisplayStatus(display), flags, NEW, NOW, None, NEW, NOW, NOW if reasons else None, reasons
    )


def model(state: PartitionState = TRUSTED) -> PartitionView:
    return view(replace(state, key=MODEL))


# --- which run -------------------------------------------------------------------------------------------------------


def test_readers_get_the_run_of_the_pointer_whatever_authority_says() -> None:
    found = page(shown=pointer(OLD), publish_due=NOW)
    assert (found.serving, found.waiting) == (RunReference(1, OLD, 1200), RunReference(2, NEW, 1200))
    assert found.waiting_since == NOW
    assert found.headline == (
        "serving attempt 1 with 1,200 rows; attempt 2 with 1,200 rows has authority and waits to be published"
    )
    assert found.blocks == (
        f"run {NEW} (attempt 2, 1,200 rows) waits to be published to the warehouse since 2024-07-01 12:00:00 UTC",
    )
    assert "publishes it" in found.next


def test_nothing_waits_when_readers_get_the_trusted_run() -> None:
    found = page(shown=pointer(NEW), publish_due=NOW)
    assert (found.serving, found.waiting, found.waiting_since) == (RunReference(2, NEW, 1200), None, None)
    assert found.headline == "serving attempt 2 with 1,200 rows"
    assert (found.blocks, found.next) == ((), "nothing to do; `penstock run --reprocess` would fetch it again")
    assert found.warnings == [WARNED]
    assert page(shown=pointer(OLD)).waiting is None, "not due, so nothing waits"


def test_a_hidden_pointer_shows_nothing_and_its_run_waits() -> None:
    found = page(shown=pointer(NEW, available=False), publish_due=NOW)
    assert (found.serving, found.waiting) == (None, RunReference(2, NEW, 1200))
    assert found.headline.startswith("readers get no rows; attempt 2")


def test_what_is_not_success_never_waits() -> None:
    assert page(view(FAILED, "unavailable"), publish_due=NOW).waiting is None
    assert page(view(replace(TRUSTED, status=PartitionStatus.FAILED)), publish_due=NOW).waiting is None


def test_a_run_without_an_attempt_on_record_has_no_number() -> None:
    other = RunId("01J00000000000000000000009")
    assert page(shown=pointer(other)).headline == "serving attempt ? with 1,200 rows"
    assert page(view(replace(TRUSTED, current_run_id=other), "unavailable"), display="unavailable").headline.startswith(
        "withdrawn: attempt ?"
    )


def test_a_withdrawn_run_is_named() -> None:
    withdrawn = replace(TRUSTED, status=PartitionStatus.FAILED, error_message="wrong")
    found = page(view(withdrawn, "unavailable"), pointer(NEW, available=False), display="unavailable")
    assert found.headline == "withdrawn: attempt 2 is no longer trusted, its rows are hidden from readers"
    never = page(view(PENDING, "never_materialized"), display="never_materialized")
    assert never.headline == "no run of this partition has ever been accepted"


def test_a_failed_refetch_is_shown_beside_the_served_run() -> None:
    failed = standing(flags=("last_attempt_failed",), display="materialized_but_last_attempt_failed")
    found = page(shown=pointer(OLD), standing=failed)
    assert found.headline == "serving attempt 1 with 1,200 rows, attempt 2 failed: no answer"
    assert found.display is DisplayStatus.LAST_ATTEMPT_FAILED
    assert page(shown=pointer(OLD), standing=standing()).headline == "serving attempt 1 with 1,200 rows"


def test_a_provisional_day_is_shown_as_provisional() -> None:
    assert page(shown=pointer(NEW), maturity="provisional").headline.endswith(
        "(provisional: the source may still change this day)"
    )
    assert "provisional" not in page(shown=pointer(NEW), maturity="settled").headline


def test_every_stale_reason_is_reported_with_its_time() -> None:
    found = page(standing=standing(StaleReason.CODE_CHANGED, StaleReason.FRESHNESS_POLICY))
    assert found.stale == (
        "CODE_CHANGED: fetched or derived under an older version of its contract since 2024-07-01 12:00:00 UTC",
        "FRESHNESS_POLICY: older than its freshness policy allows since 2024-07-01 12:00:00 UTC",
    )
    assert page(standing=standing()).stale == ()


def test_rows_that_were_made_from_a_demoted_run_are_shown_unless_the_model_hides_them() -> None:
    demoted = DemotedRun(key(1), OLD, NOW)
    shown = page(model(), pointer(NEW), withdrawn_inputs=(demoted,))
    assert (shown.serving, shown.withdrawn_inputs) == (RunReference(2, NEW, 1200), (demoted,))
    hidden = page(model(), pointer(NEW), withdrawn_inputs=(demoted,), hides=True)
    assert hidden.serving is None
    assert hidden.headline == f"its rows are hidden from readers: it was derived from {demoted}"
    assert hidden.blocks == (f"not ready: it was derived from {demoted}",)
    assert page(model(), pointer(NEW), hides=True).serving == RunReference(2, NEW, 1200)


# --- what blocks it, and what happens next ---------------------------------------------------------------------------

MARKED = {"terminal_at": NOW, "terminal_by": "ada"}
BLOCKED: list[tuple[dict[str, Any], str, str]] = [
    ({"due": replace(DUE, last=date(2024, 6, 4))}, "the day is not over yet", "nothing until the day is due"),
    ({"due": replace(DUE, first=date(2024, 6, 6))}, "only from 2024-06-06 on", "nothing until the day is due"),
    ({"due": replace(DUE, frozen_before=date(2024, 6, 6))}, "frozen: its source", "no longer has this day"),
    ({"control": {"paused_at": NOW, "paused_by": "ada"}}, "paused by ada", "state resume"),
    ({"control": {"paused_at": NOW, "paused_by": "ada", "paused_reason": "move"}}, "by ada: move", "state resume"),
    (
        {"terminal": "5 failed", "control": {"terminal_at": NOW, "terminal_by": "ada"}},
        "given up for good: 5 failed",
        "state clear-terminal",
    ),
    ({"source_error": "the breaker of demo is open"}, "the breaker of demo is open", "--reprocess"),
    ({"control": {"held_at": NOW, "held_by": "ada"}}, "held back from restatement by ada", "--reprocess"),
    ({"lacking": ("2 of 3 slices cannot be read",)}, "2 of 3 slices cannot be read", "loads the missing inputs"),
    ({"state": FAILED}, "explicit retry: clicks is negative", "state history"),
    ({"state": PENDING, "lacking": ("x",)}, "x", "loads the missing inputs"),
]


@pytest.mark.parametrize(("facts", "block", "then"), BLOCKED, ids=[block for _, block, _ in BLOCKED])
def test_what_stands_in_the_way_is_named_with_what_happens_next(facts: dict[str, Any], block: str, then: str) -> None:
    found = page(view(facts.get("state", TRUSTED)), **{name: fact for name, fact in facts.items() if name != "state"})
    assert len(found.blocks) == 1
    assert block in found.blocks[0]
    assert then in found.next


@pytest.mark.parametrize("day", [DUE.first, DUE.last])
def test_the_first_and_the_last_day_are_due(day: date) -> None:
    assert page(view(replace(PENDING, key=key(day.day)))).next == "the next `penstock run` attempts it"
    assert page(view(replace(PENDING, key=key(day.day)))).blocks == ()


def test_an_open_run_is_named_with_its_tasks_and_its_verdict_comes_next() -> None:
    working = view(open_run_id=OLD)
    found = page(working, publish_due=NOW, tasks=("extract SUCCEEDED", "validate RUNNING"))
    assert found.blocks == (f"run {OLD} is working on it (extract SUCCEEDED, validate RUNNING)",)
    assert found.next == "its verdict; nothing to do"
    assert page(working).blocks == (f"run {OLD} is working on it",)


def test_the_next_retry_is_shown_with_its_time() -> None:
    later = NOW + timedelta(hours=1)
    coming = {"next_run_at": later, "strategy": "backoff 1 of 3"}
    failed = page(view(FAILED, "never_materialized"), control=coming)
    assert failed.blocks == ()
    assert failed.next == "retried after 2024-07-01 13:00:00 UTC (backoff 1 of 3), by a run or the loop"
    pausing = page(view(PENDING), control={"next_run_at": later, "strategy": "quota"})
    assert "the source asked for a pause, so the loop waits until 2024-07-01 13:00:00 UTC" in pausing.next


def test_a_quota_that_is_used_up_blocks_until_it_renews() -> None:
    renews = NOW.replace(hour=0) + timedelta(days=1)
    message = "quota of demo is used up until 2024-07-02 00:00 UTC"
    waits = {"next_run_at": NOW + timedelta(hours=1), "strategy": "quota"}
    found = page(view(PENDING), control=waits, source_error=message, quota_renews_at=renews)
    assert found.blocks == (message,)
    assert found.next == "attempted by the first run after the quota renews at 2024-07-02 00:00 UTC"


def test_a_run_that_only_guards_held_back_comes_with_the_command_that_approves_it() -> None:
    found = page(view(FAILED, "never_materialized"), approvable=True)
    assert found.approve == f'penstock state approve {key(5)} --run {NEW} --reason "..."'
    assert found.blocks[-1] == "attempt 2 was held back by a guard only: no answer"
    assert found.next.startswith(f"if the rows are right, `{found.approve}`; otherwise: see")
    assert page(view(FAILED)).approve is None


def test_a_frozen_day_that_waits_is_still_published() -> None:
    found = page(publish_due=NOW, due=replace(DUE, frozen_before=date(2024, 6, 6)))
    assert "publishes it" in found.next


def test_what_happens_to_a_slice_of_a_model_next() -> None:
    changed = standing(StaleReason.UPSTREAM_CHANGED)
    assert page(model()).next == "nothing to do; derived again when its inputs change"
    assert page(model(), standing=standing()).next == "nothing to do; derived again when its inputs change"
    assert page(model(), standing=changed).next == "the next `penstock run` derives it again"
    assert "refresh: false" in page(model(), standing=changed, refreshes=False).next
    assert "an operator chose" in page(model(), control={"held_at": NOW, "held_by": "ada"}, standing=changed).next
