"""The board: display status, flags, gaps and every reason for staleness, as of the moment of asking."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

import builders
from annals import Annals, attempt
from builders import FINGERPRINT, NOW, accepted, key, rejected
from cli import answer
from penstock.clock import utc_now
from penstock.control.select import Selection
from penstock.digests import versioned
from penstock.expected import ExpectedRange
from penstock.lifecycle import DisplayStatus
from penstock.partition import RunId
from penstock.projections.board import FAILED, STALE, Board
from penstock.projections.staleness import Policy
from penstock.state.authority import AuthorityStore
from penstock.state.inputs import InputStore
from penstock.state.records import Consumed
from workspaces import open_at, write_workspace

EXPECTED = ExpectedRange("demo", "1000000001", "campaign_daily", date(2024, 6, 1), date(2024, 6, 10), date(2024, 6, 30))


@pytest.fixture
def annals() -> Iterator[Annals]:
    with (
        builders.quick_folder() as folder,
        Annals.on(builders.open_database("sqlite", folder, str), folder) as found,
    ):
        yield found


def policy(**changes: Any) -> Policy:
    return replace(Policy("demo", "campaign_daily", FINGERPRINT, None, None, 0), **changes)


def board(
    annals: Annals, *, after: timedelta = timedelta(0), expected: ExpectedRange = EXPECTED, **changes: Any
) -> Board:
    return Board(annals.current(), [expected], [policy(**changes)], NOW + after)


def accept(annals: Annals, *days: int) -> RunId:
    run_id = annals.start(*days)
    annals.actors.validator.judge([accepted(attempt(run_id, day), annals.actors.token) for day in days])
    return run_id


def reject(annals: Annals, *days: int) -> None:
    run_id = annals.start(*days)
    annals.actors.validator.judge([rejected(attempt(run_id, day), annals.actors.token) for day in days])


def shown(found: Board) -> dict[int, str]:
    return {s.key.logical_date.day: str(s.display) for s in found.everything()}


def later(annals: Annals, hours: int = 1) -> None:
    annals.actors.clock.now += timedelta(hours=hours)


@pytest.mark.parametrize("folded", [True, False], ids=["from files", "from news"])
def test_every_display_status_is_shown(annals: Annals, folded: bool) -> None:
    accept(annals, 1, 2, 3)
    if folded:
        annals.projector.advance()
    later(annals)
    reject(annals, 2, 4)
    AuthorityStore(annals.actors.database, annals.actors.clock).demote(key(3), "wrong", builders.audit_entry())
    if folded:
        annals.projector.advance()
    found = board(annals)
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


def test_a_failure_is_newer_by_its_number_whatever_the_clocks_say(annals: Annals) -> None:
    annals.actors.clock.now += timedelta(minutes=2)  # the clock of the one who accepts is ahead
    accept(annals, 1)
    annals.actors.clock.now -= timedelta(minutes=2)
    reject(annals, 1)
    assert shown(board(annals))[1] == "materialized_but_last_attempt_failed"


def test_a_newer_success_ends_a_failure(annals: Annals) -> None:
    reject(annals, 1)
    later(annals)
    accept(annals, 1)
    assert shown(board(annals))[1] == "materialized"


@pytest.mark.parametrize("folded", [True, False], ids=["from files", "from news"])
def test_a_failure_is_shown_before_staleness_and_both_are_told(annals: Annals, folded: bool) -> None:
    accept(annals, 1, 2)
    later(annals, 2)
    reject(annals, 2)
    failed_at = annals.actors.clock.now
    if folded:
        annals.projector.advance()
    found = board(annals, after=timedelta(days=9), code_version="another", code_since=NOW)
    assert shown(found)[1] == "stale"
    assert shown(found)[2] == "materialized_but_last_attempt_failed"
    standing = next(s for s in found.everything() if s.key == key(2))
    assert [str(reason) for reason in standing.reasons] == ["CODE_CHANGED"]
    assert (standing.last_attempt_at, standing.last_materialization_at) == (failed_at, NOW)
    assert [s.key for s in found.page(FAILED, after=None, limit=None)] == [key(2)]
    assert [s.key for s in found.page(STALE, after=None, limit=None)] == [key(1), key(2)]


def test_gaps_are_ranges(annals: Annals) -> None:
    accept(annals, 3, 4, 7)
    gaps, total = board(annals).gaps(10)
    assert [(gap.first.day, gap.last.day) for gap in gaps] == [(1, 2), (5, 6), (8, 10)]
    assert total == 3
    assert len(board(annals).gaps(1)[0]) == 1


def test_pages_go_on_after_a_key(annals: Annals) -> None:
    found = board(annals)
    first = found.missing_page(after=None, limit=4)
    rest = found.missing_page(after=first[-1].key, limit=None)
    assert [s.key.logical_date.day for s in [*first, *rest]] == list(range(1, 11))


# --- staleness -------------------------------------------------------------------------------------------------------


def reasons(found: Board) -> dict[int, list[str]]:
    return {s.key.logical_date.day: [str(r) for r in s.reasons] for s in found.page(STALE, after=None, limit=None)}


def test_the_newest_slice_is_stale_when_it_is_older_than_the_policy_allows(annals: Annals) -> None:
    accept(annals, 1, 2)
    lag = timedelta(hours=36)
    assert reasons(board(annals, after=lag, max_lag=lag)) == {}
    past = board(annals, after=lag + timedelta(seconds=1), max_lag=lag)
    assert reasons(past) == {2: ["FRESHNESS_POLICY"]}
    [stale] = past.page(STALE, after=None, limit=None)
    assert (stale.display, stale.stale_since) == (DisplayStatus.STALE, NOW + lag)


def test_slices_that_their_source_may_still_change_are_stale_by_age_too(annals: Annals) -> None:
    accept(annals, 8, 9, 10)
    near = replace(EXPECTED, over=date(2024, 6, 10))
    found = board(annals, after=timedelta(days=2), expected=near, max_lag=timedelta(hours=36), restate_days=2)
    assert reasons(found) == {9: ["FRESHNESS_POLICY"], 10: ["FRESHNESS_POLICY"]}


def test_fresh_materialization_clears_staleness(annals: Annals) -> None:
    accept(annals, 1)
    late: dict[str, Any] = {"after": timedelta(hours=48), "max_lag": timedelta(hours=36)}
    assert reasons(board(annals, **late)) == {1: ["FRESHNESS_POLICY"]}
    later(annals, 24)
    accept(annals, 1)
    assert reasons(board(annals, **late)) == {}


def test_another_version_of_the_code_makes_what_it_made_stale(annals: Annals) -> None:
    accept(annals, 1, 2)
    found = board(annals, code_version="another", code_since=NOW - timedelta(days=1))
    assert reasons(found) == {1: ["CODE_CHANGED"], 2: ["CODE_CHANGED"]}
    assert found.stale_reasons() == {"FRESHNESS_POLICY": 0, "UPSTREAM_CHANGED": 0, "CODE_CHANGED": 2}


def test_the_same_definition_under_another_fingerprint_makes_nothing_stale(annals: Annals) -> None:
    accept(annals, 1, 2)
    assert reasons(board(annals, code_version="today", same_code=(FINGERPRINT,))) == {}
    assert reasons(board(annals, code_version="today", same_code=("x",))) == {1: ["CODE_CHANGED"], 2: ["CODE_CHANGED"]}


def derive(annals: Annals, *inputs: Consumed) -> None:
    run_id = annals.start(5)
    InputStore(annals.actors.database).record({attempt(run_id, 5): inputs})
    assert annals.actors.validator.judge([accepted(attempt(run_id, 5), annals.actors.token)]).applied


@pytest.mark.parametrize("folded", [True, False], ids=["from files", "from news"])
def test_a_derived_slice_is_stale_when_another_run_of_its_input_is_trusted(annals: Annals, folded: bool) -> None:
    first = accept(annals, 1, 2)
    derive(annals, *(Consumed(key(day), first, f"content-{first}") for day in (1, 2)))
    if folded:
        annals.projector.advance()
    assert reasons(board(annals)) == {}
    accept(annals, 2)
    if folded:
        annals.projector.advance()
    assert reasons(board(annals)) == {5: ["UPSTREAM_CHANGED"]}
    assert reasons(board(annals, code_version="x")) == {
        **{day: ["CODE_CHANGED"] for day in (1, 2)},
        5: ["UPSTREAM_CHANGED", "CODE_CHANGED"],
    }


def test_a_digest_of_an_earlier_release_is_compared_without_its_version(annals: Annals) -> None:
    first = accept(annals, 1)
    derive(annals, Consumed(key(1), first, "d1"))
    again = annals.start(1)
    same = replace(accepted(attempt(again, 1), annals.actors.token), content_digest=versioned("d1"))
    annals.actors.validator.judge([same])
    assert reasons(board(annals)) == {}


def test_an_input_with_the_same_rows_makes_nothing_stale(annals: Annals) -> None:
    first = accept(annals, 1)
    derive(annals, Consumed(key(1), first, f"content-{first}"))
    again = annals.start(1)
    same = replace(accepted(attempt(again, 1), annals.actors.token), content_digest=f"content-{first}")
    annals.actors.validator.judge([same])
    assert reasons(board(annals)) == {}


def test_an_input_that_was_withdrawn_makes_what_was_made_from_it_stale(annals: Annals) -> None:
    first = accept(annals, 1)
    derive(annals, Consumed(key(1), first, f"content-{first}"))
    AuthorityStore(annals.actors.database, annals.actors.clock).demote(key(1), "wrong", builders.audit_entry())
    assert reasons(board(annals)) == {5: ["UPSTREAM_CHANGED"]}


def test_a_derived_slice_is_stale_since_its_input_changed_and_not_before_it_was_made(annals: Annals) -> None:
    first = accept(annals, 1)
    later(annals, 24)
    derive(annals, Consumed(key(1), first, f"content-{first}"))
    later(annals, 24)
    withdrawn = annals.actors.clock.now
    AuthorityStore(annals.actors.database, annals.actors.clock).demote(key(1), "wrong", builders.audit_entry())
    [stale] = board(annals, after=timedelta(days=9)).page(STALE, after=None, limit=None)
    assert stale.stale_since == withdrawn
    older = board(annals, after=timedelta(days=9), code_version="x", code_since=NOW + timedelta(hours=30))
    [stale] = older.page(STALE, after=None, limit=None)
    assert (stale.key, stale.stale_since) == (key(5), NOW + timedelta(hours=30))


def test_a_fan_in_has_no_limit(annals: Annals) -> None:
    first = accept(annals, *range(6, 31))
    derive(annals, *(Consumed(key(day), first, f"content-{first}") for day in range(6, 31)))
    accept(annals, 30)
    assert reasons(board(annals)) == {5: ["UPSTREAM_CHANGED"]}


def test_a_sweep_writes_down_what_is_stale_and_fresh_data_clears_it(annals: Annals) -> None:
    accept(annals, 1, 2)
    late = board(annals, after=timedelta(days=3), max_lag=timedelta(hours=36))
    assert annals.projector.sweep(late.swept()) == 1
    rows = {row["partition_key"]: row for row in annals.tables()["partition_status"]}
    assert rows[str(key(2))]["stale_reason_code"] == "FRESHNESS_POLICY"
    assert rows[str(key(2))]["stale_since"] == NOW + timedelta(hours=36)
    assert rows[str(key(1))]["stale_reason_code"] is None
    reject(annals, 2)
    rows = {row["partition_key"]: row for row in annals.tables()["partition_status"]}
    assert rows[str(key(2))]["stale_reason_code"] == "FRESHNESS_POLICY"
    accept(annals, 2)
    rows = {row["partition_key"]: row for row in annals.tables()["partition_status"]}
    assert (rows[str(key(2))]["stale_reason_code"], rows[str(key(2))]["stale_since"]) == (None, None)
    annals.projector.advance()
    rows = {row["partition_key"]: row for row in annals.tables()["partition_status"]}
    assert rows[str(key(2))]["stale_reason_code"] is None


def test_inspect_and_why_show_what_the_board_shows(tmp_path: Path) -> None:
    """A failure before a rollback is settled by it; a day that is late is stale for everybody who asks."""
    fields = [{"name": name, "type": "long"} for name in ("campaign_id", "clicks")]
    query = {"start_date": "2024-06-01", "fields": fields, "checks": [], "freshness": {"max_lag": "36h"}}
    folder = write_workspace(tmp_path, rows=1, query=query)
    actors = builders.Actors.on(open_at(folder, NOW).database)
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
    board = open_at(folder, utc_now()).board(Selection(until=date(2024, 6, 6)))
    assert [str(standing.display) for standing in board.everything()] == expected
    assert [answer("why", one, workspace=folder)["display_status"] for one in (keys[0], keys[4])] == [
        "materialized", "stale",
    ]  # fmt: skip
