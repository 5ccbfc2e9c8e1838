"""Every type of DuckDB is shown as it is, or refused with a message: never a traceback, never another value."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from penstock.cli import row_output
from penstock.errors import UsageError
from penstock.warehouse.sql import query

ALL_TYPES = query("SELECT * FROM test_all_types()", {}).schema.names
NOT_IN_CSV = {"date", "time", "time_ns", "timestamp", "timestamp_s", "timestamp_ms", "timestamp_tz", "interval"}
NOT_IN_PARQUET = {"interval", "empty_struct", "union"}


def written(statement: str, kind: str) -> bytes:
    target = io.BytesIO()
    row_output.encode_rows(query(statement, {}), kind, target)
    return target.getvalue()


def in_json(expression: str) -> Any:
    [row] = json.loads(written(f"SELECT {expression} AS c", "json"))["items"]
    return row["c"]


@pytest.mark.parametrize("name", ALL_TYPES)
def test_every_type_is_written_in_every_format_or_refused_with_a_message(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    statement = f'SELECT "{name}" AS c FROM test_all_types()'
    row_output.draw_rows(query(statement, {}), 50)
    assert len(capsys.readouterr().out.splitlines()) >= 5
    rows = json.loads(written(statement, "json"))["items"]
    assert len(rows) == 3
    assert pa.ipc.open_stream(written(statement, "arrow")).read_all().num_rows == 3
    for kind, refused in (("csv", NOT_IN_CSV), ("parquet", NOT_IN_PARQUET)):
        if name in refused:
            with pytest.raises(UsageError, match=f"cannot be written as {kind}"):
                written(statement, kind)
        else:
            assert written(statement, kind)


def test_all_of_them_at_once(tmp_path: Path) -> None:
    assert len(json.loads(written("SELECT * FROM test_all_types()", "json"))["items"]) == 3
    statement = 'SELECT * EXCLUDE (interval, empty_struct, "union") FROM test_all_types()'
    (tmp_path / "x.parquet").write_bytes(written(statement, "parquet"))
    assert pa.parquet.read_table(tmp_path / "x.parquet").num_rows == 3


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("'infinity'::TIMESTAMP", "infinity"),
        ("'-infinity'::TIMESTAMPTZ", "-infinity"),
        ("'infinity'::TIMESTAMP_S", "infinity"),
        ("'infinity'::TIMESTAMP_MS", "infinity"),
        ("'infinity'::TIMESTAMP_NS", "infinity"),
        ("'-infinity'::DATE", "-infinity"),
        ("['infinity'::DATE, DATE '2024-06-01']", ["infinity", "2024-06-01"]),
        ("{'a': '290000-01-02 03:04:05.5'::TIMESTAMP}", {"a": "290000-01-02 03:04:05.500000"}),
        ("MAP {'a': DATE '10000-02-29'}", [["a", "10000-02-29"]]),
        ("DATE '0044-03-15 (BC)'", "0044-03-15 (BC)"),
        ("TIMESTAMP '0044-03-15 (BC) 12:00:00'", "0044-03-15 (BC) 12:00:00"),
        ("TIME '24:00:00'", "24:00:00"),
        ("'12:00:00+15:59:59'::TIMETZ", "12:00:00+15:59:59"),
        ("TIMESTAMP '2024-06-01 12:00:00'", "2024-06-01T12:00:00"),
        ("INTERVAL '1 year 2 days 3.5 seconds'", "P12M2DT3.5S"),
        ("INTERVAL '-1 day'", "P0M-1DT0S"),
        ("340282366920938463463374607431768211455::UHUGEINT", "340282366920938463463374607431768211455"),
        ("[340282366920938463463374607431768211455::UHUGEINT]", ["340282366920938463463374607431768211455"]),
        ("170141183460469231731687303715884105727::HUGEINT", "170141183460469231731687303715884105727"),
        ("123456789012345678901234567890::BIGNUM", "123456789012345678901234567890"),
        ("7::HUGEINT", 7),
        ("12.50::DECIMAL(6, 2)", "12.50"),
        ("'10101'::BIT", "10101"),
        ("{'BIT': '1'::BIT, 'b': [1]}", {"BIT": "1", "b": [1]}),
        ("'\\xFF\\x00'::BLOB", "/wA="),
        ("'a'::ENUM('a', 'BIT')", "a"),
        ("union_value(a := 'x')", "x"),
        ("'NaN'::DOUBLE", None),
        ("'00000000-0000-0000-0000-00000000000a'::UUID", "00000000-0000-0000-0000-00000000000a"),
        ("42::VARIANT", "42"),
    ],
)
def test_values_are_shown_as_they_are(expression: str, shown: Any) -> None:
    assert in_json(expression) == shown


def test_columns_of_the_same_name_are_all_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    row_output.draw_rows(query("SELECT 11 AS a, 22 AS a", {}), 5)
    shown = capsys.readouterr().out
    assert "11" in shown
    assert "22" in shown
    with pytest.raises(UsageError, match="two columns have the same name"):
        query("SELECT 1::UHUGEINT AS a, 2 AS a", {})


def test_an_order_survives_the_conversion_to_text() -> None:
    found = query("SELECT x::UHUGEINT AS x FROM range(1000) AS t(x) ORDER BY x DESC", {}).read_all()
    assert found.column("x").to_pylist() == [str(number) for number in range(999, -1, -1)]


def test_a_blob_is_base64_in_csv() -> None:
    assert written("SELECT '\\xFF\\x00'::BLOB AS c, [1] AS d", "csv") == b'"c","d"\n"/wA=","[1]"\n'
