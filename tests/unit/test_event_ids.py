"""The ids of events, kept by position."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.partition import new_ulids
from penstock.projections.ulids import EventIds

IDS = new_ulids(10_000)


def told(known: EventIds, positions: list[int]) -> None:
    known.add(positions, [IDS[position] for position in positions])


@given(st.lists(st.lists(st.integers(1, 40), max_size=10), max_size=8))
def test_in_whatever_order_and_however_often_they_are_told_they_are_found(batches: list[list[int]]) -> None:
    known = EventIds()
    for batch in batches:
        told(known, batch)
    asked = [0, *{position for batch in batches for position in batch}, 0]
    found = known.at(np.array(asked, np.int64)).to_pylist()
    assert found == [IDS[position] if position else None for position in asked]


def test_to_be_told_again_and_again_takes_no_more_room() -> None:
    known, everything = EventIds(), list(range(1, 10_000))
    told(known, everything)
    before = pa.total_allocated_bytes()
    for _ in range(50):
        told(known, everything)
    size = len(everything) * 26
    assert pa.total_allocated_bytes() - before < 3 * size
