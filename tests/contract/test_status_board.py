"""The status board: display status, flags, gaps and every stale reason, at query time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.clock import utc_now
from penstock.control.select import Selection
from penstock.digests import versioned
from penstock.expected import ExpectedRange
from penstock.lake.local import LocalLake
from penstock.ledger.append import append
from penstock.ledger.events import AuthorityChanged, Event, PartitionHidden, PartitionPublished
from penstock.lifecycle import Act, DisplayStatus
from penstock.partition import AttemptKey, PartitionKey, RunId, new_run_id, new_ulid
from penstock.projections.current import Current
from penstock.projections.fact import Fact
from penstock.projections.input_runs import CONSUMED
from penstock.projections.manifest import Manifest
from penstock.projections.staleness import Policy, Window
from penstock.projections.status_board import FAILED, STALE, Board
from penstock.state.authority import AuthorityStore
from penstock.state.inputs import InputStore
from penstock.state.records import Consumed
from support import builders
from support.builders import FINGERPRINT, NOW, accepted, key, rejected
from support.cli import answer
from support.ledger_harness import OWNER, LedgerHarness, attempt
from support.workspaces import open_at, write_workspace

EXPECTED = ExpectedRange("demo", "1000000001", "campaign_daily", date(2024, 6, 1), date(2024, 6, 10), date(2024, 6, 30))


@pytest.fixture
def harness() -> Iterator[LedgerHarness]:
    with (
        builders.quick_folder() as folder,
        LedgerHarness.on(builders.open_database("sqlite", folder, str), folder) as found,
    ):
        yield found


def policy(**changes: Any) -> Policy:
    return replace(Policy("demo", "campaign_daily", FINGERPRINT, None, None, 0), **changes)


def board(
    harness: LedgerHarness, *, after: timedelta = timedelta(0), expected: ExpectedRange = EXPECTED, **changes: Any
) -> Board:
    return Board(harness.current(), [expected], [policy(**changes)], NOW + after)


def accept(harness: LedgerHarness, *days: int) -> RunId:
    run_id = harness.start(*days)
    harness.actors.validator.judge([accepted(attempt(run_id, day), harness.actors.token) for day in days])
    return run_id


def reject(harness: LedgerHarness, *days: int) -> None:
    run_id = harness.start(*days)
    harness.actors.validator.judge([rejected(attempt(run_id, day), harness.actors.token) for day in days])


def shown(found: Board) -> dict[int, str]:
    return {s.key.logical_date.day: str(s.display) for s in found.everything()}


def later(harness: LedgerHarness, hours: int = 1) -> None:
    harness.actors.clock.now += timedelta(hours=hours)


@pytest.mark.parametrize("folded", [True, False], ids=["from files", "from news"])
def test_every_display_status_is_shown(harness: LedgerHarness, folded: bool) -> None:
    accept(harness, 1, 2, 3)
    if folded:
        harness.projector.advance()
    later(harness)
    reject(harness, 2, 4)
    AuthorityStore(harness.actors.database, harness.actors.clock).demote(key(3), "wrong", builders.audit_entry())
    if folded:
        harness.projector.advance()
    found = board(harness)
    assert shown(found) == {
        1: "materialized",
        2: "materialized_but_last_attempt_failed",
        3: "unavailable",
        4: "never_materialized",
        **dict.fromkeys(range(5, 11), "never_materialized"),
    }
    counts = {row["display"]: row["n"] for row in found.counts(["query"])}
    assert counts == {
        "materialized": 1,
        "materialized_but_last_attempt_failed": 1,
        "unavailable": 1,
        "never_materialized": 7,
    }
    assert found.flags() == {"last_attempt_failed": 2, "unpublished": 2}
    assert [s.key for s in found.page(FAILED, after=None, limit=None)] == [key(2), key(3), key(4)]
    assert found.missing() == 7


def test_a_failure_is_newer_by_its_number_whatever_the_clocks_say(harness: LedgerHarness) -> None:
    harness.actors.clock.now += timedelta(minutes=2)  # the clock of the validator is ahead
    accept(harness, 1)
    harness.actors.clock.now -= timedelta(minutes=2)
    reject(harness, 1)
    assert shown(board(harness))[1] == "materialized_but_last_attempt_failed"


def test_a_newer_success_ends_a_failure(harness: LedgerHarness) -> None:
    reject(harness, 1)
    later(harness)
    accept(harness, 1)
    assert shown(board(harness))[1] == "materialized"


@pytest.mark.parametrize("folded", [True, False], ids=["from files", "from news"])
def test_a_failure_is_shown_before_staleness_and_both_are_reported(harness: LedgerHarness, folded: bool) -> None:
    accept(harness, 1, 2)
    later(harness, 2)
    reject(harness, 2)
    failed_at = harness.actors.clock.now
    if folded:
        harness.projector.advance()
    found = board(harness, after=timedelta(days=9), code_version="another", code_since=NOW)
    assert shown(found)[1] == "stale"
    assert shown(found)[2] == "materialized_but_last_attempt_failed"
    standing = next(s for s in found.everything() if s.key == key(2))
    assert [str(reason) for reason in standing.reasons] == ["CODE_CHANGED"]
    assert (standing.last_attempt_at, standing.last_materialization_at) == (failed_at, NOW)
    assert [s.key for s in found.page(FAILED, after=None, limit=None)] == [key(2)]
    assert [s.key for s in found.page(STALE, after=None, limit=None)] == [key(1), key(2)]


def test_gaps_are_ranges(harness: LedgerHarness) -> None:
    accept(harness, 3, 4, 7)
    gaps, total = board(harness).gaps(10)
    assert [(gap.first.day, gap.last.day) for gap in gaps] == [(1, 2), (5, 6), (8, 10)]
    assert total == 3
    assert len(board(harness).gaps(1)[0]) == 1


@pytest.mark.parametrize("first_pass", ["advance", "rebuild"], ids=["deltas", "a base"])
def test_newer_events_are_shown_beside_the_rows_of_the_files(harness: LedgerHarness, first_pass: str) -> None:
    accept(harness, 1, 2, 3)
    later(harness)
    reject(harness, 3)
    getattr(harness.projector, first_pass)()
    assert (harness.current().status_base() is None) is (first_pass == "advance")
    later(harness)
    reject(harness, 2)
    newest = accept(harness, 3, 4)
    found = board(harness)
    failed = "materialized_but_last_attempt_failed"
    assert {day: shown(found)[day] for day in range(1, 6)} == {
        1: "materialized", 2: failed, 3: "materialized", 4: "materialized", 5: "never_materialized",
    }  # fmt: skip
    standings = {s.key.logical_date.day: s for s in found.everything()}
    at = harness.actors.clock.now
    assert [standings[day].last_materialization_at for day in range(1, 6)] == [NOW, NOW, at, at, None]
    assert [standings[day].last_attempt_at for day in range(1, 6)] == [NOW, at, at, at, None]
    assert [standings[day].last_attempt_outcome for day in (1, 2, 3)] == ["SUCCEEDED", "FAILED", "SUCCEEDED"]
    assert (standings[3].last_attempt_run_id, standings[3].last_materialization_run_id) == (newest, newest)
    assert standings[2].last_attempt_run_id != standings[2].last_materialization_run_id


SECOND = replace(EXPECTED, customer_id="1000000002", first=date(2024, 5, 30), last=date(2024, 6, 2))


def test_partitions_are_counted_by_whatever_is_asked_for(harness: LedgerHarness) -> None:
    accept(harness, 1, 2)
    for partition in (key(1, "1000000002"), key(3, "1000000002"), key(1, query="clicks")):  # the last two: not expected
        harness.actors.accept(partition)
    found = Board(harness.current(), [EXPECTED, SECOND], [policy()], NOW)
    made, never = "materialized", "never_materialized"
    first, second = "1000000001", "1000000002"
    assert found.counts([]) == [{"display": made, "n": 3}, {"display": never, "n": 11}]
    assert found.counts(["customer"]) == [
        {"customer": first, "display": made, "n": 2}, {"customer": first, "display": never, "n": 8},
        {"customer": second, "display": made, "n": 1}, {"customer": second, "display": never, "n": 3},
    ]  # fmt: skip
    assert found.counts(["month", "customer"]) == [
        {"month": "2024-05", "customer": second, "display": never, "n": 2},
        {"month": "2024-06", "customer": first, "display": made, "n": 2},
        {"month": "2024-06", "customer": first, "display": never, "n": 8},
        {"month": "2024-06", "customer": second, "display": made, "n": 1},
        {"month": "2024-06", "customer": second, "display": never, "n": 1},
    ]
    by_day = {(row["date"], row["display"]): row["n"] for row in found.counts(["date"])}
    assert by_day["2024-06-01", made] == 2
    assert ("2024-06-01", never) not in by_day
    assert (by_day["2024-06-02", made], by_day["2024-06-02", never], by_day["2024-05-30", never]) == (1, 1, 1)
    assert [row["source"] for row in found.counts(["source", "query"])] == ["demo", "demo"]
    assert (found.missing(), found.total("display = 'materialized'"), len(found.everything())) == (11, 3, 14)
    assert len(found.missing_page(after=None, limit=None)) == 11
    assert [(gap.customer_id, gap.first, gap.last) for gap in found.gaps(10)[0]] == [
        (first, date(2024, 6, 3), date(2024, 6, 10)),
        (second, date(2024, 5, 30), date(2024, 5, 31)),
        (second, date(2024, 6, 2), date(2024, 6, 2)),
    ]
    after = found.page("true", after=key(2), limit=None)
    assert [s.key for s in after] == [key(1, second)]
    assert [s.key for s in found.page("true", after=None, limit=2)] == [key(1), key(2)]


def test_where_nothing_is_expected_nothing_is_counted_or_missing(harness: LedgerHarness) -> None:
    accept(harness, 1)
    for expected in ([], [replace(EXPECTED, last=date(2024, 5, 31))]):
        found = Board(harness.current(), expected, [policy()], NOW)
        assert (found.counts([]), found.counts(["customer"]), found.flags()) == ([], [], {})
        assert (found.missing(), found.gaps(10), found.everything()) == (0, ([], 0), [])


def keys_table(*keys: PartitionKey) -> list[tuple[Any, ...]]:
    return [tuple(one) for one in keys]


def test_a_board_of_some_keys_shows_no_others(harness: LedgerHarness) -> None:
    accept(harness, 1, 2, 5)
    reject(harness, 2, 3)
    harness.actors.accept(key(4, "1000000002"))
    only = keys_table(*map(key, (2, 3, 4, 5, 7, 30)), key(4, "1000000002"), key(4, query="clicks"))
    found = Board(harness.current(), [EXPECTED], [policy()], NOW, only=only)
    assert shown(found) == {
        2: "materialized_but_last_attempt_failed", 3: "never_materialized", 4: "never_materialized",
        5: "materialized", 7: "never_materialized",
    }  # fmt: skip
    assert {row["display"]: row["n"] for row in found.counts([])} == {
        "materialized": 1, "materialized_but_last_attempt_failed": 1, "never_materialized": 3,
    }  # fmt: skip
    assert found.missing() == 3
    assert [s.key for s in found.missing_page(after=None, limit=None)] == [key(3), key(4), key(7)]
    gaps, total = found.gaps(1)
    assert ([(gap.first.day, gap.last.day) for gap in gaps], total) == ([(3, 4)], 2)
    assert [(gap.first.day, gap.last.day) for gap in found.gaps(9)[0]] == [(3, 4), (7, 7)]
    assert found.flags() == {"last_attempt_failed": 2, "unpublished": 2}


def test_keys_that_are_left_out_are_neither_failed_nor_stale(harness: LedgerHarness) -> None:
    accept(harness, 1)
    reject(harness, 1, 2, 3)
    left_out = keys_table(key(2), key(3, "1000000002"), key(1, query="clicks"))
    found = Board(harness.current(), [EXPECTED], [policy(code_version="x")], NOW, without=left_out)
    assert [s.key for s in found.page(FAILED, after=None, limit=None)] == [key(1), key(3)]
    both = Board(harness.current(), [EXPECTED], [policy()], NOW, only=keys_table(key(2), key(3)), without=left_out)
    assert [s.key for s in both.page(FAILED, after=None, limit=None)] == [key(3)]


def test_what_readers_do_not_see_yet_is_flagged_until_they_do(harness: LedgerHarness) -> None:
    run_id = accept(harness, 1)
    assert board(harness).flags() == {"unpublished": 1}
    tell(harness, published(AttemptKey(key(1), run_id)))
    assert board(harness).flags() == {}
    again = accept(harness, 1)
    assert board(harness).flags() == {"unpublished": 1}
    tell(harness, published(AttemptKey(key(1), again)))
    tell(harness, PartitionHidden(key(1), new_ulid()))
    assert board(harness).flags() == {"unpublished": 1}
    AuthorityStore(harness.actors.database, harness.actors.clock).demote(key(1), "wrong", builders.audit_entry())
    assert board(harness).flags() == {}


def tell(harness: LedgerHarness, *events: Event) -> None:
    harness.actors.database.transact(lambda c: append(c, events, "loader", harness.actors.clock.now))


def published(made: AttemptKey) -> PartitionPublished:
    return PartitionPublished(made.run_id, made.partition, new_ulid(), "demo.campaign_daily.v1", 1, 10)


def test_pages_go_on_after_a_key(harness: LedgerHarness) -> None:
    found = board(harness)
    first = found.missing_page(after=None, limit=4)
    rest = found.missing_page(after=first[-1].key, limit=None)
    assert [s.key.logical_date.day for s in [*first, *rest]] == list(range(1, 11))


# --- staleness -------------------------------------------------------------------------------------------------------


def reasons(found: Board) -> dict[int, list[str]]:
    return {s.key.logical_date.day: [str(r) for r in s.reasons] for s in found.page(STALE, after=None, limit=None)}


def test_the_newest_slice_is_stale_when_it_is_older_than_the_policy_allows(harness: LedgerHarness) -> None:
    accept(harness, 1, 2)
    lag = timedelta(hours=36)
    assert reasons(board(harness, after=lag, max_lag=lag)) == {}
    past = board(harness, after=lag + timedelta(seconds=1), max_lag=lag)
    assert reasons(past) == {2: ["FRESHNESS_POLICY"]}
    [stale] = past.page(STALE, after=None, limit=None)
    assert (stale.display, stale.stale_since) == (DisplayStatus.STALE, NOW + lag)


def test_slices_that_their_source_may_still_change_are_stale_by_age_too(harness: LedgerHarness) -> None:
    accept(harness, 8, 9, 10)
    near = replace(EXPECTED, over=date(2024, 6, 10))
    found = board(harness, after=timedelta(days=2), expected=near, max_lag=timedelta(hours=36), restate_days=2)
    assert reasons(found) == {9: ["FRESHNESS_POLICY"], 10: ["FRESHNESS_POLICY"]}


def test_fresh_materialization_clears_staleness(harness: LedgerHarness) -> None:
    accept(harness, 1)
    late: dict[str, Any] = {"after": timedelta(hours=48), "max_lag": timedelta(hours=36)}
    assert reasons(board(harness, **late)) == {1: ["FRESHNESS_POLICY"]}
    later(harness, 24)
    accept(harness, 1)
    assert reasons(board(harness, **late)) == {}


def test_another_version_of_the_code_makes_what_it_made_stale(harness: LedgerHarness) -> None:
    accept(harness, 1, 2)
    found = board(harness, code_version="another", code_since=NOW - timedelta(days=1))
    assert reasons(found) == {1: ["CODE_CHANGED"], 2: ["CODE_CHANGED"]}
    assert found.stale_reasons() == {"FRESHNESS_POLICY": 0, "UPSTREAM_CHANGED": 0, "CODE_CHANGED": 2}


def test_the_same_definition_under_another_fingerprint_makes_nothing_stale(harness: LedgerHarness) -> None:
    accept(harness, 1, 2)
    assert reasons(board(harness, code_version="today", same_code=(FINGERPRINT,))) == {}
    assert reasons(board(harness, code_version="today", same_code=("x",))) == {1: ["CODE_CHANGED"], 2: ["CODE_CHANGED"]}


def test_a_run_without_a_known_code_version_is_not_stale_by_code(harness: LedgerHarness) -> None:
    tell(harness, AuthorityChanged(new_run_id(), key(1), 1, Act.ACCEPT))
    assert shown(board(harness, code_version="another"))[1] == "materialized"


def test_only_what_was_materialized_can_be_the_newest(harness: LedgerHarness) -> None:
    accept(harness, 1, 2)
    reject(harness, 3)
    harness.actors.accept(key(9, "1000000002"))
    harness.actors.accept(key(9, query="clicks"))
    found = board(harness, after=timedelta(days=3), max_lag=timedelta(hours=36))
    assert reasons(found) == {2: ["FRESHNESS_POLICY"]}


def test_a_policy_without_a_lag_beside_one_with_a_lag_makes_nothing_late(harness: LedgerHarness) -> None:
    accept(harness, 1)
    harness.actors.accept(key(1, query="clicks"))
    clicks = replace(EXPECTED, query_name="clicks")
    policies = [policy(), policy(query_name="clicks", max_lag=timedelta(hours=1))]
    found = Board(harness.current(), [EXPECTED, clicks], policies, NOW + timedelta(days=3))
    assert [s.key for s in found.page(STALE, after=None, limit=None)] == [key(1, query="clicks")]


def test_what_has_no_policy_is_shown_and_never_stale(harness: LedgerHarness) -> None:
    accept(harness, 1)
    for policies in ([], [policy(query_name="clicks", code_version="x", max_lag=timedelta(hours=1))]):
        found = Board(harness.current(), [EXPECTED], policies, NOW + timedelta(days=3))
        assert (shown(found)[1], reasons(found)) == ("materialized", {})


def test_stale_since_is_the_first_of_all_reasons_and_a_sweep_writes_the_reason_of_highest_rank(
    harness: LedgerHarness,
) -> None:
    accept(harness, 1)
    lag = timedelta(hours=36)
    late: dict[str, Any] = {"after": timedelta(days=3), "max_lag": lag, "code_version": "x"}
    for code_since, since in (
        (NOW - timedelta(days=1), NOW),  # not before the partition was computed
        (NOW + timedelta(hours=1), NOW + timedelta(hours=1)),
        (NOW + timedelta(hours=40), NOW + lag),
        (None, NOW + lag),  # the start is unknown: now
    ):
        found = board(harness, code_since=code_since, **late)
        [stale] = found.page(STALE, after=None, limit=None)
        assert [str(reason) for reason in stale.reasons] == ["FRESHNESS_POLICY", "CODE_CHANGED"]
        assert stale.stale_since == since
        [row] = found.swept().to_pylist()
        assert (row["stale_since"], row["stale_reason_code"]) == (since, "FRESHNESS_POLICY")
        assert found.stale_reasons() == {"FRESHNESS_POLICY": 1, "UPSTREAM_CHANGED": 0, "CODE_CHANGED": 1}
    [stale] = board(harness, after=timedelta(hours=2), code_version="x").page(STALE, after=None, limit=None)
    assert stale.stale_since == NOW + timedelta(hours=2)


def test_what_is_not_available_is_not_stale_and_not_swept(harness: LedgerHarness) -> None:
    accept(harness, 1, 2)
    AuthorityStore(harness.actors.database, harness.actors.clock).demote(key(1), "wrong", builders.audit_entry())
    found = board(harness, code_version="x")
    assert reasons(found) == {2: ["CODE_CHANGED"]}
    assert found.stale_reasons()["CODE_CHANGED"] == 1
    assert [row["logical_date"].day for row in found.swept().to_pylist()] == [2]


def derive(harness: LedgerHarness, *inputs: Consumed) -> None:
    run_id = harness.start(5)
    InputStore(harness.actors.database).record({attempt(run_id, 5): inputs})
    assert harness.actors.validator.judge([accepted(attempt(run_id, 5), harness.actors.token)]).applied


@pytest.mark.parametrize("folded", [True, False], ids=["from files", "from news"])
def test_a_derived_slice_is_stale_when_another_run_of_its_input_is_trusted(
    harness: LedgerHarness, folded: bool
) -> None:
    first = accept(harness, 1, 2)
    derive(harness, *(Consumed(key(day), first, f"content-{first}") for day in (1, 2)))
    if folded:
        harness.projector.advance()
    assert reasons(board(harness)) == {}
    accept(harness, 2)
    if folded:
        harness.projector.advance()
    assert reasons(board(harness)) == {5: ["UPSTREAM_CHANGED"]}
    assert reasons(board(harness, code_version="x")) == {
        **{day: ["CODE_CHANGED"] for day in (1, 2)},
        5: ["UPSTREAM_CHANGED", "CODE_CHANGED"],
    }


def test_a_digest_of_an_earlier_release_is_compared_without_its_version(harness: LedgerHarness) -> None:
    first = accept(harness, 1)
    derive(harness, Consumed(key(1), first, "d1"))
    again = harness.start(1)
    same = replace(accepted(attempt(again, 1), harness.actors.token), content_digest=versioned("d1"))
    harness.actors.validator.judge([same])
    assert reasons(board(harness)) == {}


def test_an_input_with_the_same_rows_makes_nothing_stale(harness: LedgerHarness) -> None:
    first = accept(harness, 1)
    derive(harness, Consumed(key(1), first, f"content-{first}"))
    again = harness.start(1)
    same = replace(accepted(attempt(again, 1), harness.actors.token), content_digest=f"content-{first}")
    harness.actors.validator.judge([same])
    assert reasons(board(harness)) == {}


def test_an_input_that_was_withdrawn_makes_what_was_made_from_it_stale(harness: LedgerHarness) -> None:
    first = accept(harness, 1)
    derive(harness, Consumed(key(1), first, f"content-{first}"))
    AuthorityStore(harness.actors.database, harness.actors.clock).demote(key(1), "wrong", builders.audit_entry())
    assert reasons(board(harness)) == {5: ["UPSTREAM_CHANGED"]}


def test_a_derived_slice_is_stale_since_its_input_changed_and_not_before_it_was_made(harness: LedgerHarness) -> None:
    first = accept(harness, 1)
    later(harness, 24)
    derive(harness, Consumed(key(1), first, f"content-{first}"))
    later(harness, 24)
    withdrawn = harness.actors.clock.now
    AuthorityStore(harness.actors.database, harness.actors.clock).demote(key(1), "wrong", builders.audit_entry())
    [stale] = board(harness, after=timedelta(days=9)).page(STALE, after=None, limit=None)
    assert stale.stale_since == withdrawn
    older = board(harness, after=timedelta(days=9), code_version="x", code_since=NOW + timedelta(hours=30))
    [stale] = older.page(STALE, after=None, limit=None)
    assert (stale.key, stale.stale_since) == (key(5), NOW + timedelta(hours=30))


def withdrawn(demoted_at: Any, *keys: PartitionKey) -> list[tuple[Any, ...]]:
    return [(*one, demoted_at) for one in keys]


def test_what_was_made_from_a_demoted_run_is_stale_and_flagged_and_nothing_else_is(harness: LedgerHarness) -> None:
    accept(harness, 1, 2, 3)
    at = NOW + timedelta(hours=5)
    other = (key(1, query="clicks"), key(1, "1000000002"), key(1, source="models"))
    found = Board(harness.current(), [EXPECTED], [policy()], NOW, withdrawn=withdrawn(at, key(2), *other))
    assert shown(found) == {
        1: "materialized", 2: "stale", 3: "materialized", **dict.fromkeys(range(4, 11), "never_materialized"),
    }  # fmt: skip
    assert found.flags() == {"unpublished": 3, "upstream_changed": 1, "input_demoted": 1}
    [stale] = found.page(STALE, after=None, limit=None)
    assert (stale.key, stale.stale_since) == (key(2), at)
    assert stale.flags == ("upstream_changed", "unpublished", "input_demoted")


def test_a_slice_is_stale_since_the_first_of_a_changed_and_a_demoted_input(harness: LedgerHarness) -> None:
    first = accept(harness, 1, 2)
    derive(harness, Consumed(key(1), first, f"content-{first}"))
    later(harness, 10)
    accept(harness, 1)
    for at, since in ((NOW + timedelta(hours=5), 5), (NOW + timedelta(hours=20), 10)):
        found = Board(harness.current(), [EXPECTED], [policy()], NOW, withdrawn=withdrawn(at, key(5)))
        [stale] = found.page(STALE, after=None, limit=None)
        assert (stale.key, stale.stale_since) == (key(5), NOW + timedelta(hours=since))


# --- windows: inputs that arrived later ------------------------------------------------------------------------------


def model(day: int = 3, customer: str = "all", query: str = "spend") -> PartitionKey:
    return key(day, customer, query, "models")


class EventHistory:
    """Events that are not folded yet, and inputs of partitions: a board of them needs no database and no file."""

    def __init__(self, lake: LocalLake) -> None:
        self.now = NOW
        self._lake = lake
        self._facts: list[Fact] = []
        self._versions: Counter[PartitionKey] = Counter()
        self._inputs: list[tuple[Any, ...]] = []

    def _append(self, kind: str, run_id: str | None, partition: PartitionKey, **payload: Any) -> None:
        at = len(self._facts) + 1
        body = {"partition_key": str(partition), **payload}
        self._facts.append(Fact(at, f"E{at:04}", kind, 1, self.now, run_id, body))

    def later(self, hours: int = 1) -> None:
        self.now += timedelta(hours=hours)

    def accept(self, partition: PartitionKey, *inputs: Consumed, digest: str | None = None) -> Consumed:
        """Trust a run of this partition, derived from these inputs."""
        self._versions[partition] += 1
        version, run_id = self._versions[partition], new_run_id()
        made = Consumed(partition, run_id, digest or f"content-{run_id}")
        self._inputs += [(*partition, run_id, *one.partition, one.run_id, one.content_digest) for one in inputs]
        finished = {"attempt_no": version, "outcome": "SUCCEEDED", "consumed": len(inputs)}
        self._append("TaskFinished", run_id, partition, **finished)
        trusted = {"act": "accept", "code_version": FINGERPRINT, "content_digest": made.content_digest}
        self._append("AuthorityChanged", run_id, partition, authority_version=version, **trusted)
        return made

    def publish(self, made: Consumed) -> Consumed:
        self._append("PartitionPublished", made.run_id, made.partition)
        return made

    def load(self, *partitions: PartitionKey) -> list[Consumed]:
        """Accept these inputs and show them to readers."""
        return [self.publish(self.accept(partition)) for partition in partitions]

    def demote(self, partition: PartitionKey) -> None:
        self._versions[partition] += 1
        self._append("AuthorityChanged", None, partition, authority_version=self._versions[partition], act="demote")

    def hide(self, partition: PartitionKey) -> None:
        self._append("PartitionHidden", None, partition)

    def _consumed(self, _: Sequence[Fact]) -> pa.Table:
        return pa.Table.from_pylist(
            [dict(zip(CONSUMED.names, row, strict=True)) for row in self._inputs], schema=CONSUMED
        )

    def board(self, *, own: bool = False, days: int = 2) -> Board:
        """Of two models, of which only one reads `campaign_daily`, and of the input itself."""
        reads = Policy("models", "spend", FINGERPRINT, None, None, 0, (Window("demo", "campaign_daily", days, own),))
        other = Policy("models", "other", FINGERPRINT, None, None, 0, (Window("demo", "clicks", days, own),))
        assets = [(customer, name) for customer in ("all", "1", "2") for name in ("spend", "other")]
        expected = [ExpectedRange("models", *asset, EXPECTED.first, EXPECTED.last) for asset in assets]
        expected += [replace(EXPECTED, customer_id=customer) for customer in ("1", "2")]
        nowhere: Any = None  # no event is read from the ledger
        current = Current(self._lake, nowhere, self._consumed, OWNER, Manifest(), self._facts)
        return Board(current, expected, [reads, other, policy()], self.now)

    def stale(self, *, own: bool = False, days: int = 2) -> list[PartitionKey]:
        return [s.key for s in self.board(own=own, days=days).page(STALE, after=None, limit=None)]


@pytest.fixture
def history(tmp_path: Path) -> EventHistory:
    return EventHistory(LocalLake(str(tmp_path)))


whose = pytest.mark.parametrize("own", [True, False], ids=["of its customer", "of all customers"])


def slice_of(day: int, *, own: bool, query: str = "spend") -> PartitionKey:
    return model(day, "1" if own else "all", query)


@whose
def test_a_slice_is_stale_when_more_can_be_read_in_its_window_than_went_into_it(
    history: EventHistory, own: bool
) -> None:
    inputs = history.load(key(2, "1"), key(3, "1"))
    history.accept(slice_of(3, own=own), *inputs)
    history.accept(slice_of(4, own=own), inputs[1])
    history.accept(slice_of(3, own=own, query="other"))
    history.load(key(1, "1"), key(5, "1"))  # in neither window
    history.later()
    added = history.accept(key(4, "1"))
    assert history.stale(own=own) == []  # it is not readable yet
    history.later()
    seen = history.now
    history.publish(added)
    history.later()
    [found] = history.board(own=own).page(STALE, after=None, limit=None)
    assert (found.key, found.stale_since) == (slice_of(4, own=own), seen)
    assert [str(reason) for reason in found.reasons] == ["UPSTREAM_CHANGED"]


@whose
def test_only_tables_and_customers_that_a_slice_reads_are_in_its_window(history: EventHistory, own: bool) -> None:
    history.accept(slice_of(3, own=own))
    history.accept(slice_of(3, own=own, query="other"))
    history.load(key(2, "1", "clicks_2"), key(2, "1", source="ads"), key(4, "1"), key(1, "1"))
    assert history.stale(own=own) == []
    history.load(key(2, "2"))
    assert history.stale(own=own) == ([] if own else [model(3)])
    history.load(key(2, "1", "clicks"))
    assert slice_of(3, own=own, query="other") in history.stale(own=own)


@whose
@pytest.mark.parametrize(("days", "stale"), [(1, []), (2, [3]), (3, [3, 4])])
def test_a_window_is_so_many_days_and_ends_with_the_day_itself(
    history: EventHistory, own: bool, days: int, stale: list[int]
) -> None:
    for day in (1, 3, 4):
        history.accept(slice_of(day, own=own))
    history.load(key(2, "1"))
    assert history.stale(own=own, days=days) == [slice_of(day, own=own) for day in stale]


@whose
def test_a_slice_is_stale_since_the_first_that_came_into_its_window(history: EventHistory, own: bool) -> None:
    history.accept(slice_of(3, own=own))
    history.later()
    first = history.now
    history.load(key(3, "1"))
    history.later()
    history.load(key(2, "1"))
    history.later()
    [found] = history.board(own=own).page(STALE, after=None, limit=None)
    assert found.stale_since == first


@whose
@pytest.mark.parametrize("gone", ["another run is trusted", "withdrawn", "hidden"])
def test_what_cannot_be_read_now_is_missing_from_no_slice(history: EventHistory, own: bool, gone: str) -> None:
    history.accept(slice_of(3, own=own), *history.load(key(3, "1")))
    history.load(key(2, "1"))
    assert history.stale(own=own) == [slice_of(3, own=own)]
    match gone:
        case "another run is trusted":
            history.accept(key(2, "1"))  # newer than the shown run
        case "withdrawn":
            history.demote(key(2, "1"))
        case "hidden":
            history.hide(key(2, "1"))
    assert history.stale(own=own) == []


@whose
def test_what_went_into_a_slice_is_what_went_into_its_trusted_run(history: EventHistory, own: bool) -> None:
    inputs = history.load(key(2, "1"), key(3, "1"))
    mine = slice_of(3, own=own)
    history.accept(mine, inputs[0])
    assert history.stale(own=own) == [mine]
    history.accept(mine, *inputs)
    assert history.stale(own=own) == []
    history.accept(mine, inputs[1])
    assert history.stale(own=own) == [mine]
    history.demote(mine)
    assert history.stale(own=own) == []


@whose
def test_what_went_into_one_slice_did_not_go_into_another(history: EventHistory, own: bool) -> None:
    [one] = history.load(key(3, "1"))
    history.accept(slice_of(3, own=own), one)
    history.accept(slice_of(4, own=own))
    assert history.stale(own=own) == [slice_of(4, own=own)]


@whose
def test_an_input_that_nobody_can_read_any_more_does_not_outweigh_one_that_came_later(
    history: EventHistory, own: bool
) -> None:
    """Another run of an input has the same rows and is not shown yet: it neither counts as read nor as readable."""
    [one] = history.load(key(3, "1"))
    history.accept(slice_of(3, own=own), one)
    history.accept(key(3, "1"), digest=one.content_digest)
    assert history.stale(own=own) == []
    history.load(key(2, "1"))
    assert history.stale(own=own) == [slice_of(3, own=own)]


def test_only_what_was_made_from_a_changed_input_is_stale(history: EventHistory) -> None:
    one, two = history.load(key(1, "1"), key(1, "2"))
    history.accept(model(1, "1"), one)
    history.accept(model(1, "2"), two)
    history.accept(model(2, "1"), two)
    history.accept(model(2, "1"), one)  # the trusted run was not derived from the other
    history.load(key(1, "2"), key(2, "1"), key(1, "1", "clicks"))
    assert history.stale(days=0) == [model(1, "2")]


@pytest.mark.parametrize("source", ["input never heard of", "input without a trusted run"])
def test_a_slice_whose_input_is_gone_is_stale(history: EventHistory, source: str) -> None:
    """After a recovery nothing may be known of an input."""
    lost = Consumed(key(1, "1"), new_run_id(), "lost")
    if source == "input without a trusted run":
        history.hide(key(1, "1"))
    history.accept(model(1, "1"), lost)
    assert history.stale(days=0) == [model(1, "1")]
    [found] = history.board(days=0).page(STALE, after=None, limit=None)
    assert found.stale_since == history.now


def test_a_fan_in_has_no_limit(harness: LedgerHarness) -> None:
    first = accept(harness, *range(6, 31))
    derive(harness, *(Consumed(key(day), first, f"content-{first}") for day in range(6, 31)))
    accept(harness, 30)
    assert reasons(board(harness)) == {5: ["UPSTREAM_CHANGED"]}


def test_a_sweep_writes_down_what_is_stale_and_fresh_data_clears_it(harness: LedgerHarness) -> None:
    accept(harness, 1, 2)
    late = board(harness, after=timedelta(days=3), max_lag=timedelta(hours=36))
    assert harness.projector.sweep(late.swept()) == 1
    rows = {row["partition_key"]: row for row in harness.tables()["partition_status"]}
    assert rows[str(key(2))]["stale_reason_code"] == "FRESHNESS_POLICY"
    assert rows[str(key(2))]["stale_since"] == NOW + timedelta(hours=36)
    assert rows[str(key(1))]["stale_reason_code"] is None
    reject(harness, 2)
    rows = {row["partition_key"]: row for row in harness.tables()["partition_status"]}
    assert rows[str(key(2))]["stale_reason_code"] == "FRESHNESS_POLICY"
    accept(harness, 2)
    rows = {row["partition_key"]: row for row in harness.tables()["partition_status"]}
    assert (rows[str(key(2))]["stale_reason_code"], rows[str(key(2))]["stale_since"]) == (None, None)
    harness.projector.advance()
    rows = {row["partition_key"]: row for row in harness.tables()["partition_status"]}
    assert rows[str(key(2))]["stale_reason_code"] is None


def test_inspect_and_why_show_what_the_board_shows(tmp_path: Path) -> None:
    """A rollback clears an earlier failure; a day that is late is stale in every view."""
    fields = [{"name": name, "type": "long"} for name in ("campaign_id", "clicks")]
    query = {"start_date": "2024-06-01", "fields": fields, "checks": [], "freshness": {"max_lag": "36h"}}
    folder = write_workspace(tmp_path, rows=1, query=query)
    actors = builders.Actors.on(open_at(folder, NOW).context.database)
    first = actors.accept(key(1))
    actors.accept(key(1))
    actors.reject(key(1))
    AuthorityStore(actors.database, actors.clock).rollback(key(1), first.run_id, builders.audit_entry())
    actors.accept(key(2))
    actors.reject(key(2))
    actors.accept(key(3))
    actors.accept(key(4))
    AuthorityStore(actors.database, actors.clock).demote(key(4), "wrong", builders.audit_entry())
    actors.accept(key(5))
    keys = [str(key(day)) for day in range(1, 7)]
    expected = ["materialized", "materialized_but_last_attempt_failed", "materialized", "unavailable", "stale"]
    expected.append("never_materialized")
    inspected = answer("state", "inspect", *keys, workspace=folder)["items"]
    assert [item["display_status"] for item in inspected] == expected
    board = open_at(folder, utc_now()).status.board(Selection(until=date(2024, 6, 6)))
    assert [str(standing.display) for standing in board.everything()] == expected
    assert [answer("why", one, workspace=folder)["display_status"] for one in (keys[0], keys[4])] == [
        "materialized", "stale",
    ]  # fmt: skip
