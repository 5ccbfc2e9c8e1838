"""Workspaces of earlier releases: after a migration their content is correct, and runs continue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from penstock.app import Workspace
from penstock.config.checks import Field
from penstock.contract.schema import arrow_schema, spark_ddl
from penstock.contract.spark_hash import nullable_row_hashes
from penstock.control.select import Selection
from penstock.partition import PartitionKey
from support.old_workspaces import VERSIONS, move_to_postgres, unpack
from support.workspaces import open_at, rows_by_partition, run


@pytest.fixture(params=["sqlite", "postgresql"])
def backend(request: pytest.FixtureRequest) -> Iterator[tuple[str, str] | None]:
    if request.param == "sqlite":
        yield None
    else:
        yield request.getfixturevalue("postgres_url"), f"old_{uuid4().hex[:12]}"


def verified(ws: Workspace) -> dict[PartitionKey, list[str]]:
    done = ws.maintenance.verify((), lambda share: None, raw=True)
    assert not done.files
    return done.wrong


def reasons(ws: Workspace) -> dict[str, int]:
    return {name: count for name, count in ws.status.board(Selection()).stale_reasons().items() if count}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_workspace_of_an_earlier_release_goes_on_after_a_migration(
    version: str, backend: tuple[str, str] | None, tmp_path: Path, spark: Any
) -> None:
    folder = unpack(version, tmp_path)
    if backend:
        move_to_postgres(folder, version, *backend)
    ws = open_at(folder)
    rows = rows_by_partition(ws)
    assert {len(found) for found in rows.values()} == {20}
    assert len(rows) == 4
    assert verified(ws) == {}
    assert reasons(ws) == {}

    summary = run(ws, spark)
    assert (summary.rejected, summary.failures) == (0, [])
    assert summary.accepted == (3 if ws.settings.models else 2), "only what was missing"
    assert {key: found for key, found in rows_by_partition(ws).items() if key in rows} == rows
    assert verified(ws) == {}
    assert reasons(ws) == {}
    ws.ledger.rebuild()
    assert reasons(ws) == {}
    ws.context.database.close()


def test_the_hash_of_the_first_releases_is_that_of_spark(spark: Any) -> None:
    kinds = ("long", "double", "string", "boolean", "date", "timestamp", "decimal(10,2)", "decimal(30,4)")
    fields = [Field(name=f"f{number}", type=kind) for number, kind in enumerate(kinds)]
    values: list[list[Any]] = [
        [1, -1, 2**63 - 1, -(2**63), None],
        [0.5, -0.0, 1e300, 0.0, None],
        ["", "ä", "x" * 7, "long enough for four lanes of eight bytes each, and a rest", None],
        [True, False, True, None, None],
        ["1969-12-31", "2024-06-01", "0001-01-01", "9999-12-31", None],
        ["1969-12-31T23:59:59.999999Z", "2024-06-01T00:00:00Z", "2024-06-01T12:34:56Z", "1970-01-01T00:00:00Z", None],
        ["1.25", "-99999999.99", "0.00", "12345678.90", None],
        ["1.2500", "-99999999999999999999999999.9999", "0.0000", "17014118346046923173168730.7158", None],
    ]  # fmt: skip
    schema = arrow_schema(fields)
    columns = [
        pa.array(column, pa.string()).cast(kind.type) if isinstance(column[0], str) else pa.array(column, kind.type)
        for column, kind in zip(values, schema, strict=True)
    ]
    rows = pa.Table.from_arrays(columns, schema=schema)
    names = [field.name for field in fields]
    frame = spark.createDataFrame(rows.to_pylist(), spark_ddl(fields))
    hashed = F.xxhash64(*(column for name in names for column in (F.col(name).isNull(), F.col(name))))
    expected = [row[0] % 2**64 for row in frame.select(hashed).collect()]
    assert nullable_row_hashes(rows).tolist() == expected
