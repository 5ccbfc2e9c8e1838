"""Actions in two steps: what was previewed is applied, once, by the same actor; what changed in between is reported."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from penstock.app import Workspace
from penstock.control.action_kinds import OPTIONS, ActionKind, compact, expand
from penstock.control.ranges import intersect, ranges_of
from penstock.control.select import Selection
from penstock.db import schema
from penstock.errors import (
    AccessDenied,
    ActRefused,
    DatabaseUnavailable,
    PenstockError,
    PlanOutdated,
    StateConflict,
    UsageError,
)
from penstock.lifecycle import AttemptReason, PartitionStatus
from penstock.partition import PartitionKey, new_ulid
from penstock.state.action_plans import LIFETIME
from penstock.state.marks import MarkStore
from penstock.state.records import Breaker
from support import builders
from support.builders import NOW, Actors, SetClock, everything, key, rejected
from support.harness import FIELDS, Harness
from support.workspaces import customer_id, open_at, write_workspace
from support.workspaces import key as harness_key


@pytest.fixture(params=builders.BACKENDS)
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workspace]:
    state, name = "sqlite:///state.db", None
    if request.param == "postgresql":
        state, name = request.getfixturevalue("postgres_url"), f"t_{new_ulid().lower()}"
    query = {"start_date": "2024-06-01", "checks": [], "fields": FIELDS}
    opened = open_at(write_workspace(tmp_path, customers=2, query=query, state=state, schema=name), NOW)
    opened.context.clock = SetClock()
    yield opened
    opened.close()


@pytest.fixture
def actors(workspace: Workspace) -> Actors:
    """Days 1 to 3 of the first customer failed, day 4 is trusted."""
    made = Actors.on(workspace.context.database)
    for day in (1, 2, 3):
        reject(made, key(day))
    made.accept(key(4))
    return made


def reject(actors: Actors, partition: PartitionKey) -> None:
    """A verdict on an attempt that left raw data."""
    attempt = actors.issue_one(partition)
    verdict = rejected(attempt, actors.token, record_count=3, payload_digest="d")
    assert actors.validator.judge([verdict]).applied == [attempt]


def rows(workspace: Workspace, name: str) -> list[dict[str, Any]]:
    return everything(workspace.context.database, [schema.metadata.tables[name]])[name]


def apply(workspace: Workspace, token: str, actor: str = "kim") -> dict[str, Any]:
    worker = workspace.context.workers.register()
    result = workspace.actions.apply(token, actor=actor, worker_token=worker).result
    assert result is not None
    return dict(result)


def statuses(workspace: Workspace, *days: int) -> list[PartitionStatus]:
    found = workspace.partitions.views([key(day) for day in days])
    return [found[key(day)].state.status for day in days]


def test_a_retry_moves_exactly_what_was_previewed(workspace: Workspace, actors: Actors) -> None:
    plan, found = workspace.actions.preview("retry", Selection(), actor="kim", reason="fixed")
    assert (plan.total, list(found.keys)) == (3, [key(1), key(2), key(3)])
    assert statuses(workspace, 1, 2, 3) == ["failed"] * 3
    result = apply(workspace, plan.token)
    assert (result["affected"], result["changed"]) == (3, [])
    assert statuses(workspace, 1, 2, 3, 4) == ["pending"] * 3 + ["success"]
    [entry] = [row for row in rows(workspace, "audit") if row["command"] == "state retry"]
    assert (entry["actor"], entry["affected"], entry["flags"]) == ("kim", 3, {"reason": "fixed", "plan": plan.token})


def test_what_changed_since_the_preview_is_reported_and_not_applied(workspace: Workspace, actors: Actors) -> None:
    plan, _ = workspace.actions.preview("retry", Selection(), actor="kim")
    actors.clock.now = NOW + timedelta(minutes=1)
    actors.control.requeue([key(1)], builders.audit_entry())  # another operator was first
    actors.accept(key(2))  # a run succeeded
    reject(actors, key(5))  # a failure that nobody has seen
    workspace.context.clock = SetClock(NOW + timedelta(minutes=2))
    result = apply(workspace, plan.token)
    assert (result["affected"], result["changed_total"]) == (1, 2)
    assert result["changed"] == [str(key(1)), str(key(2))]
    assert statuses(workspace, 1, 2, 3, 5) == ["pending", "success", "pending", "failed"]


def test_a_partition_that_failed_again_since_the_preview_is_not_retried(workspace: Workspace, actors: Actors) -> None:
    plan, _ = workspace.actions.preview("retry", Selection(), actor="kim")
    actors.clock.now = NOW + timedelta(minutes=1)
    reject(actors, key(1))
    workspace.context.clock = SetClock(NOW + timedelta(minutes=2))
    result = apply(workspace, plan.token)
    assert (result["affected"], result["changed"]) == (2, [str(key(1))])
    assert statuses(workspace, 1, 2) == ["failed", "pending"]


def test_a_partition_that_was_refused_at_the_preview_is_not_retried_later(workspace: Workspace, actors: Actors) -> None:
    workspace.operations.mark_terminal([key(2)], actor="lee")
    plan, found = workspace.actions.preview("retry", Selection(), actor="kim")
    assert (found.total, found.refused) == (2, {"terminal": [key(2)]})
    workspace.operations.clear_terminal([key(2)], actor="lee")
    assert apply(workspace, plan.token)["affected"] == 2
    assert statuses(workspace, 1, 2, 3) == ["pending", "failed", "pending"]


def test_a_plan_is_applied_once_and_a_repeated_call_returns_the_first_result(
    workspace: Workspace, actors: Actors
) -> None:
    plan, _ = workspace.actions.preview("retry", Selection(keys=(key(1),)), actor="kim")
    first = apply(workspace, plan.token)
    actors.clock.now = NOW + timedelta(minutes=1)
    reject(actors, key(1))
    assert apply(workspace, plan.token) == first
    assert statuses(workspace, 1) == ["failed"]


def test_a_plan_belongs_to_its_actor_and_expires(workspace: Workspace, actors: Actors) -> None:
    plan, _ = workspace.actions.preview("retry", Selection(), actor="kim")
    with pytest.raises(AccessDenied, match="was made by kim"):
        apply(workspace, plan.token, "lee")
    workspace.context.clock = SetClock(NOW + LIFETIME)
    with pytest.raises(PlanOutdated, match="expired"):
        apply(workspace, plan.token)
    with pytest.raises(UsageError, match="there is no plan"):
        apply(workspace, new_ulid())
    assert statuses(workspace, 1, 2, 3) == ["failed"] * 3


def test_plans_that_ended_a_day_ago_are_deleted(workspace: Workspace, actors: Actors) -> None:
    workspace.actions.preview("retry", Selection(), actor="kim")
    workspace.context.clock = SetClock(NOW + LIFETIME + timedelta(days=1))
    plan, _ = workspace.actions.preview("retry", Selection(), actor="kim")
    assert [row["token"] for row in rows(workspace, "action_plan")] == [plan.token]


def test_two_calls_at_the_same_time_apply_a_plan_once(workspace: Workspace, actors: Actors) -> None:
    plan, _ = workspace.actions.preview("retry", Selection(), actor="kim")
    outcomes: list[str] = []
    barrier = Barrier(2)

    def call() -> None:
        other = Workspace(workspace.settings, SetClock())  # another instance of the server
        worker = other.context.workers.register()
        barrier.wait(30)
        try:
            result = other.actions.apply(plan.token, actor="kim", worker_token=worker).result
            outcomes.append(f"affected {result['affected']}" if result else "nothing")
        except StateConflict:
            outcomes.append("in progress")
        finally:
            other.close()

    threads = [Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "affected 3" in outcomes
    assert set(outcomes) <= {"affected 3", "in progress"}
    assert len([row for row in rows(workspace, "audit") if row["command"] == "state retry"]) == 1


def test_a_plan_whose_process_died_can_be_applied_again_and_nothing_is_done_twice(
    workspace: Workspace, actors: Actors
) -> None:
    plan, _ = workspace.actions.preview("retry", Selection(), actor="kim")
    dead = workspace.context.workers.register()
    workspace.context.action_plans.claim(plan.token, "kim", dead)
    with pytest.raises(StateConflict, match="is being applied"):
        apply(workspace, plan.token)
    actors.control.requeue([key(1)], builders.audit_entry())  # as far as it came
    actors.expire(dead)
    workspace.context.clock = SetClock(NOW + LIFETIME)  # a plan that was begun does not expire
    result = apply(workspace, plan.token)
    assert (result["affected"], result["changed"]) == (2, [])


def test_terminal_marks_are_set_and_cleared_by_plans(workspace: Workspace, actors: Actors) -> None:
    plan, found = workspace.actions.preview("mark-terminal", Selection(), actor="kim", reason="closed")
    assert found.total == 3
    workspace.operations.mark_terminal([key(2)], actor="lee")
    assert apply(workspace, plan.token)["changed"] == [str(key(2))]
    _, refused = workspace.actions.preview("retry", Selection(), actor="kim")
    assert (refused.total, refused.refusals) == (0, {"terminal": 3})
    plan, _ = workspace.actions.preview("clear-terminal", Selection(keys=(key(1), key(2))), actor="kim")
    assert apply(workspace, plan.token)["affected"] == 2
    assert workspace.actions.preview("retry", Selection(), actor="kim")[0].total == 2


def test_a_plan_of_an_interrupted_call_says_so_and_blames_nobody(workspace: Workspace, actors: Actors) -> None:
    plan, _ = workspace.actions.preview("retry", Selection(), actor="kim")
    dead = workspace.context.workers.register()
    workspace.context.action_plans.claim(plan.token, "kim", dead)
    actors.control.requeue([key(1), key(2)], builders.audit_entry())  # a part of the plan; then the process dies
    actors.expire(dead)
    result = apply(workspace, plan.token)
    assert (result["affected"], result["changed_total"], result["changed"]) == (1, 0, [])
    assert "an earlier call was interrupted" in result["note"]
    assert "penstock audit list" in result["note"]


def test_an_interrupted_change_of_one_partition_says_so(workspace: Workspace, actors: Actors) -> None:
    chosen = Selection(keys=(key(4),))
    plan, _ = workspace.actions.preview("demote", chosen, actor="kim", reason="wrong")
    dead = workspace.context.workers.register()
    workspace.context.action_plans.claim(plan.token, "kim", dead)
    workspace.operations.demote(key(4), reason="wrong", actor="kim")  # the process dies before it records the result
    actors.expire(dead)
    with pytest.raises((PlanOutdated, ActRefused), match="interrupted"):
        apply(workspace, plan.token)


@pytest.mark.parametrize(
    ("error", "is_interrupted"), [(DatabaseUnavailable("it did not respond"), True), (ActRefused("no"), False)]
)
def test_a_plan_whose_call_failed_can_be_applied_by_another_server(
    workspace: Workspace,
    actors: Actors,
    monkeypatch: pytest.MonkeyPatch,
    error: PenstockError,
    is_interrupted: bool,
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    plan, _ = workspace.actions.preview("retry", Selection(), actor="kim")
    with monkeypatch.context() as patch:
        patch.setattr(type(workspace.operations), "retry_keys", fail)
        with pytest.raises(type(error)):
            apply(workspace, plan.token)
    result = apply(workspace, plan.token)
    assert (result["affected"], result["note"] is not None) == (3, is_interrupted)


def test_a_pause_is_refused_if_it_would_pause_more_than_was_previewed(workspace: Workspace, actors: Actors) -> None:
    chosen = Selection(customers="1000000001")
    workspace.operations.pause(Selection(keys=(key(7),)), actor="lee")
    plan, found = workspace.actions.preview("pause", chosen, actor="kim", reason="moved")
    assert found.total == 29
    workspace.operations.resume(Selection(keys=(key(7),)), actor="lee")
    with pytest.raises(PlanOutdated, match=r"1 partition matches now that did not match .*2024-06-07"):
        apply(workspace, plan.token)
    workspace.operations.pause(Selection(keys=(key(7), key(8))), actor="lee")
    result = apply(workspace, plan.token)  # the refusal released the plan
    assert (result["affected"], result["changed"]) == (28, [str(key(8))])
    plan, found = workspace.actions.preview("resume", chosen, actor="kim")
    assert found.total == 30
    assert apply(workspace, plan.token)["affected"] == 30


def test_an_authority_that_changed_since_the_preview_is_not_demoted(workspace: Workspace, actors: Actors) -> None:
    chosen = Selection(keys=(key(4),))
    plan, found = workspace.actions.preview("demote", chosen, actor="kim", reason="wrong currency")
    assert (found.total, found.facts["authority_version"]) == (1, 1)
    actors.accept(key(4))
    with pytest.raises(PlanOutdated):
        apply(workspace, plan.token)
    assert statuses(workspace, 4) == ["success"]
    plan, _ = workspace.actions.preview("demote", chosen, actor="kim", reason="wrong currency")
    assert apply(workspace, plan.token)["affected"] == 1
    assert statuses(workspace, 4) == ["failed"]
    with pytest.raises(PlanOutdated, match="its authority changed"):  # the last check is in the transaction
        workspace.operations.demote(key(4), reason="again", expected_version=1)


def test_a_backfill_of_a_plan_is_created_once(workspace: Workspace, actors: Actors) -> None:
    chosen = Selection(customers="1000000002", until="2024-06-10")
    plan, found = workspace.actions.preview("backfill", chosen, {"chunk_size": 5}, actor="kim")
    assert found.total == 10
    dead = workspace.context.workers.register()
    workspace.context.action_plans.claim(plan.token, "kim", dead)
    workspace.actions._apply(plan)  # the process dies before it records the result
    actors.expire(dead)
    result = apply(workspace, plan.token)
    assert result["backfill_id"] == plan.token
    [made] = workspace.backfills.all()
    assert (made.backfill_id, made.total, made.chunk_size, made.created_by) == (plan.token, 10, 5, "kim")
    for act, status in (("pause", "paused"), ("resume", "active"), ("cancel", "cancelled")):
        plan, _ = workspace.actions.preview(f"backfill-{act}", options={"backfill_id": made.backfill_id}, actor="kim")
        assert apply(workspace, plan.token)["affected"] == 1
        assert workspace.backfills.get(made.backfill_id).status == status


def test_a_plan_for_a_backfill_that_was_changed_by_another_is_refused(workspace: Workspace, actors: Actors) -> None:
    new = workspace.backfills.plan(Selection(customers="1000000002"), actor="kim")
    workspace.backfills.create(new, Selection(customers="1000000002"))
    plan, _ = workspace.actions.preview("backfill-pause", options={"backfill_id": new.backfill_id}, actor="kim")
    workspace.backfills.cancel(new.backfill_id, actor="lee")
    with pytest.raises(ActRefused):
        apply(workspace, plan.token)
    assert workspace.backfills.get(new.backfill_id).status == "cancelled"


def test_work_that_needs_spark_becomes_one_order(workspace: Workspace, actors: Actors) -> None:
    plan, found = workspace.actions.preview("run", Selection(customers="1000000002"), actor="kim", reason="go")
    assert (found.total, found.facts["reasons"]) == (30, {"missing": 30})
    for _ in range(2):
        assert apply(workspace, plan.token)["order_id"] == plan.token
    plan, found = workspace.actions.preview("run", Selection(keys=(key(4),)), {"reprocess": True}, actor="kim")
    assert found.total == 1
    apply(workspace, plan.token)
    for act in ("validate", "reconcile", "compact"):
        apply(workspace, workspace.actions.preview(act, actor="kim")[0].token)
    made = [(row["kind"], row["options"], row["actor"]) for row in rows(workspace, "run_order")]
    assert sorted(made, key=repr) == sorted(
        [
            ("run", {}, "kim"),
            ("run", {"reprocess": True}, "kim"),
            ("validate", {}, "kim"),
            ("reconcile", {}, "kim"),
            ("compact", {}, "kim"),
        ],
        key=repr,
    )


def test_a_retry_of_other_failures_of_a_backfill_than_the_previewed_ones_is_refused(
    workspace: Workspace, actors: Actors
) -> None:
    chosen = Selection(customers="1000000001")
    new = workspace.backfills.plan(chosen, actor="kim")
    workspace.backfills.create(new, chosen)

    def reject_in_backfill(day: int) -> None:
        [planned] = actors.plan(key(day))
        wanted = replace(planned, reason=AttemptReason.BACKFILL, backfill_id=new.backfill_id)
        [issued], _ = actors.try_to_issue(wanted)
        verdict = rejected(issued.attempt, actors.token, record_count=3, payload_digest="d")
        assert actors.validator.judge([verdict]).applied

    for day in (5, 6):
        reject_in_backfill(day)
    plan, found = workspace.actions.preview(
        "backfill-retry-failed", options={"backfill_id": new.backfill_id}, actor="kim"
    )
    assert list(found.keys) == [key(5), key(6)]
    actors.accept(key(5))
    reject_in_backfill(7)  # as many as before, but others
    with pytest.raises(PlanOutdated, match="changed since the preview"):
        apply(workspace, plan.token)
    assert statuses(workspace, 6, 7) == ["failed", "failed"]
    plan, _ = workspace.actions.preview("backfill-retry-failed", options={"backfill_id": new.backfill_id}, actor="kim")
    assert apply(workspace, plan.token)["affected"] == 2


@pytest.mark.parametrize(("act", "options"), [("validate", {}), ("run", {"reprocess": True})])
def test_an_order_for_trusted_partitions_is_refused_if_others_match_now(
    workspace: Workspace, actors: Actors, act: str, options: dict[str, Any]
) -> None:
    chosen = Selection(customers="1000000001", until="2024-06-05")
    actors.accept(key(5))
    plan, _ = workspace.actions.preview(act, chosen, options, actor="kim")
    workspace.operations.demote(key(5), reason="wrong", actor="lee")
    actors.accept(key(1))  # as many as before, but others
    with pytest.raises(PlanOutdated, match="changed since the preview"):
        apply(workspace, plan.token)
    assert rows(workspace, "run_order") == []
    plan, _ = workspace.actions.preview(act, chosen, options, actor="kim")
    assert apply(workspace, plan.token)["order_id"] == plan.token


def test_an_order_for_trusted_partitions_keeps_the_previewed_ones(workspace: Workspace, actors: Actors) -> None:
    plan, found = workspace.actions.preview("validate", Selection(), actor="kim")
    assert (found.total, list(found.keys)) == (1, [key(4)])
    apply(workspace, plan.token)
    for day in (5, 6):
        actors.accept(key(day))
    stored = workspace.orders.get(plan.token).partitions
    assert stored == {"demo.campaign_daily": {"1000000001": "2024-06-04"}}
    now = [attempt.partition for attempt, _ in workspace.rechecks.candidates(Selection())]
    assert now == [key(4), key(5), key(6)]
    kept = workspace.rechecks.candidates(Selection(), expand(stored))
    assert [attempt.partition for attempt, _ in kept] == [key(4)]
    assert workspace.rechecks.candidates(Selection(keys=(key(5),)), expand(stored)) == []


@pytest.mark.parametrize("act", ["run", "reconcile", "compact"])
def test_a_standing_instruction_keeps_no_partitions(workspace: Workspace, actors: Actors, act: str) -> None:
    plan, _ = workspace.actions.preview(act, actor="kim")
    apply(workspace, plan.token)
    assert workspace.orders.get(plan.token).partitions is None


def test_a_reprocessing_plan_notices_a_change_beyond_the_listed_partitions(tmp_path: Path) -> None:
    """As many partitions as before, but others, and only the first 100 are listed."""
    query = {"start_date": "2024-06-01", "checks": [], "fields": FIELDS}
    workspace = open_at(write_workspace(tmp_path, customers=6, query=query), NOW)
    made, last = Actors.on(workspace.context.database), customer_id(6)
    reject(made, key(29, customer=last))
    made.accept(key(30, customer=last))
    plan, found = workspace.actions.preview("run", Selection(), {"reprocess": True}, actor="kim")
    assert (found.total, len(found.keys)) == (179, 100)
    workspace.operations.demote(key(30, customer=last), reason="wrong", actor="lee")
    made.accept(key(29, customer=last))
    with pytest.raises(PlanOutdated, match="changed since the preview"):
        apply(workspace, plan.token)
    assert rows(workspace, "run_order") == []
    workspace.close()


@pytest.mark.parametrize("act", ["reconcile", "compact", "resume-run"])
def test_an_order_that_takes_no_selection_refuses_one(workspace: Workspace, act: str) -> None:
    options = {"run_id": new_ulid()} if act == "resume-run" else {}
    with pytest.raises(UsageError, match=f"{act} takes no selection"):
        workspace.actions.preview(act, Selection(customers="1000000001"), options, actor="kim")


def test_a_breaker_that_opened_again_since_the_preview_is_not_closed(workspace: Workspace, actors: Actors) -> None:
    def open_at_minute(minute: int) -> None:
        since = NOW + timedelta(minutes=minute)
        opened = Breaker("demo", opened_at=since, probe_at=since, error_class="auth", error_message="denied")
        workspace.context.breakers.change("demo", lambda _: opened)

    open_at_minute(0)
    plan, found = workspace.actions.preview("close-breaker", options={"source": "demo"}, actor="kim")
    assert found.total == 1
    workspace.operations.close_breaker("demo", actor="lee")
    open_at_minute(5)
    with pytest.raises(PlanOutdated, match="changed since the preview"):
        apply(workspace, plan.token)
    assert workspace.context.breakers.get("demo").opened_at is not None
    plan, _ = workspace.actions.preview("close-breaker", options={"source": "demo"}, actor="kim")
    assert apply(workspace, plan.token)["affected"] == 1


def test_many_terminal_marks_are_set_and_cleared_in_pages(
    workspace: Workspace, actors: Actors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.app.operations.MOVED", 2)
    sizes, act = list[int](), MarkStore._act

    def counting(self: MarkStore, text: str, keys: Sequence[PartitionKey], *given: Any, **options: Any) -> int:
        sizes.append(len(keys))
        return act(self, text, keys, *given, **options)

    monkeypatch.setattr(MarkStore, "_act", counting)
    for kind in ("mark-terminal", "clear-terminal"):
        plan, found = workspace.actions.preview(kind, Selection(), actor="kim", reason="closed")
        assert found.total == 3
        assert apply(workspace, plan.token)["affected"] == 3
    assert sizes == [2, 1, 2, 1]
    lines = [(row["command"], row["affected"], row["outcome"]) for row in rows(workspace, "audit")]
    for command in ("state mark-terminal", "state clear-terminal"):
        assert [line for line in lines if line[0] == command] == [(command, 3, "begun"), (command, 3, "done")]


def test_an_order_that_an_interrupted_call_stored_is_the_result_of_its_plan(
    workspace: Workspace, actors: Actors
) -> None:
    plan, _ = workspace.actions.preview("validate", Selection(), actor="kim")
    dead = workspace.context.workers.register()
    workspace.context.action_plans.claim(plan.token, "kim", dead)
    workspace.orders.create("validate", Selection(), actor="kim", order_id=plan.token)
    actors.accept(key(6))
    actors.expire(dead)
    assert apply(workspace, plan.token)["order_id"] == plan.token


def test_a_partition_that_was_attempted_since_the_preview_is_not_marked(workspace: Workspace, actors: Actors) -> None:
    plan, found = workspace.actions.preview("mark-terminal", Selection(), actor="kim", reason="closed")
    assert found.total == 3
    actors.clock.now = NOW + timedelta(minutes=1)
    reject(actors, key(2))
    workspace.context.clock = SetClock(NOW + timedelta(minutes=2))
    result = apply(workspace, plan.token)
    assert (result["affected"], result["changed"]) == (2, [str(key(2))])


def test_a_breaker_is_closed_and_a_run_cancelled_by_plans(workspace: Workspace, actors: Actors) -> None:
    plan, found = workspace.actions.preview("close-breaker", options={"source": "demo"}, actor="kim")
    assert found.total == 0
    assert apply(workspace, plan.token)["affected"] == 0
    [run] = {str(attempt.run_id) for attempt in workspace.context.state.attempts(key(4))}
    with pytest.raises(UsageError, match="there is no run"):
        workspace.actions.preview("cancel-run", options={"run_id": run}, actor="kim")
    workspace.context.control.start_run(run := new_ulid(), actors.token, "kim", {}, 0)  # type: ignore[arg-type]
    plan, found = workspace.actions.preview("cancel-run", options={"run_id": run}, actor="kim")
    assert found.total == 1
    assert apply(workspace, plan.token)["affected"] == 1


def test_a_preview_changes_nothing_but_its_plan(workspace: Workspace, actors: Actors) -> None:
    before = everything(workspace.context.database)
    for act in ("retry", "mark-terminal", "clear-terminal", "pause", "resume", "run", "validate", "reconcile"):
        workspace.actions.preview(act, actor="kim")
    after = everything(workspace.context.database)
    assert {name for name in before if before[name] != after[name]} == {"action_plan"}


@pytest.mark.parametrize("kind", ActionKind)
def test_every_action_refuses_unknown_options_and_names(workspace: Workspace, kind: ActionKind) -> None:
    with pytest.raises(UsageError, match="takes no colour"):
        workspace.actions.preview(kind, options={"colour": "red"}, actor="kim")
    chosen = Selection(keys=(key(4, customer="7"),), status=None)
    ids = {"run_id": new_ulid(), "backfill_id": new_ulid(), "source": "nothing", "tables": ["demo.nothing"]}
    options = {name: ids[name] for name in OPTIONS.get(kind, ()) if name in ids}
    if kind is not ActionKind.RECONCILE:
        with pytest.raises(PenstockError):
            workspace.actions.preview(kind, chosen, options, actor="kim", reason="because")
    assert rows(workspace, "action_plan") == [] or kind is ActionKind.RECONCILE


def test_actions_that_need_a_reason_a_key_or_an_id_say_so(workspace: Workspace) -> None:
    one = Selection(keys=(key(4),))
    for act, chosen, message in (
        ("demote", one, "needs a reason"),
        ("demote", Selection(), "needs a reason"),
        ("rollback", one, "needs run_id"),
        ("backfill-pause", Selection(), "needs backfill_id"),
        ("close-breaker", Selection(), "needs source"),
    ):
        with pytest.raises(UsageError, match=message):
            workspace.actions.preview(act, chosen, actor="kim")
    with pytest.raises(UsageError, match="changes one partition"):
        workspace.actions.preview("demote", Selection(), actor="kim", reason="x")
    with pytest.raises(UsageError, match="the reason is empty"):
        workspace.actions.preview("retry", actor="kim", reason=" ")


def test_an_older_run_is_trusted_again_by_a_plan(tmp_path: Path) -> None:
    made = Harness(tmp_path)
    workspace, one = made.workspace, harness_key(1)
    older = made.deliver({one: 1})
    newer = made.deliver({one: 2})
    made.publish()
    chosen = Selection(keys=(one,))
    with pytest.raises(ActRefused):
        workspace.actions.preview("approve", chosen, {"run_id": older}, actor="kim", reason="fine")
    plan, found = workspace.actions.preview("rollback", chosen, {"run_id": older}, actor="kim", reason="wrong")
    assert (found.total, found.facts["current_run_id"]) == (1, newer)
    assert apply(workspace, plan.token)["affected"] == 1
    state = workspace.context.state.state(one)
    assert state is not None
    assert state.current_run_id == older
    workspace.close()


def test_a_million_keys_become_ranges_without_a_list_of_them() -> None:
    first = key(1).logical_date
    keys = (
        PartitionKey("demo", customer_id(number), "campaign_daily", first + timedelta(days=day))
        for number in range(200)
        for day in range(1000)
    )
    tracemalloc.start()
    found = ranges_of(keys)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(found), sum(len(span) for span in found)) == (200, 200_000)
    assert peak < 2_000_000  # a list of the keys has 40 MB


def test_ranges_intersect_by_customer_query_and_day() -> None:
    whole = ranges_of([key(day) for day in range(1, 11)])
    others = ranges_of([key(2), key(3), key(9), key(10), key(11), key(4, customer="other")])
    assert compact(intersect(whole, others)) == {
        "demo.campaign_daily": {"1000000001": "2024-06-02..2024-06-03 2024-06-09..2024-06-10"}
    }
    assert intersect(whole, []) == []


def test_ranges_are_stored_and_read_without_loss() -> None:
    keys = [key(1), key(2), key(4), key(1, customer="b"), PartitionKey("models", "all", "spend", key(3).logical_date)]
    found = ranges_of(keys)
    assert sum(len(span) for span in found) == 5
    assert expand(compact(found)) == found
    assert compact(found)["demo.campaign_daily"]["1000000001"] == "2024-06-01..2024-06-02 2024-06-04"
