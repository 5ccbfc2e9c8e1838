"""Lineage, one hop: neighbours of tables, and recorded inputs and outputs of partitions."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from penstock.app import table_lineage
from penstock.app.table_lineage import all_tables
from penstock.partition import AttemptKey, PartitionKey
from penstock.state.inputs import InputReader, InputStore, RecordedInput, RecordedOutput
from penstock.state.records import Consumed
from support import builders
from support.api import served
from support.builders import BACKENDS, Actors, accepted
from support.page_text import links_of, shown, text_of
from support.partition_pages import MODEL, PartitionHouse, filled
from support.workspaces import key, open_at, write_workspace


@pytest.fixture(scope="module")
def house() -> Iterator[PartitionHouse]:
    with builders.quick_folder() as folder:
        made = filled(Path(folder) / "ws")
        yield made
        made.workspace.close()


@pytest.fixture(scope="module")
def pages(house: PartitionHouse) -> Iterator[TestClient]:
    with served(house.workspace) as client:
        yield client


def lineage(partition: PartitionKey) -> str:
    return f"/lineage?key={quote(str(partition), safe='')}"


def test_the_index_lists_every_table_with_its_neighbours(pages: TestClient) -> None:
    page = shown(pages, "/lineage")
    assert {"/lineage?table=demo.campaign_daily", "/lineage?table=models.spend"} <= links_of(page)
    rows = [text_of(row) for row in re.findall(r"<tr>(.*?)</tr>", page, re.S)]
    assert "demo.campaign_daily query source demo models.spend" in rows
    assert "models.spend model demo.campaign_daily –" in rows


def test_a_table_has_its_inputs_and_outputs(pages: TestClient) -> None:
    text = text_of(shown(pages, "/lineage?table=demo.campaign_daily"))
    assert "Reads source demo → Query demo.campaign_daily" in text
    assert "Is read by models.spend" in text
    text = text_of(shown(pages, "/lineage?table=models.spend"))
    assert "Reads demo.campaign_daily → Model models.spend" in text
    assert "Is read by no model" in text


def test_a_partition_of_a_model_lists_the_runs_that_it_was_derived_from(
    pages: TestClient, house: PartitionHouse
) -> None:
    attempts = house.workspace.context.state.attempts(key(1))
    first, trusted = attempts[-1].run_id, attempts[1].run_id
    page = shown(pages, lineage(MODEL))
    rows = [text_of(row) for row in re.findall(r"<tr>(.*?)</tr>", page, re.S)]
    assert f"{key(1)} {first} another run is trusted {trusted}" in rows
    assert f"{key(2)} {first} trusted" in rows
    assert "9 partitions of demo.campaign_daily" in text_of(page)
    assert lineage(key(1)) in links_of(page)


def test_a_partition_of_a_query_lists_the_derived_runs_that_read_it(pages: TestClient, house: PartitionHouse) -> None:
    first = house.workspace.context.state.attempts(key(1))[-1].run_id
    [derived] = house.workspace.context.state.attempts(MODEL)
    page = shown(pages, lineage(key(1)))
    rows = [text_of(row) for row in re.findall(r"<tr>(.*?)</tr>", page, re.S)]
    assert f"{MODEL} {derived.run_id} {first} trusted" in rows
    assert f"/partitions/{key(1)}/raw" in links_of(page)


def test_partitions_without_lineage_say_so(pages: TestClient) -> None:
    assert "No derived run has read this partition" in shown(pages, lineage(key(9)))
    page = shown(pages, lineage(MODEL._replace(logical_date=key(1, "2024-06-10").logical_date)))
    assert "No inputs are recorded" in page
    assert "penstock run models/all/spend/2024-06-10" in page


UNKNOWN = {
    "table=x.y": "unknown table x.y",
    "table=%3Cscript%3Ealert(1)": "unknown table <script>alert(1)",
    "key=demo": "demo",
    "key=demo/999/campaign_daily/2024-06-09": "999",
    "key=demo/1000000001/nothing/2024-06-09": "nothing",
    "key=models/all/nothing/2024-06-09": "nothing",
}


@pytest.mark.parametrize("asked", UNKNOWN)
def test_unknown_tables_and_partitions_are_not_found(pages: TestClient, asked: str) -> None:
    assert UNKNOWN[asked] in html.unescape(shown(pages, f"/lineage?{asked}", 404))


def test_a_model_of_a_model_is_read_through_its_input(tmp_path: Path) -> None:
    code = "SELECT logical_date, 1 AS one FROM {}"
    models = {
        "a": {"code": code.format("demo.campaign_daily"), "depends_on": ["demo.campaign_daily"]},
        "b": {"code": code.format("models.a"), "depends_on": ["models.a", "demo.campaign_daily"]},
    }
    workspace = open_at(write_workspace(tmp_path, models=models))
    found = {one.table: (one.source, one.inputs, one.outputs) for one in all_tables(workspace.context)}
    assert found == {
        "demo.campaign_daily": ("demo", (), ("models.a", "models.b")),
        "models.a": (None, ("demo.campaign_daily",), ("models.b",)),
        "models.b": (None, ("demo.campaign_daily", "models.a"), ()),
    }
    workspace.close()


def test_a_workspace_without_models_has_a_page(tmp_path: Path) -> None:
    workspace = open_at(write_workspace(tmp_path))
    with served(workspace) as pages:
        assert "demo.campaign_daily" in shown(pages, "/lineage")
    workspace.close()


def test_long_lists_are_cut_and_counted(house: PartitionHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_lineage, "LISTED", 1)
    found = table_lineage.lineage_of_partition(house.workspace.context, MODEL)
    assert ([one.key for one in found.inputs], found.inputs_total) == ([key(1)], 2)


# --- the store --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=BACKENDS)
def actors(request: pytest.FixtureRequest) -> Iterator[Actors]:
    with builders.quick_folder() as folder:
        url = lambda: str(request.getfixturevalue("postgres_url"))  # noqa: E731
        database = builders.migrated(builders.open_database(request.param, folder, url))
        yield Actors.on(database)
        database.close()


def derived(actors: Actors, name: str, *inputs: AttemptKey) -> AttemptKey:
    attempt = actors.issue_one(MODEL._replace(query_name=name))
    InputStore(actors.database).record({attempt: [Consumed(*one, f"content-{one.run_id}") for one in inputs]})
    assert actors.validator.judge([accepted(attempt, actors.token)]).applied == [attempt]
    return attempt


def test_recorded_inputs_name_the_run_that_is_trusted_now(actors: Actors) -> None:
    old, other = actors.accept(builders.key(1)), actors.accept(builders.key(2))
    spend = derived(actors, "spend", old, other)
    new = actors.accept(old.partition)
    reader = InputReader(actors.database)
    expected = [
        RecordedInput(old.partition, old.run_id, new.run_id),
        RecordedInput(other.partition, other.run_id, other.run_id),
    ]
    assert reader.inputs_of(spend, 10) == (expected, 2)
    assert reader.inputs_of(spend, 1) == (expected[:1], 2)
    assert reader.inputs_of(old, 10) == ([], 0)
    actors.demote(other.partition)
    assert reader.inputs_of(spend, 10)[0][1] == RecordedInput(other.partition, other.run_id, None)


def test_recorded_outputs_begin_with_those_that_are_trusted(actors: Actors) -> None:
    one = actors.accept(builders.key(1))
    first = derived(actors, "spend", one)
    second = derived(actors, "spend", one)
    total = derived(actors, "total", one)
    reader = InputReader(actors.database)
    expected = [
        RecordedOutput(second.partition, second.run_id, one.run_id, True),
        RecordedOutput(total.partition, total.run_id, one.run_id, True),
        RecordedOutput(first.partition, first.run_id, one.run_id, False),
    ]
    assert reader.outputs_of(one.partition, 10) == (expected, 3)
    assert reader.outputs_of(one.partition, 2) == (expected[:2], 3)
    assert reader.outputs_of(total.partition, 10) == ([], 0)
