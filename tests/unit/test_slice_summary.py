"""Summaries of slices are the same however the rows are cut into batches."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.slice_summary import summariser

SCHEMA = pa.schema(
    [
        ("_item", pa.int32()), ("_line", pa.int32()), ("_header", pa.string()), ("_hash", pa.int64()),
        ("_broken0", pa.bool_()), ("a", pa.int64()), ("b", pa.string()), ("_figure0", pa.float64()),
    ]
)  # fmt: skip

rows = st.lists(
    st.tuples(
        st.integers(-(2**63), 2**63 - 1),
        st.booleans(),
        st.none() | st.integers(0, 2),
        st.none() | st.sampled_from("xy"),
    ),
    max_size=8,
)


def batches(slices: list[list[Any]], cuts: list[int]) -> list[pa.RecordBatch]:
    flat: list[dict[str, Any]] = []
    for item, found in enumerate(slices):
        flat += [
            {"_item": item, "_line": n, "_hash": h, "_broken0": bad, "a": a, "b": b, "_figure0": a}
            for n, (h, bad, a, b) in enumerate(found, start=1)
        ]
        flat.append({"_item": item, "_header": f"header {item}", "_hash": 0, "_broken0": False})
    edges = [0, *sorted(cut % (len(flat) + 1) for cut in cuts), len(flat)]
    pieces = [flat[low:high] for low, high in pairwise(edges) if low < high]
    return [pa.RecordBatch.from_pylist(piece, schema=SCHEMA) for piece in pieces]


@given(st.lists(rows, max_size=5), st.lists(st.integers(0, 60), max_size=5))
def test_summaries_do_not_depend_on_where_batches_are_cut(slices: list[list[Any]], cuts: list[int]) -> None:
    work = summariser(1, [("a",), ("a", "b")], 1)
    summaries = {row["item"]: row for batch in work(iter(batches(slices, cuts))) for row in batch.to_pylist()}
    assert set(summaries) == set(range(len(slices)))
    for item, found in enumerate(slices):
        summary = summaries[item]
        assert (summary["header"], summary["rows"]) == (f"header {item}", len(found))
        xor = 0
        for h, *_ in found:
            xor ^= h
        assert summary["hash_xor"] == xor
        assert summary["hash_sum"] % 2**64 == sum(h for h, *_ in found) % 2**64
        ones = Counter(a for _, _, a, _ in found if a is not None)
        pairs = Counter((a, b) for _, _, a, b in found if a is not None and b is not None)
        again = [sum(n - 1 for n in counts.values()) for counts in (ones, pairs)]
        assert summary["broken"] == [sum(bad for _, bad, _, _ in found), *again]
        if summary["broken"][0]:
            assert summary["first_lines"][0] == next(n for n, row in enumerate(found, start=1) if row[1])
        values = [a for _, _, a, _ in found if a is not None]
        ends = (min(values), max(values)) if values else (math.inf, -math.inf)
        assert summary["figures"] == [len(values), sum(values), *ends]
