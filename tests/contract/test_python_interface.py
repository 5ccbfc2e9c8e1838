"""The names that Python programs rely on: `penstock.open`, and what is asked of a workspace."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import builders
import penstock
from house import House
from penstock.app import Workspace
from penstock.partition import new_run_id
from penstock.settings import Customer, SourceSettings
from penstock.source.protocol import RunContext
from penstock.source.registry import make_source
from workspaces import key

TABLE = "demo.campaign_daily"


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    """Three days of two customers, published."""
    with builders.quick_folder() as folder:
        made = House(Path(folder))
        days = ("2024-06-09", "2024-06-10", "2024-06-11")
        made.deliver({key(number, day): 10 * number + at for number in (1, 2) for at, day in enumerate(days)})
        made.publish()
        yield made
        made.workspace.database.close()


@pytest.fixture
def ws(house: House) -> Iterator[Workspace]:
    (house.folder / "below" / "it").mkdir(parents=True, exist_ok=True)
    found = penstock.open(str(house.folder / "below" / "it"))
    yield found
    found.database.close()


def clicks(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(row["clicks"] for row in rows)


def test_a_table_is_read_by_days_inclusive_in_every_shape(ws: Workspace) -> None:
    read: Any = ws.read(TABLE, since="2024-06-09", until="2024-06-10")
    rows = read.arrow().to_pylist()
    assert clicks(rows) == sorted([10, 11, 20, 21] * 3)
    assert {str(row["logical_date"]) for row in rows} == {"2024-06-09", "2024-06-10"}
    assert clicks(read.polars().to_dicts()) == clicks(rows)
    assert clicks(pa.Table.from_batches(read.batches(), schema=read.schema).to_pylist()) == clicks(rows)
    relation = read.duckdb()
    assert clicks([dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]) == clicks(rows)


def test_readiness_is_asked_for_a_day_and_by_a_rule(ws: Workspace) -> None:
    one = key(1).customer_id
    assert ws.ready(TABLE, date="2024-06-09", require="2") is True
    assert ws.ready(TABLE, date="2024-06-09", require="all") is False
    assert ws.ready(TABLE, date="2024-06-09", require="all", customers=(one,)) is True


def test_a_partition_says_why_it_is_as_it_is(ws: Workspace) -> None:
    why = ws.partition(str(key(1))).why()
    assert why.pointer is not None
    assert why.view.state.current_run_id == why.pointer.run_id
    missing = ws.partition(str(key(3))).why()
    assert missing.pointer is None
    assert "penstock run" in missing.next


def test_names_of_the_package_are_found_without_opening_anything() -> None:
    names = vars(penstock)
    assert names["__getattr__"]("Workspace") is Workspace
    assert callable(names["open"])
    with pytest.raises(AttributeError, match="has no attribute 'opne'"):
        names["__getattr__"]("opne")


ENTRY = """
class Shop:
    in_date_order = True

    def __init__(self, options, context):
        self.options = options

    def extract(self, query, customer, dates):
        for day in dates:
            yield day, {"customer": customer.id, "query": query.name}
"""


def test_a_source_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_source.py").write_text(ENTRY)
    about = tmp_path / "shop_source-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-source\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[penstock.sources]\nshop = shop_source:Shop\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    made = make_source(SourceSettings(name="mine", kind="shop", options={}), RunContext(new_run_id()))
    day = date(2024, 6, 9)
    found = list(made.extract(builders.query("orders"), Customer(id="1"), [day]))
    assert found == [(day, {"customer": "1", "query": "orders"})]
