"""Rules evaluated by a worker have the same meaning as in Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.config.checks import Field, check_from_mapping
from penstock.contract.evaluation import row_rules
from penstock.contract.schema import arrow_schema, spark_ddl
from penstock.errors import ConfigError
from penstock.pipeline.validate import check_expressions
from penstock.sql_guard import expression_problems
from support.builders import contract

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
    columns = [rule.spark_rule(checked).alias(f"_{number}") for number, rule in enumerate(rules)]
    by_spark = [list(row) for row in frame.select(*columns).collect()]
    by_worker = [evaluate(table).to_pylist() for rule in rules if (evaluate := rule.arrow_rule(checked))]
    assert [list(row) for row in zip(*by_worker, strict=True)] == by_spark


@pytest.mark.parametrize("check", FOR_SPARK, ids=str)
def test_what_is_not_surely_the_same_is_left_to_spark(check: dict[str, Any]) -> None:
    checked = of(check)
    [_required, rule] = row_rules(checked)
    assert rule.arrow_rule(checked) is None


def test_spark_gets_every_field_that_an_expression_may_name() -> None:
    checked = of({"expression": "`A` + WORD > length(share)"})
    assert set(row_rules(checked)[-1].spark_fields(checked)) >= {"a", "word", "share"}


# Expressions that Spark takes and other dialects do not, and expressions that Spark refuses.
SPARK_ONLY = """
a !> 1; a !< 1; a >>> 1 > 0; !(a > 1); a == 1; a <=> b; a div 2 > 1; 1L < a; 1.0BD < a; r'x' = word; word = "x"
word = 'it\\'s'; word like any ('a', 'b'); word not like all ('a'); word ilike some ('a'); word rlike 'x'
word like 'a!%' escape '!'; date'2024-01-01' < current_date; interval '1-2' year to month is not null
current_date + interval 1 day > current_date; trim(both 'x' from word) = 'a'; substring(word from 1 for 2) = 'a'
overlay(word placing 'a' from 1) = 'a'; word::long > 1; exists(array(a), x -> x > 1)
transform(array(a), (x, i) -> x + i)[0] > 1; map('a', 1)['a'] = 1; struct(1, 2).col1 = 1
case when a > 1 then true end; if(a > 1, true, false); coalesce(a > 1, true); nullif(true, a > 1)
a is distinct from b; cast(a as boolean); boolean(a); null; true; isnull(a); startswith(word, 'a'); `a` > 1
A > 1; a > .5; word > 5; a > 1 /* x */
""".strip()
REFUSED = """
a >; a + 1; a; word; 'true'; 1; (a); a b; a > 1 b; a > 1 -- x; (a > 1; a > 1); a = = 1; a mod 2 = 0
a > 1 xor b > 1; a => 1; a =< 1; a > 1 and; and a > 1; abs(a; abs(a); length(word); -a; a % 2; a & 1
word || 'x'; cast(a as string); int(a); a > 1, b; a ** 2 > 1; a // 2 > 1; cast(a boolean); a > 1 limit 1
a > 1 as x; word ~ 'a'; upper(word)
""".strip()


def texts(written: str) -> list[str]:
    return [text.strip() for line in written.splitlines() for text in line.split(";")]


def test_doctor_refuses_no_expression_that_spark_takes_and_knows_common_mistakes(spark: Any) -> None:
    """`expression_problems` parses expressions without Spark; Spark has the last word."""
    types = {field.name: field.type for field in FIELDS}
    for text in (*texts(SPARK_ONLY), *texts(REFUSED)):
        try:
            check_expressions(lambda: spark, of({"expression": text}))
            is_good = True
        except ConfigError:
            is_good = False
        assert (expression_problems(text, types) == []) is is_good, text
        assert is_good is (text in texts(SPARK_ONLY)), text
