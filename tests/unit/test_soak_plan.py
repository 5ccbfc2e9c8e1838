"""The soak is repeatable: its sequence of actions depends on the seed alone, and no kind is left out."""

from __future__ import annotations

from itertools import islice

from bench.soak.plan import FAULTS, OPERATIONS, Action, actions


def first(seed: int, count: int) -> list[Action]:
    return list(islice(actions(seed), count))


def test_the_same_seed_gives_the_same_actions_and_another_seed_gives_others() -> None:
    assert first(7, 200) == first(7, 200)
    assert first(7, 200) != first(8, 200)


def test_every_round_has_each_kind_as_often_as_its_weight_says() -> None:
    weights = {**FAULTS, **OPERATIONS}
    one_round = sum(weights.values())
    kinds = [action.kind for action in first(7, 2 * one_round)]
    for half in (kinds[:one_round], kinds[one_round:]):
        assert {kind: half.count(kind) for kind in weights} == weights
