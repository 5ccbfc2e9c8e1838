"""The transitions of a partition: every combination of actor, act and status, and no other."""

from __future__ import annotations

from itertools import product

import pytest

from penstock.lifecycle import TRANSITIONS, Act, Actor, PartitionStatus, diagram

PENDING, SUCCESS, FAILED = PartitionStatus.PENDING, PartitionStatus.SUCCESS, PartitionStatus.FAILED

ALLOWED: dict[tuple[Actor, Act, PartitionStatus], PartitionStatus] = {
    (Actor.VALIDATOR, Act.ACCEPT, PENDING): SUCCESS,
    (Actor.VALIDATOR, Act.ACCEPT, FAILED): SUCCESS,
    (Actor.VALIDATOR, Act.ACCEPT, SUCCESS): SUCCESS,
    (Actor.VALIDATOR, Act.REJECT, PENDING): FAILED,
    (Actor.VALIDATOR, Act.REJECT, FAILED): FAILED,
    (Actor.VALIDATOR, Act.REJECT, SUCCESS): SUCCESS,
    (Actor.VALIDATOR, Act.RECHECK, SUCCESS): FAILED,
    (Actor.CONTROL, Act.REQUEUE, FAILED): PENDING,
    (Actor.OPERATOR, Act.DEMOTE, SUCCESS): FAILED,
    (Actor.OPERATOR, Act.ROLLBACK, PENDING): SUCCESS,
    (Actor.OPERATOR, Act.ROLLBACK, FAILED): SUCCESS,
    (Actor.OPERATOR, Act.ROLLBACK, SUCCESS): SUCCESS,
    (Actor.OPERATOR, Act.APPROVE, PENDING): SUCCESS,
    (Actor.OPERATOR, Act.APPROVE, FAILED): SUCCESS,
    (Actor.OPERATOR, Act.APPROVE, SUCCESS): SUCCESS,
}


def after(actor: Actor, act: Act, before: PartitionStatus) -> PartitionStatus | None:
    """Where the act leads from `before`; None if the table has no such move."""
    moves = {(move.actor, move.act, move.before): move.after for move in TRANSITIONS}
    return moves.get((actor, act, before))


@pytest.mark.parametrize(("actor", "act", "before"), list(product(Actor, Act, PartitionStatus)), ids=str)
def test_an_act_leads_where_the_table_says_or_nowhere(actor: Actor, act: Act, before: PartitionStatus) -> None:
    assert after(actor, act, before) == ALLOWED.get((actor, act, before))


def test_the_table_has_each_transition_once() -> None:
    assert len(TRANSITIONS) == len({(move.actor, move.act, move.before) for move in TRANSITIONS}) == len(ALLOWED)


def test_only_the_control_plane_makes_a_partition_pending_again() -> None:
    assert {(move.actor, move.before) for move in TRANSITIONS if move.after is PENDING} == {(Actor.CONTROL, FAILED)}


def test_a_rejected_attempt_never_takes_success_away() -> None:
    assert after(Actor.VALIDATOR, Act.REJECT, SUCCESS) is SUCCESS


def test_the_statuses_are_those_of_the_state_contract() -> None:
    assert [status.value for status in PartitionStatus] == ["pending", "success", "failed"]


def test_the_diagram_draws_every_move() -> None:
    lines = diagram().splitlines()
    assert lines[:2] == ["stateDiagram-v2", "    [*] --> pending"]
    assert lines[2:] == [f"    {m.before} --> {m.after}: {m.act} ({m.actor})" for m in TRANSITIONS]
