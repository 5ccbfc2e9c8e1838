"""The independent checker finds each kind of damage that is planted into a small real workspace."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from penstock.partition import PartitionKey
from penstock.state.authority import AuthorityStore
from support.builders import audit_entry
from support.checker import check_state, check_workspace, places
from support.harness import Harness
from support.payload_rows import payload_rows, table_rows
from support.projections import check_projections
from support.workspaces import key

FIRST, SECOND, DEMOTED, WAITING = key(1), key(2), key(3), key(4)
TABLE = "lake/warehouse/demo/campaign_daily/v1"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two visible partitions, one of them in its second attempt, one demoted and one due."""
    made = Harness(tmp_path_factory.mktemp("pristine"))
    made.deliver({FIRST: 1, SECOND: 1, DEMOTED: 1})
    made.publish()
    made.deliver({FIRST: 2})
    made.publish()
    AuthorityStore(made.workspace.context.database, made.now).demote(DEMOTED, "wrong", audit_entry())
    made.deliver({WAITING: 1})
    made.workspace.context.database.close()
    return made.folder


@pytest.fixture
def house(pristine: Path, tmp_path: Path) -> Iterator[Harness]:
    """A copy of it, to be damaged."""
    shutil.copytree(pristine, tmp_path, dirs_exist_ok=True)
    made = Harness(tmp_path)
    yield made
    made.workspace.context.database.close()


def sql(house: Harness, statement: str, *values: object) -> None:
    """Change the database directly: without triggers and constraints."""
    with closing(sqlite3.connect(house.folder / "state.db")) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = on")
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("DROP INDEX IF EXISTS one_open_attempt_per_partition")
        connection.execute(statement, values)


def current_run(house: Harness, partition: PartitionKey) -> str:
    state = house.workspace.context.state.state(partition)
    assert state is not None
    return str(state.current_run_id)


def payload_of(house: Harness, partition: PartitionKey) -> Path:
    folder = house.folder / f"lake/raw/demo/customer_id={partition.customer_id}"
    [path] = folder.rglob(f"run_id={current_run(house, partition)}/payload-*.jsonl")
    return path


def data_file(house: Harness) -> Path:
    """The one file of the table: its partitions are of one month."""
    [uri] = DeltaTable(str(house.folder / TABLE)).file_uris()
    return Path(uri.removeprefix("file://"))


def commit(house: Harness, change: Callable[[pa.Table], pa.Table], *, keep: bool = False) -> int:
    """Add a file with other rows to the Delta table, in the place of the old one or beside it. The new version."""
    old, log = data_file(house), house.folder / TABLE / "_delta_log"
    new = old.with_name("planted.parquet")
    pq.write_table(change(pq.ParquetFile(old).read()), new)
    actions = [json.loads(line) for path in sorted(log.glob("*.json")) for line in path.read_text().splitlines()]
    add = next(action["add"] for action in actions if action.get("add", {}).get("path", "").endswith(old.name))
    planted = [{"add": add | {"path": f"{Path(add['path']).parent}/{new.name}", "size": new.stat().st_size}}]
    if not keep:
        planted.append({"remove": {"path": add["path"], "dataChange": True, "deletionTimestamp": 1}})
    version = DeltaTable(str(house.folder / TABLE)).version() + 1
    (log / f"{version:020d}.json").write_text("".join(json.dumps(action) + "\n" for action in planted))
    return version


def plant(house: Harness, change: Callable[[pa.Table], pa.Table], *, keep: bool = False) -> list[str]:
    """The same in a version that the head names; returns the violations."""
    version = commit(house, change, keep=keep)
    assert check_workspace(house.folder) == [], "no head names that version yet"
    sql(house, "UPDATE warehouse_table SET version = ?", version)
    return check_workspace(house.folder)


def test_a_workspace_that_was_not_touched_has_no_violations(house: Harness) -> None:
    assert check_workspace(house.folder) == []
    house.publish()
    assert check_workspace(house.folder) == []


WHERE = "WHERE customer_id = ?"
OF_FIRST, OF_SECOND, OF_DEMOTED = FIRST.customer_id, SECOND.customer_id, DEMOTED.customer_id


@pytest.mark.parametrize(
    ("statement", "customer", "violation"),
    [
        (f"UPDATE partition_state SET attempt_count = 7 {WHERE}", OF_FIRST, "attempt_count is 7"),
        (
            f"UPDATE partition_attempt SET outcome = NULL, finished_at = NULL {WHERE}",
            OF_FIRST,
            "2 attempts are open",
        ),
        (
            f"UPDATE partition_attempt SET outcome = NULL, finished_at = NULL {WHERE} AND attempt_no = 1",
            OF_FIRST,
            "an attempt is open though a newer one was issued",
        ),
        (f"UPDATE partition_attempt SET attempt_no = attempt_no + 1 {WHERE}", OF_SECOND, "are numbered [2]"),
        (
            f"UPDATE partition_attempt SET outcome = 'FAILED' {WHERE}",
            OF_SECOND,
            "which was neither accepted nor approved",
        ),
        (f"UPDATE partition_attempt SET demoted_at = '2024-01-01' {WHERE}", OF_SECOND, "which was demoted"),
        (f"UPDATE partition_state SET current_run_id = 'X' {WHERE}", OF_SECOND, "which has no attempt"),
        (f"UPDATE partition_state SET current_run_id = 'X' {WHERE}", OF_SECOND, "nothing waits to be published"),
        (f"UPDATE partition_state SET record_count = 9 {WHERE}", OF_SECOND, "record_count is 9"),
        (f"UPDATE warehouse_pointer SET run_id = 'X' {WHERE}", OF_SECOND, "the pointer names X"),
        (f"UPDATE warehouse_pointer SET available = 0 {WHERE}", OF_SECOND, "the pointer serves nothing"),
        (f"UPDATE warehouse_pointer SET available = 1 {WHERE}", OF_DEMOTED, "but its status is failed"),
        (f"DELETE FROM publish_due {WHERE}", OF_DEMOTED, "its rows are not hidden"),
        (f"DELETE FROM publish_due {WHERE}", WAITING.customer_id, "nothing waits to be published"),
        (f"UPDATE warehouse_pointer SET record_count = 9 {WHERE}", OF_SECOND, "the pointer 9"),
        (f"UPDATE warehouse_pointer SET table_version = 99 {WHERE}", OF_SECOND, "the head is"),
        (f"DELETE FROM warehouse_pointer {WHERE}", OF_SECOND, "but no pointer names them"),
        (f"DELETE FROM partition_state {WHERE}", OF_SECOND, "has a pointer but no state"),
        (f"UPDATE partition_attempt SET payload_digest = 'X' {WHERE}", OF_SECOND, "the verdict X"),
        (f"UPDATE partition_attempt SET raw_deleted_at = '2024-01-01' {WHERE}", OF_SECOND, "raw data of run"),
        ("UPDATE warehouse_table SET version = version - 1 WHERE ? <> ''", "any", "the head is"),
        ("UPDATE warehouse_table SET version = 99 WHERE ? <> ''", "any", "version 99 cannot be read"),
    ],
)
def test_each_edited_row_of_the_state_is_found(house: Harness, statement: str, customer: str, violation: str) -> None:
    sql(house, statement, customer)
    found = check_workspace(house.folder)
    assert any(violation in text for text in found), found


def test_a_changed_byte_of_a_payload_is_found(house: Harness) -> None:
    path = payload_of(house, SECOND)
    path.write_bytes(path.read_bytes().replace(b'"clicks":1', b'"clicks":8', 1))
    [found] = check_workspace(house.folder)
    assert f"{SECOND}: the payload of run {current_run(house, SECOND)} has" in found


@pytest.mark.parametrize("name", ["metadata.json", "payload"])
def test_a_missing_payload_or_seal_is_found(house: Harness, name: str) -> None:
    path = payload_of(house, SECOND)
    (path.with_name(name) if name == "metadata.json" else path).unlink()
    [found] = check_workspace(house.folder)
    assert ("is not sealed" if name == "metadata.json" else "is missing") in found


def test_a_seal_that_counts_other_records_is_found(house: Harness) -> None:
    path = payload_of(house, SECOND).with_name("metadata.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"record_count": 4}))
    [found] = check_workspace(house.folder)
    assert "has 3 records, its seal 4, its verdict 3" in found


def with_first_clicks(rows: pa.Table, clicks: int) -> pa.Table:
    values = rows.column("clicks").to_pylist()
    return rows.set_column(rows.schema.get_field_index("clicks"), "clicks", pa.array([clicks, *values[1:]], pa.int64()))


def test_a_data_file_with_another_value_is_found(house: Harness) -> None:
    [found] = plant(house, lambda rows: with_first_clicks(rows, 77))
    assert "1 are unknown, 1 are missing" in found
    assert "77" in found


def test_a_data_file_that_lost_a_row_is_found(house: Harness) -> None:
    found = plant(house, lambda rows: rows.slice(1))
    assert any("holds 2 rows of run" in text for text in found), found


def test_a_data_file_that_lost_a_partition_is_found(house: Harness) -> None:
    found = plant(house, lambda rows: rows.slice(3))
    assert found == [f"{FIRST}: its pointer names 3 rows, demo.campaign_daily.v1 has none"]


def test_a_missing_data_file_is_found(house: Harness) -> None:
    data_file(house).unlink()
    [found] = check_workspace(house.folder)
    assert "cannot be read" in found


def test_a_file_that_was_added_twice_is_found(house: Harness) -> None:
    found = plant(house, lambda rows: rows, keep=True)
    assert len([text for text in found if "holds 6 rows of run" in text]) == 3, found


def test_rows_of_two_runs_of_one_partition_are_found(house: Harness) -> None:
    foreign = "01M7KP4MB00J3XWQ1FS7J9P18B"

    def of_another_run(rows: pa.Table) -> pa.Table:
        column = pa.array([foreign] * rows.num_rows)
        return rows.set_column(rows.schema.get_field_index("_run_id"), "_run_id", column)

    found = plant(house, of_another_run, keep=True)
    assert len([text for text in found if f"holds rows of run {foreign}, " in text or f", {foreign}, " in text]) == 3


def test_the_state_alone_can_be_checked(house: Harness) -> None:
    state, _, schema = places(house.folder)
    assert check_state(state, schema) == []
    sql(house, "UPDATE partition_state SET attempt_count = 7")
    assert len(check_state(state, schema)) == 4


def test_projections_that_differ_from_a_rebuild_are_found(house: Harness) -> None:
    ws = house.workspace
    ws.status.advance()
    assert check_projections(house.folder) == []
    [status] = (house.folder / "lake/projections/partition_status").glob("*.parquet")
    pq.write_table(pq.ParquetFile(status).read().slice(1), status)
    [found] = check_projections(house.folder)
    assert found.startswith("partition_status: 0 rows are not in a rebuild, 1 rows of a rebuild are missing")


BODY: dict[str, Any] = {"fields": [{"name": "a"}, {"name": "b", "default": 5}]}


@pytest.mark.parametrize(
    ("line", "kind", "value"),
    [
        ('{"a":1}', pa.int64(), 1),
        ('{"a":1}', pa.float64(), 1.0),
        ('{"a":0.1}', pa.float64(), 0.1),
        ('{"a":null}', pa.int64(), None),
        ('{"a":true}', pa.bool_(), True),
        ('{"a":"é"}', pa.string(), "é"),
        ('{"a":"1.50"}', pa.decimal128(9, 3), Decimal("1.500")),
        ('{"a":1.5}', pa.decimal128(9, 3), Decimal("1.500")),
        ('{"a":"2024-06-01"}', pa.date32(), date(2024, 6, 1)),
        ('{"a":"2024-06-01T02:00:00+02:00"}', pa.timestamp("us", tz="UTC"), datetime(2024, 6, 1, tzinfo=UTC)),
        ('{"a":"2024-06-01T00:00"}', pa.timestamp("us", tz="UTC"), datetime(2024, 6, 1, tzinfo=UTC)),
        ('{"a":[1,null]}', pa.list_(pa.int64()), [1, None]),
        ('{"a":{"x":1}}', pa.struct([("x", pa.int64()), ("y", pa.string())]), {"x": 1, "y": None}),
    ],
)
def test_a_value_of_a_payload_equals_the_value_of_its_column(line: str, kind: pa.DataType, value: Any) -> None:
    columns = [pa.field("a", kind), pa.field("b", pa.int64())]
    table = pa.table({"a": pa.array([value], kind), "b": pa.array([5])})
    assert payload_rows("payload-1.jsonl", f"{line}\n".encode(), BODY, columns) == table_rows(table, columns)


def test_a_null_does_not_get_the_default_and_unknown_fields_are_kept_where_they_stand() -> None:
    columns = [
        pa.field("a", pa.list_(pa.struct([("x", pa.int64())]))),
        pa.field("b", pa.int64()),
        pa.field("_extra", pa.string()),
    ]
    lines = b'{"a":[{"x":1},{"x":2,"y":3.50}],"b":null,"c":{"d":1}}\n{"a":[],"b":1}\n'
    table = pa.table(
        {
            "a": pa.array([[{"x": 1}, {"x": 2}], []], columns[0].type),
            "b": pa.array([None, 1], pa.int64()),
            "_extra": ['{"a":{"1":{"y":3.50}},"c":{"d":1}}', None],
        }
    )
    assert payload_rows("payload-1.jsonl", lines, BODY, columns) == table_rows(table, columns)


def test_values_that_only_look_alike_differ() -> None:
    columns = [pa.field("a", pa.float64())]
    zeros = pa.table({"a": pa.array([0.0, -0.0])})
    first, second = table_rows(zeros, columns)
    assert first != second
