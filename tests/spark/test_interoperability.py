"""The tables for other readers: after every publication each reader finds exactly the trusted rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars
import pytest
from deltalake import DeltaTable

from penstock.state.authority import AuthorityStore
from support import delta_reader
from support.builders import audit_entry
from support.harness import Harness
from support.loader_processes import folding_nothing
from support.workspaces import key

TABLE = "demo.campaign_daily"
COLUMNS = ("customer_id", "logical_date", "campaign_id", "clicks", "cost_micros", "_run_id", "schema_version")

Rows = list[tuple[str, ...]]


class LongAgo(Harness):
    """All times are a month ago, so that vacuum deletes replaced files."""

    def now(self) -> Any:
        return super().now() - timedelta(days=30)


def texts(rows: Iterable[dict[str, Any]]) -> Rows:
    return sorted(tuple(str(row.get(name)) for name in COLUMNS) for row in rows)


def of_tables(house: Harness, read: Callable[[list[str]], list[list[dict[str, Any]]]]) -> Rows:
    """Both tables as a Delta reader sees them at their last version."""
    heads = [head for _, head in house.workspace.maintenance.tables()]
    found = read([house.workspace.context.lake.uri(head.location) for head in heads])
    return texts(
        {**row, "schema_version": h.schema_version} for h, rows in zip(heads, found, strict=True) for row in rows
    )


def by_delta_rs(places: list[str]) -> list[list[dict[str, Any]]]:
    return [DeltaTable(place).to_pyarrow_table().to_pylist() for place in places]


def by_polars(places: list[str]) -> list[list[dict[str, Any]]]:
    return [polars.scan_delta(place).collect().to_dicts() for place in places]


@pytest.fixture
def seen(tmp_path: Path, spark: Any) -> Callable[[Harness, dict[Any, int]], None]:
    """Fails unless every reader sees exactly these partitions with these clicks, three rows each."""

    def check(house: Harness, expected: dict[Any, int]) -> None:
        vouched = house.workspace.data.vouched(TABLE)
        ours = texts(vouched.arrow().to_pylist())
        assert house.clicks() == {partition: {clicks} for partition, clicks in expected.items()}
        assert len(ours) == 3 * len(expected)
        assert texts(vouched.polars().to_dicts()) == ours
        relation = vouched.duckdb()
        assert texts(dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()) == ours
        assert texts(row.asDict() for row in vouched.spark(spark).collect()) == ours
        for read in (by_delta_rs, by_polars, delta_reader.read):
            assert of_tables(house, read) == ours, read

    return check


def test_every_reader_sees_exactly_the_vouched_rows_after_every_publication(
    tmp_path: Path, seen: Callable[[Harness, dict[Any, int]], None]
) -> None:
    house = LongAgo(tmp_path)
    newer, acts = house.under("v2"), AuthorityStore(house.workspace.context.database, house.now)
    first, second, third, other_month = key(1), key(2), key(3), key(1, "2024-07-01")
    with folding_nothing():
        earliest = house.deliver({first: 1, second: 1, third: 1, other_month: 1})
        house.publish()
        seen(house, {first: 1, second: 1, third: 1, other_month: 1})

        house.deliver({first: 2})
        house.deliver({key(4): 2})
        house.publish()
        seen(house, {first: 2, second: 1, third: 1, other_month: 1, key(4): 2})

    acts.demote(second, "wrong", audit_entry())
    acts.rollback(first, earliest, audit_entry())
    house.publish()
    seen(house, {first: 1, third: 1, other_month: 1, key(4): 2})

    with folding_nothing():
        house.deliver({key(5): 3})
        house.publish()
    publisher, token = house.publisher()
    assert publisher.compact(f"{TABLE}.v1").before > 1
    house.workers.stop(token)
    seen(house, {first: 1, third: 1, other_month: 1, key(4): 2, key(5): 3})

    house.grow_old()
    [deleted] = house.workspace.maintenance.vacuum((), timedelta(hours=1), dry_run=False).values()
    assert deleted
    seen(house, {first: 1, third: 1, other_month: 1, key(4): 2, key(5): 3})

    newer.deliver({first: 4, key(6): 4})
    newer.publish()
    seen(house, {first: 4, third: 1, other_month: 1, key(4): 2, key(5): 3, key(6): 4})

    house.deliver({first: 5})
    house.deliver({third: 5}, rows=0)  # accepted, and empty
    house.publish()
    seen(house, {first: 5, other_month: 1, key(4): 2, key(5): 3, key(6): 4})
    newer.workspace.context.database.close()
    house.workspace.context.database.close()
