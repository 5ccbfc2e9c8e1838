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
def test_ids_are_found_in_any_order_and_with_repetition(batches: list[list[int]]) -> None:
    known = EventIds()
    for batch in batches:
        told(known, batch)
    asked = [0, *{position for batch in batches for position in batch}, 0]
    found = known.at(np.array(asked, np.int64)).to_pylist()
    assert found == [IDS[position] if position else None for position in asked]


def test_repeated_ids_take_no_more_memory() -> None:
    known, everything = EventIds(), list(range(1, 10_000))
    told(known, everything)
    before = pa.total_allocated_bytes()
    for _ in range(50):
        told(known, everything)
    size = len(everything) * 26
    assert pa.total_allocated_bytes() - before < 3 * size
