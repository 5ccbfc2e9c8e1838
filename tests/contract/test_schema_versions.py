"""Schema versions with incompatible types: the visible rows while history moves, and after all of it has moved."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.app import Workspace
from penstock.errors import UsageError
from penstock.flow.model_contracts import _columns
from penstock.partition import PartitionKey, new_ulid
from penstock.state.authority import AuthorityStore
from penstock.warehouse.heads import heads, table_schemas
from penstock.warehouse.reader import Vouched
from penstock.warehouse.served import read_served
from penstock.warehouse.snapshots import Snapshot
from penstock.warehouse.version_union import VersionsConflict, unified
from support import builders
from support.builders import BACKENDS, audit_entry
from support.harness import Harness
from support.workspaces import customer_id, key

TABLE = "demo.campaign_daily"
D9, D10 = date(2024, 6, 9), date(2024, 6, 10)
OLD, NEW = key(1, "2024-06-09"), key(2, "2024-06-10")


@pytest.fixture(params=BACKENDS)
def old(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """A workspace in which clicks is a long."""
    with builders.quick_folder() as folder:
        if request.param == "sqlite":
            made = Harness(Path(folder))
        else:
            made = Harness(
                Path(folder), state=request.getfixturevalue("postgres_url"), schema=f"t_{new_ulid().lower()}"
            )
        yield made
        made.workspace.context.database.close()


@pytest.fixture
def new(old: Harness) -> Iterator[Harness]:
    """The same workspace, under a file in which clicks is a string."""
    made = old.under("text")
    yield made
    made.workspace.context.database.close()


def deliver(house: Harness, *keys: PartitionKey, clicks: int) -> None:
    house.deliver(dict.fromkeys(keys, clicks), rows=2)
    house.publish()


def rows(vouched: Any) -> set[tuple[Any, str]]:
    table = vouched.arrow()
    return set(zip(table["clicks"].to_pylist(), table["schema_version"].to_pylist(), strict=True))


def sql(ws: Workspace, **versions: Any) -> list[Any]:
    found = ws.sql(f"SELECT DISTINCT clicks FROM {TABLE} ORDER BY 1", **versions).read_all()
    return list(found["clicks"].to_pylist())


def test_a_version_that_serves_no_partition_is_not_read(old: Harness, new: Harness) -> None:
    deliver(old, OLD, NEW, clicks=1)
    deliver(new, OLD, NEW, clicks=7)
    ws = new.workspace
    vouched = ws.data.vouched(TABLE)
    assert vouched.schema.field("clicks").type == pa.string()
    assert rows(vouched) == {("7", "text")}
    assert set(vouched.duckdb().project("clicks").fetchall()) == {("7",)}
    assert set(vouched.polars()["clicks"].to_list()) == {"7"}
    assert sql(ws) == ["7"]
    assert [head.schema_version for head in read_served(ws.context.database, {TABLE: (D9, D10)}).heads[TABLE]] == [
        "text"
    ]
    assert len(table_schemas(ws.context.versions, ws.context.database, [("demo", "campaign_daily")])[TABLE]) == 1
    assert {head.schema_version for _, head in ws.maintenance.tables()} == {"text", "v1"}  # maintenance keeps both
    ws.data.take_snapshot("now")
    assert rows(ws.data.vouched(TABLE, as_of="now")) == {("7", "text")}


def test_a_version_all_of_whose_partitions_are_demoted_is_not_read(old: Harness, new: Harness) -> None:
    deliver(old, OLD, clicks=1)
    deliver(new, NEW, clicks=7)
    AuthorityStore(old.workspace.context.database, old.now).demote(OLD, "wrong", audit_entry())
    assert [head.schema_version for head in heads(new.workspace.context.database, "demo", "campaign_daily", ())] == [
        "text"
    ]
    assert rows(new.workspace.data.vouched(TABLE)) == {("7", "text")}


def test_a_snapshot_that_names_an_empty_table_is_read_without_it(old: Harness, new: Harness) -> None:
    """Earlier releases wrote such snapshots."""
    deliver(old, OLD, clicks=1)
    deliver(new, OLD, clicks=7)
    ws = new.workspace
    every = tuple((TABLE, head) for head in heads(ws.context.database, "demo", "campaign_daily"))
    assert len(every) == 2
    snapshot = Snapshot("older", ws.context.now(), ws.context.now() + timedelta(days=1), every)
    ws.context.lake.create("snapshots/older.json", snapshot.dumps())
    assert rows(ws.data.vouched(TABLE, as_of="older")) == {("7", "text")}


def test_versions_that_do_not_fit_are_refused_together_and_read_one_by_one(old: Harness, new: Harness) -> None:
    deliver(old, OLD, clicks=1)
    deliver(new, NEW, clicks=7)
    ws = new.workspace
    ws.data.take_snapshot("both")
    whole: Vouched = ws.data.vouched(TABLE)
    for read in (whole.arrow, lambda: list(whole.batches()), whole.polars, whole.duckdb, lambda: whole.schema):
        with pytest.raises(VersionsConflict, match="clicks is string in text and long in v1") as error:
            read()
    assert f"penstock read {TABLE} --schema-version v1" in str(error.value)
    assert f"penstock sql --schema-version {TABLE}=v1" in str(error.value)
    with pytest.raises(VersionsConflict):
        sql(ws)
    with pytest.raises(VersionsConflict):
        ws.data.vouched(TABLE, as_of="both").arrow()

    assert {name: rows(one) for name, one in whole.versions.items()} == {"v1": {(1, "v1")}, "text": {("7", "text")}}
    for as_of in (None, "both"):
        assert rows(ws.read(TABLE, schema_version="v1", as_of=as_of)) == {(1, "v1")}
        assert rows(ws.read(TABLE, schema_version="text", as_of=as_of)) == {("7", "text")}
        assert sql(ws, schema_versions={TABLE: "v1"}, as_of=as_of) == [1]
    with pytest.raises(UsageError, match=r"no partition of schema version v9 \(versions: text, v1\)"):
        ws.data.vouched(TABLE, schema_version="v9")
    with pytest.raises(UsageError, match=r"unknown table demo\.nothing"):
        sql(ws, schema_versions={"demo.nothing": "v1"})


def test_a_slice_of_one_version_and_columns_that_fit_are_read_as_they_are(old: Harness, new: Harness) -> None:
    deliver(old, OLD, clicks=1)
    deliver(new, NEW, clicks=7)
    ws = new.workspace
    assert rows(ws.data.vouched(TABLE, since=D10)) == {("7", "text")}
    assert rows(ws.data.vouched(TABLE, until=D9)) == {(1, "v1")}
    assert rows(ws.data.vouched(TABLE, customers=[customer_id(1)])) == {(1, "v1")}
    found = ws.data.vouched(TABLE, columns=["campaign_id", "schema_version"]).arrow()
    assert set(found["schema_version"].to_pylist()) == {"v1", "text"}
    with pytest.raises(UsageError, match="unknown column klicks"):
        ws.data.vouched(TABLE, columns=["klicks"])
    # A model is analysed with the types of the contract in force, whatever is still served beside it.
    there = table_schemas(ws.context.versions, ws.context.database, [("demo", "campaign_daily")])[TABLE]
    assert _columns(ws.context.contracts["campaign_daily"], there).field("clicks").type == pa.string()


def test_the_conflict_names_each_column_and_survives_pickling() -> None:
    import pickle

    one = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.int64())])
    two = pa.schema([("a", pa.string()), ("b", pa.list_(pa.string())), ("c", pa.float64())])
    with pytest.raises(VersionsConflict) as error:
        unified("demo.x", [("v1", one), ("v2", two)])
    text = str(error.value)
    assert "a is long in v1 and string in v2; b is string in v1" in text
    assert "c is" not in text
    assert str(pickle.loads(pickle.dumps(error.value))) == text
