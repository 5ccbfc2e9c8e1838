"""Merging the partition status in pieces gives the same rows as merging at once, in the same order."""

from __future__ import annotations

import tempfile
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.lake import open_lake
from penstock.projections import files, status_merge
from penstock.projections.status import PARTIAL, joined
from penstock.projections.status_columns import ORDER
from penstock.projections.status_file import FILE, MARKS, marked, marks

OWNER = ("acme", "ads")
KEY = ("source", "customer_id", "query_name", "logical_date")
NOW = datetime(2024, 6, 1, tzinfo=UTC)

KEYS = st.tuples(
    st.sampled_from(["ads", "demo"]),
    st.sampled_from(["1", "10", "2", "A", "a.b", "a-b"]),
    st.sampled_from(["daily", "daily_2"]),
    st.integers(0, 3).map(lambda day: date(2024, 6, 1) + timedelta(days=day)),
)
SAID = st.tuples(KEYS, st.integers(1, 3), st.integers(1, 1000))
FULL = [(("demo", "1", "daily", date(2024, 6, 1) + timedelta(days=day)), 1, day + 1) for day in range(12)]
MARKED = st.dictionaries(
    st.tuples(KEYS, st.integers(1, 3)), st.sampled_from(["OLD_CODE", "FRESHNESS_POLICY"]), max_size=8
)


def partial(said: list[tuple[Any, int, int]]) -> pa.Table:
    rows = [
        {
            **dict(zip(KEY, key, strict=True)),
            "materialized_version": version,
            "last_materialization_run_id": f"R{version}",
            "materialized_position": version,
            "row_position": position,
            "row_version": f"E{position:04}",
        }
        for key, version, position in said
    ]
    return joined(pa.Table.from_pylist(rows, schema=PARTIAL))


def stale_table(found: dict[tuple[Any, int], str]) -> pa.Table:
    types = [*(PARTIAL.field(name) for name in KEY), *(FILE.field(name) for name in MARKS)]
    rows = [
        {
            **dict(zip(KEY, key, strict=True)),
            "materialized_version": version,
            "stale_since": NOW,
            "stale_reason_code": why,
        }
        for (key, version), why in found.items()
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema(types))


@settings(deadline=None, max_examples=80)
@given(
    base=st.none() | st.tuples(st.lists(SAID, max_size=25), MARKED),
    news=st.lists(SAID, max_size=12),
    stale=st.none() | MARKED,
    group=st.integers(1, 8),
    stretch=st.integers(1, 5),
)
@example(base=(FULL, {}), news=FULL[3:9], stale=None, group=5, stretch=3)
@example(base=(FULL[::2], {}), news=FULL[1::2], stale={}, group=4, stretch=2)
def test_merging_in_pieces_equals_merging_at_once(
    base: tuple[list[Any], dict[Any, str]] | None,
    news: list[Any],
    stale: dict[Any, str] | None,
    group: int,
    stretch: int,
) -> None:
    small = pytest.MonkeyPatch()
    with tempfile.TemporaryDirectory() as folder, small.context() as patch:
        patch.setattr(files, "_ROW_GROUP", group)
        patch.setattr(status_merge, "PIECE_ROWS", stretch)
        lake = open_lake(folder)
        old = None if base is None else marked(partial(base[0]), stale_table(base[1]), OWNER)
        path = None if old is None else "base.parquet"
        if old is not None:
            files.write_pieces(lake, "base.parquet", FILE, [old.slice(at, 1) for at in range(len(old))])
        to_mark = None if stale is None else stale_table(stale)
        pieces = list(status_merge.merged(lake, path, partial(news), OWNER, to_mark))
        assert len(pieces) >= (0 if old is None else -(-len(old) // max(group, stretch)))
        files.write_pieces(lake, "new.parquet", FILE, pieces)
        found = files.read(lake, "new.parquet")

    before = PARTIAL.empty_table() if old is None else old.select(PARTIAL.names)
    kept = marks(FILE.empty_table() if old is None else old)
    expected = marked(joined(pa.concat_tables([before, partial(news)])), kept if to_mark is None else to_mark, OWNER)
    assert found.to_pylist() == expected.to_pylist()
    assert (
        found.select(PARTIAL.names)
        .sort_by([(name, "ascending") for name in ORDER.split(", ")])
        .equals(found.select(PARTIAL.names))
    )
