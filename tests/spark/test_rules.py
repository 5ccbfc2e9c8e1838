"""Rules evaluated by a worker mean exactly what they mean to Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import contract
from penstock.contract.checks import broken
from penstock.contract.plain import plain, spark_fields
from penstock.contract.rules import row_rules
from penstock.contract.schema import arrow_schema, spark_ddl
from penstock.settings import Field, check_from_mapping

FIELDS = (
    Field(name="a", type="long", required=True),
    Field(name="b", type="long"),
    Field(name="word", type="string"),
    Field(name="share", type="double"),
)
PLAIN: list[dict[str, Any]] = [
    {"expression": "a <= b"},
    {"expression": " a<b and b <> 3 AND a >= -9223372036854775808 "},
    {"expression": "a == b"},
    {"expression": "a != 0 and b > -2"},
    {"required": ["word"]},
    {"range": {"field": "a", "min": -1, "max": 2}},
    {"range": {"field": "b", "max": 9223372036854775807}},
    {"allowed": {"field": "word", "values": ["x", "and", ""]}},
    {"allowed": {"field": "b", "values": [0, 3]}},
]
FOR_SPARK: list[dict[str, Any]] = [
    {"expression": "a <=> b"},
    {"expression": "a between 0 and b"},
    {"expression": "not a < b and b < 3"},
    {"expression": "A <= b"},
    {"expression": "a < 9223372036854775808"},
    {"expression": "a <= b or b is null"},
    {"expression": "a = null"},
    {"expression": "share <= 0.5"},
    {"expression": "word = 'a and b'"},
    {"expression": "a + 1 > b"},
    {"range": {"field": "a", "min": 0.5}},
    {"range": {"field": "share", "min": 0}},
    {"allowed": {"field": "share", "values": [1.0]}},
]

numbers = st.none() | st.integers(-3, 4) | st.sampled_from([-(2**63), 2**63 - 1])
rows = st.lists(
    st.fixed_dictionaries(
        {
            "a": numbers,
            "b": numbers,
            "word": st.none() | st.sampled_from(["x", "y", "", "and"]),
            "share": st.none() | st.floats(-2, 2),
        }
    ),
    min_size=1,
    max_size=20,
)


def of(*checks: dict[str, Any]) -> Any:
    return contract(fields=FIELDS, checks=tuple(check_from_mapping(check) for check in checks))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows)
def test_a_plain_rule_finds_the_rows_that_spark_finds(spark: Any, found: list[dict[str, Any]]) -> None:
    checked = of(*PLAIN)
    table = pa.Table.from_pylist(found, schema=arrow_schema(FIELDS))
    frame = spark.createDataFrame([tuple(row[field.name] for field in FIELDS) for row in found], spark_ddl(FIELDS))
    rules = row_rules(checked)
    columns = [broken(rule, checked).alias(f"_{number}") for number, rule in enumerate(rules)]
    by_spark = [list(row) for row in frame.select(*columns).collect()]
    by_worker = [evaluate(table).to_pylist() for rule in rules if (evaluate := plain(rule, checked))]
    assert [list(row) for row in zip(*by_worker, strict=True)] == by_spark


@pytest.mark.parametrize("check", FOR_SPARK, ids=str)
def test_what_is_not_surely_the_same_is_left_to_spark(check: dict[str, Any]) -> None:
    checked = of(check)
    [_required, rule] = row_rules(checked)
    assert plain(rule, checked) is None


def test_spark_gets_every_field_that_an_expression_may_name() -> None:
    checked = of({"expression": "`A` + WORD > length(share)"})
    assert set(spark_fields(row_rules(checked)[-1], checked)) >= {"a", "word", "share"}
