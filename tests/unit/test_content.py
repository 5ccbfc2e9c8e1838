"""The content digest is made of row hashes: equal rows, equal hashes, on every machine and in every release."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.config.checks import Field
from penstock.contract.content import FirstContent, content_digest, row_hashes
from penstock.contract.schema import arrow_schema
from penstock.contract.spark_hash import nullable_row_hashes
from penstock.digests import comparable

KINDS = (
    "long", "double", "string", "boolean", "date", "timestamp", "decimal(10,2)", "array<long>",
    "array<struct<a: string, b: array<double>>>", "struct<x: long, y: array<array<boolean>>>",
)  # fmt: skip
SCHEMA = arrow_schema([Field(name=f"f{number}", type=kind) for number, kind in enumerate(KINDS)])

rows = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.floats(allow_nan=False).map(lambda value: value + 0.0),
    st.none() | st.text(max_size=5),
    st.none() | st.booleans(),
    st.none() | st.dates(),
    st.none() | st.datetimes().map(lambda moment: moment.replace(year=2024)),
    st.none() | st.decimals(-1000, 1000, places=2),
    st.none() | st.lists(st.none() | st.integers(0, 2), max_size=3),
    st.none()
    | st.lists(
        st.none()
        | st.fixed_dictionaries(
            {"a": st.none() | st.sampled_from("xy"), "b": st.none() | st.lists(st.sampled_from([0.0, 1.0]), max_size=2)}
        ),
        max_size=2,
    ),
    st.none()
    | st.fixed_dictionaries(
        {
            "x": st.none() | st.integers(0, 1),
            "y": st.none() | st.lists(st.none() | st.lists(st.booleans(), max_size=2), max_size=2),
        }
    ),
)


def hashes(found: list[tuple[Any, ...]]) -> list[int]:
    values: list[int] = row_hashes(pa.table(list(zip(*found, strict=True)), schema=SCHEMA)).tolist()
    return values


@settings(deadline=None)
@given(st.lists(rows, min_size=2, max_size=8))
def test_hashes_are_equal_exactly_where_rows_are(found: list[tuple[Any, ...]]) -> None:
    made = hashes(found)
    assert [one == two for one in made for two in made] == [one == two for one in found for two in found]


@settings(deadline=None)
@given(st.lists(rows, min_size=1, max_size=8))
def test_a_hash_depends_on_its_row_alone(found: list[tuple[Any, ...]]) -> None:
    assert hashes(found) == [hashes([row])[0] for row in found]


@settings(deadline=None)
@given(st.lists(rows, min_size=2, max_size=8), st.data())
def test_a_slice_of_a_table_has_the_hashes_of_its_rows(found: list[tuple[Any, ...]], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(found) - 1))
    table = pa.table(list(zip(*found, strict=True)), schema=SCHEMA)
    assert row_hashes(table.slice(start)).tolist() == hashes(found)[start:]


def test_minus_zero_is_zero_and_null_is_not() -> None:
    table = pa.table({"f": [0.0, -0.0, None]})
    zero, minus, null = row_hashes(table).tolist()
    assert zero == minus != null


def test_hashes_stay_what_they_are() -> None:
    """Digests in state databases use these: a change here makes every partition look changed once."""
    table = pa.table({"a": [1, None], "b": ["x", "y"], "c": [0.5, None]})
    assert row_hashes(table).tolist() == [13312937088836686407, 5790384474668736106]
    nested = pa.table({"a": [[1, 2], None, []], "b": [{"x": "u", "y": [True]}, {"x": None, "y": None}, None]})
    assert row_hashes(nested).tolist() == [7740635294681342523, 3447755867826420563, 5577285463261719582]


def test_a_digest_carries_the_version_of_its_algorithm() -> None:
    """Digests without a version are of releases that wrote none: they are compared without the prefix."""
    bare = "ac9d69a7d8f6a3bd2ba8f9f2a8ad3a7d9f0b6a1f6b4ac34b02a5f9b8c5c1f3aa"
    assert content_digest("v1", 2, 5, 2**64 - 1) == "2:" + comparable(content_digest("v1", 2, 5, 2**64 - 1))
    assert comparable(f"2:{bare}") == comparable(bare) == bare


def test_digests_of_the_first_algorithm_stay_what_they_are() -> None:
    content = FirstContent()
    content.add(nullable_row_hashes(pa.table({"a": [1, None], "b": ["x", "y"], "c": [0.5, None]})))
    assert content.digest("v1") == "5b3b330aa99a2a6c7f3b08d8c0786b635fa3c6db6b76277f746f21c907a381c8"
