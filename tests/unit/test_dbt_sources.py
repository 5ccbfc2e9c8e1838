"""`penstock dbt sources`: the content of the file, and which files it replaces."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml

from penstock.contract.schema import arrow_type, duckdb_type
from penstock.control.deadlines import Deadline, day_end
from penstock.views.dbt import dbt_sources
from penstock.warehouse.readiness import Rule
from support.cli import Ended, in_process
from support.harness import Harness
from support.workspaces import customer_id, key, open_at, write_workspace

DAY = key(1, "2024-06-09")
NEW = key(2, "2024-06-10")


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Harness]:
    """A workspace with one published partition of v1."""
    made = Harness(tmp_path / "ws")
    made.deliver({DAY: 7})
    made.publish()
    yield made
    made.workspace.close()


def sources(folder: Path, output: Path, *options: str, code: int = 0) -> Ended:
    ended = in_process("dbt", "sources", "--output", str(output), *options, workspace=folder)
    assert ended.code == code, ended.stderr
    return ended


def tables(output: Path) -> dict[str, dict[str, Any]]:
    """The tables of the file by `source.name`."""
    written = yaml.safe_load(output.read_text())
    return {f"{source['name']}.{one['name']}": one for source in written["sources"] for one in source["tables"]}


def test_the_file_describes_a_published_table(house: Harness, tmp_path: Path) -> None:
    output = tmp_path / "sources.yml"
    sources(house.folder, output)
    lake = house.workspace.context.lake.url
    assert yaml.safe_load(output.read_text()) == {
        "version": 2,
        "sources": [
            {
                "name": "demo",
                "description": "Tables of demo in the Penstock workspace acme/ads.",
                "tables": [
                    {
                        "name": "campaign_daily",
                        "description": "The accepted rows of demo.campaign_daily, one run of each customer and day.",
                        "config": {
                            "meta": {
                                "penstock": {"table": "demo.campaign_daily", "schema_version": "v1"},
                                "external_location": "(SELECT * EXCLUDE (_month), 'v1' AS schema_version FROM"
                                f" delta_scan('{lake}/warehouse/demo/campaign_daily/v1'))",
                            },
                            "loaded_at_query": "SELECT max(published_at) FROM"
                            f" read_parquet('{lake}/projections/partition_status.parquet')"
                            " WHERE asset_key = 'demo.campaign_daily' AND available",
                        },
                        "columns": [
                            {
                                "name": "customer_id",
                                "data_type": "VARCHAR",
                                "description": "The customer of the partition; `all` in a model per date.",
                            },
                            {
                                "name": "logical_date",
                                "data_type": "DATE",
                                "description": "The day of the partition, as the source defines it.",
                            },
                            {"name": "campaign_id", "data_type": "BIGINT"},
                            {"name": "clicks", "data_type": "BIGINT"},
                            {
                                "name": "_run_id",
                                "data_type": "VARCHAR",
                                "description": "The run that the rows of the partition come from.",
                            },
                            {
                                "name": "schema_version",
                                "data_type": "VARCHAR",
                                "description": "The schema version of the row.",
                            },
                        ],
                    }
                ],
            }
        ],
    }


def test_the_columns_are_those_of_a_read(house: Harness, tmp_path: Path) -> None:
    output = tmp_path / "sources.yml"
    sources(house.folder, output)
    found = [column["name"] for column in tables(output)["demo.campaign_daily"]["columns"]]
    assert found == house.workspace.read("demo.campaign_daily").schema.names


def test_the_query_of_freshness_returns_the_newest_publication(house: Harness, tmp_path: Path) -> None:
    output = tmp_path / "sources.yml"
    sources(house.folder, output)
    query = tables(output)["demo.campaign_daily"]["config"]["loaded_at_query"]
    house.workspace.status.advance()
    house.deliver({NEW: 1})
    house.publish()
    house.workspace.status.advance()
    published = house.workspace.sql("SELECT published_at FROM system.partition_status").read_all()
    times = published["published_at"].to_pylist()
    assert len(set(times)) == 2
    assert duckdb.execute(query).fetchall() == [(max(times),)]
    house.workspace.operations.demote(NEW, reason="wrong")
    house.workspace.status.advance()
    assert duckdb.execute(query).fetchall() == [(min(times),)], "rows that were withdrawn are not fresh"


def test_versions_that_fit_are_read_as_one_table(house: Harness, tmp_path: Path) -> None:
    newer = house.under("v2")
    newer.deliver({NEW: 1})
    newer.publish()
    output = tmp_path / "sources.yml"
    sources(newer.folder, output)
    table, lake = tables(output)["demo.campaign_daily"], house.workspace.context.lake.url
    assert table["config"]["meta"]["penstock"]["schema_version"] == "v2"
    assert table["config"]["meta"]["external_location"] == "(" + " UNION ALL BY NAME ".join(
        f"SELECT * EXCLUDE (_month), '{version}' AS schema_version FROM"
        f" delta_scan('{lake}/warehouse/demo/campaign_daily/{version}')"
        for version in ("v1", "v2")
    ) + ")"  # fmt: skip
    names = [column["name"] for column in table["columns"]]
    assert sorted(names) == sorted(newer.workspace.read("demo.campaign_daily").schema.names)
    newer.workspace.close()


def test_a_version_that_does_not_fit_is_omitted_and_named(house: Harness, tmp_path: Path) -> None:
    newer = house.under("text")
    newer.deliver({NEW: 1})
    newer.publish()
    output = tmp_path / "sources.yml"
    ended = sources(newer.folder, output)
    location = tables(output)["demo.campaign_daily"]["config"]["meta"]["external_location"]
    assert "campaign_daily/text'" in location
    assert "campaign_daily/v1'" not in location
    assert "without the rows of schema version v1, whose columns do not fit those of text" in ended.stdout
    [item] = sources(newer.folder, output, "--json").document["items"]
    assert (item["schema_versions"], item["omitted_versions"]) == (["text"], ["v1"])
    newer.workspace.close()


def test_a_table_without_rows_and_a_model_are_described_from_the_workspace_file(tmp_path: Path) -> None:
    model = {"code": "SELECT 1 AS one", "depends_on": ["demo.campaign_daily"], "per": "date"}
    folder = write_workspace(tmp_path / "ws", models={"daily": model})
    open_at(folder).close()
    output = tmp_path / "sources.yml"
    ended = sources(folder, output)
    assert "models.daily has no published rows yet" in ended.stdout
    found = tables(output)
    assert set(found) == {"demo.campaign_daily", "models.daily"}
    assert "Derived from demo.campaign_daily" in found["models.daily"]["description"]
    assert "/warehouse/models/daily/v1'" in found["models.daily"]["config"]["meta"]["external_location"]
    columns = {column["name"]: column for column in found["demo.campaign_daily"]["columns"]}
    assert columns["campaign_id"]["description"] == "Never null."
    assert columns["conversions"]["data_type"] == "DOUBLE"
    assert [item["published"] for item in sources(folder, output, "--json").document["items"]] == [False, False]


def test_thresholds_come_from_max_lag_and_the_deadline(tmp_path: Path) -> None:
    def freshness(**declared: Any) -> Any:
        folder = write_workspace(tmp_path / "ws", query={"freshness": declared} if declared else None)
        ws = open_at(folder)
        [source] = dbt_sources(ws.dbt.tables(), "/lake", "acme/ads", {"UTC"})["sources"]
        ws.close()
        return source["tables"][0]["config"].get("freshness")

    assert freshness() is None
    assert freshness(max_lag="36h") == {"warn_after": {"count": 36, "period": "hour"}}
    assert freshness(max_lag="2d") == {"warn_after": {"count": 2, "period": "day"}}
    assert freshness(max_lag="90s") == {"warn_after": {"count": 2, "period": "minute"}}
    assert freshness(complete_by="09:30") == {"error_after": {"count": 33 * 60 + 30, "period": "minute"}}
    both = freshness(max_lag="12h", complete_by="09:00", complete_after_days=2)
    assert both == {"warn_after": {"count": 12, "period": "hour"}, "error_after": {"count": 57, "period": "hour"}}


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Los_Angeles"])
@pytest.mark.parametrize("customers", [("UTC",), ("Asia/Tokyo", "America/New_York"), ("Europe/Berlin",), ()])
def test_no_day_that_keeps_its_deadline_exceeds_the_threshold(zone: str, customers: tuple[str, ...]) -> None:
    deadline = Deadline(time(9), zone, Rule("all"), 1)
    longest = deadline.longest_pause(customers)
    days = [date(2026, 1, 1) + timedelta(days=n) for n in range(365)]
    pauses = [
        deadline.moment(day + timedelta(days=1)) - day_end(day, customer)
        for day in days
        for customer in customers or (zone,)
    ]
    assert max(pauses) <= longest
    assert longest <= max(max(pauses), timedelta(hours=33)) + timedelta(hours=2)


@pytest.mark.parametrize(
    "kind", ["long", "double", "string", "boolean", "date", "timestamp", "decimal(12,2)", "array<struct<order: long>>"]
)
def test_types_are_those_of_duckdb(kind: str) -> None:
    import pyarrow as pa

    rows = pa.table({"a": pa.array([None], arrow_type(kind))})
    connection = duckdb.connect()
    connection.register("rows", rows)
    connection.execute(f"CREATE TABLE t (a {duckdb_type(kind)})")
    described = [connection.execute(f"DESCRIBE {name}").fetchall()[0][1] for name in ("rows", "t")]
    assert described[0] == described[1]


def test_the_file_is_written_only_when_it_changes(house: Harness, tmp_path: Path) -> None:
    output = tmp_path / "sources.yml"
    first = sources(house.folder, output, "--json").document
    assert (first["changed"], first["output"], first["total"]) == (True, str(output), 1)
    written = output.stat()
    assert sources(house.folder, output, "--json").document["changed"] is False
    assert "unchanged" in sources(house.folder, output).stdout
    assert (output.stat().st_mtime_ns, output.stat().st_ino) == (written.st_mtime_ns, written.st_ino)
    assert sources(house.folder, output, "--name-prefix", "penstock_", "--json").document["changed"] is True
    assert set(tables(output)) == {"penstock_demo.campaign_daily"}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_file_of_somebody_else_is_replaced_only_by_force(house: Harness, tmp_path: Path) -> None:
    output = tmp_path / "sources.yml"
    output.write_text("version: 2\n")
    ended = sources(house.folder, output, code=2)
    assert "was not written by `penstock dbt sources`" in ended.stderr
    assert output.read_text() == "version: 2\n"
    sources(house.folder, output, "--force")
    assert set(tables(output)) == {"demo.campaign_daily"}


def test_a_file_that_was_edited_is_replaced_only_by_force(house: Harness, tmp_path: Path) -> None:
    output = tmp_path / "sources.yml"
    sources(house.folder, output)
    edited = output.read_text().replace("accepted rows", "best rows")
    output.write_text(edited)
    sources(house.folder, output, code=2)
    assert output.read_text() == edited
    sources(house.folder, output, "--force")
    assert "accepted rows" in output.read_text()


def test_the_address_of_the_lake_can_be_another_one_for_dbt(house: Harness, tmp_path: Path) -> None:
    output = tmp_path / "sources.yml"
    sources(house.folder, output, "--lake", "{{ env_var('LAKE') }}/")
    location = tables(output)["demo.campaign_daily"]["config"]["meta"]["external_location"]
    assert "delta_scan('{{ env_var('LAKE') }}/warehouse/demo/campaign_daily/v1')" in location
    sources(house.folder, output, "--lake", "/o'neil/lake")
    assert "'/o''neil/lake/warehouse" in output.read_text()


@pytest.mark.parametrize(("option", "value"), [("--name-prefix", "a b"), ("--lake", " "), ("--output", "/no/such/f")])
def test_a_value_that_cannot_be_used_is_refused(house: Harness, tmp_path: Path, option: str, value: str) -> None:
    ended = in_process("dbt", "sources", option, value, workspace=house.folder)
    assert ended.code == 2
    assert option in ended.stderr or value in ended.stderr
    assert not Path("sources.yml").exists()


def test_a_lake_whose_name_is_a_pattern_is_refused(tmp_path: Path) -> None:
    folder = write_workspace(tmp_path / "ws", lake=str(tmp_path / "lake[1]"))
    open_at(folder).close()
    ended = sources(folder, tmp_path / "sources.yml", code=2)
    assert "takes the name of the lake" in ended.stderr
    sources(folder, tmp_path / "sources.yml", "--lake", "/elsewhere")


def test_the_file_has_no_customer_and_no_date(house: Harness, tmp_path: Path) -> None:
    output = tmp_path / "sources.yml"
    sources(house.folder, output)
    assert customer_id(1) not in output.read_text()
    assert datetime.now(UTC).date().isoformat() not in output.read_text()
