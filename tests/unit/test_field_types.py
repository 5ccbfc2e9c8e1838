"""Field types: one notation, and the values that are valid for each."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from penstock.config.checks import Field
from penstock.contract.schema import arrow_type, spark_type
from penstock.field_types import Kind, kind_of, reader
from support.strategies import kinds


@given(kinds)
def test_a_type_is_read_back_as_it_was_written(kind: Kind) -> None:
    text = str(kind)
    assert kind_of(text) == kind
    assert kind_of(text.replace(" ", "").replace("<", " < ").replace(",", " ,")) == kind
    assert Field(name="f", type=text.replace(" ", "")).type == text


def test_arrow_and_spark_spell_it_their_way() -> None:
    text = "array<struct<id: long, tags: array<string>, at: timestamp, price: decimal(10,2)>>"
    assert spark_type(text) == (
        "array<struct<`id`: bigint, `tags`: array<string>, `at`: timestamp, `price`: decimal(10,2)>>"
    )
    assert arrow_type(text).value_type.field("price").type == arrow_type("decimal(10,2)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("array", "not a type"),
        ("array<long", "not a type"),
        ("array<long>>", "not a type"),
        ("struct<>", "name '>' is not valid"),
        ("struct<a>", "not a type"),
        ("struct<a: long, a: string>", "'a' occurs twice"),
        ("struct<A: long>", "name 'A' is not valid"),
        ("map<string, long>", "not a type"),
        ("array<decimal(40,2)>", "decimal(p,s) needs"),
        ("array<" * 17 + "long" + ">" * 17, "nested more than 16 levels deep"),
        ("array<long>; drop", "not a type"),
    ],
)
def test_what_is_no_type_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        kind_of(text)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("array<long>", [[], [1, None]], [1, {}, ["1"], [1.5], [2**63]]),
        ("struct<a: long, b: date>", [{}, {"a": 1}, {"b": "2024-06-01"}], [[], {"a": "x"}, {"c": 1}, {"b": "1.6.24"}]),
        ("array<array<boolean>>", [[[True], None, []]], [[True], [[1]]]),
        ("timestamp", ["2024-06-01T10Z", "2024-06-01"], ["0000-01-01", "9999-12-31T23:59:59-10:00", "2024-W01-1"]),
    ],
)
def test_a_default_is_a_value_of_its_type(kind: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert reader(kind_of(kind))(value)
        assert json.loads(json.dumps(Field(name="f", type=kind, default=value).default)) == value
    for value in bad:
        assert not reader(kind_of(kind))(value)
        with pytest.raises(ValueError, match="is not a value of the type"):
            Field(name="f", type=kind, default=value)
