"""The public Python names: `penstock.open`, and the methods of a workspace."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.app import Workspace
from penstock.config.settings import Customer, SourceSettings
from penstock.errors import UsageError
from penstock.partition import new_run_id
from penstock.source.protocol import RunContext
from penstock.source.registry import make_source
from support import builders
from support.cli import in_process
from support.harness import Harness
from support.workspaces import key

TABLE = "demo.campaign_daily"


@pytest.fixture(scope="module")
def house() -> Iterator[Harness]:
    """Three days of two customers, published."""
    with builders.quick_folder() as folder:
        made = Harness(Path(folder))
        days = ("2024-06-09", "2024-06-10", "2024-06-11")
        made.deliver({key(number, day): 10 * number + at for number in (1, 2) for at, day in enumerate(days)})
        made.publish()
        yield made
        made.workspace.context.database.close()


@pytest.fixture
def ws(house: Harness) -> Iterator[Workspace]:
    (house.folder / "below" / "it").mkdir(parents=True, exist_ok=True)
    found = penstock.open(str(house.folder / "below" / "it"))
    yield found
    found.context.database.close()


def clicks(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(row["clicks"] for row in rows)


def test_a_table_is_read_by_days_inclusive_in_every_shape(ws: Workspace) -> None:
    read: Any = ws.read(TABLE, since="2024-06-09", until="2024-06-10")
    rows = read.arrow().to_pylist()
    assert clicks(rows) == sorted([10, 11, 20, 21] * 3)
    assert {str(row["logical_date"]) for row in rows} == {"2024-06-09", "2024-06-10"}
    assert clicks(read.polars().to_dicts()) == clicks(rows)
    assert clicks(read.pandas().to_dict("records")) == clicks(rows)
    assert clicks(pa.Table.from_batches(read.batches(), schema=read.schema).to_pylist()) == clicks(rows)
    relation = read.duckdb()
    assert clicks([dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]) == clicks(rows)


def test_an_explanation_prints_as_the_command_shows_it(ws: Workspace, house: Harness) -> None:
    shown = in_process("why", str(key(1)), workspace=house.folder)
    found = ws.partition(str(key(1))).why()
    assert str(found) == repr(found) == shown.stdout.rstrip("\n")


def test_readiness_is_asked_for_a_day_and_by_a_rule(ws: Workspace) -> None:
    one = key(1).customer_id
    assert ws.ready(TABLE, date="2024-06-09", require="2") is True
    assert ws.ready(TABLE, date="2024-06-09", require="all") is False
    assert ws.ready(TABLE, date="2024-06-09", require="all", customers=(one,)) is True


@pytest.fixture(params=["open", "reader"])
def asked(request: pytest.FixtureRequest, house: Harness) -> Iterator[Any]:
    """A workspace and its reader: both have the same methods."""
    found = getattr(penstock, request.param)(str(house.folder))
    yield found
    found.close()


def customers_of(read: Any) -> set[str]:
    return set(read.arrow()["customer_id"].to_pylist())


def test_one_customer_is_named_by_text_or_by_a_list(asked: Any) -> None:
    one, two = key(1).customer_id, key(2).customer_id
    for filters in ({"customers": one}, {"customers": [one]}, {"customer": one}, {"customer": "100-000-0001"}):
        assert customers_of(asked.read(TABLE, **filters)) == {one}, filters
        assert asked.ready(TABLE, date="2024-06-09", **filters), filters
        assert [day.expected for day in asked.coverage(TABLE, date="2024-06-09", **filters)] == [1], filters
    assert customers_of(asked.read(TABLE, customers=(one, two))) == {one, two}
    assert customers_of(asked.read(TABLE)) == customers_of(asked.read(TABLE, customers=None)) == {one, two}
    relations = asked.data if isinstance(asked, Workspace) else asked
    assert customers_of(relations.vouched(TABLE, customers=one)) == {one}


@pytest.mark.parametrize("method", ["read", "ready", "coverage"])
def test_a_misspelt_filter_is_refused_instead_of_selecting_everything(asked: Any, method: str) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'custmer'"):
        getattr(asked, method)(TABLE, custmer="1000000001")


REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    ({"customers": ["typo"]}, ["--customer", "typo"]),
    ({"customers": "typo"}, ["--customer", "typo"]),
    ({"customer": ""}, ["--customer", ""]),
    ({"since": "2024-06-10", "until": date(2024, 6, 9)}, ["--since", "2024-06-10", "--until", "2024-06-09"]),
    ({"date": "2024-06-10", "since": "2024-06-09"}, ["--date", "2024-06-10", "--since", "2024-06-09"]),
    ({"date": "2024-06-10", "until": "2024-06-10"}, ["--date", "2024-06-10", "--until", "2024-06-10"]),
    ({"since": "2024-6-1"}, ["--since", "2024-6-1"]),
]


@pytest.mark.parametrize(("filters", "options"), REFUSED)
def test_filters_that_commands_refuse_are_refused_with_the_same_message(
    asked: Any, house: Harness, filters: dict[str, Any], options: list[str]
) -> None:
    said = in_process("read", TABLE, *options, workspace=house.folder)
    assert said == in_process("ready", TABLE, *options, workspace=house.folder)
    assert said.code == 2
    for ask in (asked.read, asked.coverage, asked.ready, lambda *a, **o: asked.wait_for(*a, patience=0, **o)):
        with pytest.raises(UsageError) as refused:
            ask(TABLE, **filters)
        assert said.stderr == f"penstock: {refused.value}\n"


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"since": datetime(2024, 6, 9, 12)}, "since 2024-06-09 12:00:00 is a date with a time: use a date"),  # noqa: DTZ001
        ({"date": 20240609}, "date 20240609 is not a date: use a date, or text such as 2024-06-01"),
        ({"customers": 1000000001}, "customer 1000000001 is not text: write the id in quotes"),
        ({"customers": [1000000001]}, "customer 1000000001 is not text: write the id in quotes"),
        ({"customer": "a", "customers": ["b"]}, "customer and customers are the same filter: use one of them"),
    ],
)
def test_filters_that_only_python_can_write_are_refused(asked: Any, filters: dict[str, Any], message: str) -> None:
    for ask in (asked.read, asked.coverage, asked.ready, lambda *a, **o: asked.wait_for(*a, patience=0, **o)):
        with pytest.raises(UsageError) as refused:
            ask(TABLE, **filters)
        assert str(refused.value).startswith(message)


def test_a_rule_may_be_a_number(asked: Any) -> None:
    for require, expected in ((1, True), (2, True), (3, False), ("3", False)):
        assert asked.ready(TABLE, date="2024-06-09", require=require) is expected
    assert [day.available for day in asked.wait_for(TABLE, date="2024-06-09", require=2, patience=60)] == [2]
    for wrong in (0, -1, True, 0.5, "²", "101%", "9" * 5000):
        with pytest.raises(UsageError, match=f"--require '{wrong}' is unknown: use all, any, a number, or a share"):
            asked.ready(TABLE, date="2024-06-09", require=wrong)


def test_patience_is_a_timedelta_seconds_or_text(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    # In this module only: threads of other libraries in this process sleep, too.
    clock = SimpleNamespace(monotonic=lambda: sum(waited), sleep=waited.append)
    monkeypatch.setattr("penstock.warehouse.readiness.time", clock)
    for patience, seconds in ((timedelta(seconds=90), 90), (90, 90), (1.5, 1.5), ("90s", 90), ("10m", 600), (0, 0)):
        waited.clear()
        assert [day.available for day in asked.wait_for(TABLE, date="2024-06-09", patience=patience)] == [2]
        assert sum(waited) == pytest.approx(seconds)
    for wrong in ("soon", "", None, float("inf"), float("nan")):
        with pytest.raises(UsageError, match=r"is not a (duration: write 30s|length of time: use a timedelta)"):
            asked.wait_for(TABLE, date="2024-06-09", patience=wrong)


def test_why_explains_the_status_of_a_partition(ws: Workspace) -> None:
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
