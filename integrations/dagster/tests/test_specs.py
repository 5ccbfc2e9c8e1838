"""Asset specs from a workspace."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from penstock.client import Client

from conftest import Site
from penstock_dagster import penstock_asset_specs
from servers import api_server, last_days, write_workspace


def test_every_table_is_an_asset_with_one_partition_a_day(site: Site, client: Client) -> None:
    specs = penstock_asset_specs(client)
    assert [spec.key.path for spec in specs] == [["demo", "campaign_daily"], ["demo", "keyword_daily"]]
    for spec in specs:
        assert spec.partitions_def is not None
        assert spec.partitions_def.get_partition_keys() == site.days
    metadata = specs[0].metadata
    assert metadata["penstock/table"] == "demo.campaign_daily"
    assert metadata["penstock/schema_version"] == "v1"
    assert metadata["penstock/console"].value == f"{site.url}/tables/demo.campaign_daily"
    assert [column.name for column in metadata["dagster/column_schema"].columns] == [
        "campaign_id",
        "clicks",
        "impressions",
    ]
    dg.Definitions.validate_loadable(dg.Definitions(assets=specs))


def test_a_day_ends_in_the_given_time_zone(site: Site, client: Client) -> None:
    [spec] = penstock_asset_specs(client, tables=["demo.keyword_daily"], key_prefix=["ads"], time_zone="Asia/Tokyo")
    assert spec.key.path == ["ads", "demo", "keyword_daily"]
    days = spec.partitions_def
    assert isinstance(days, dg.TimeWindowPartitionsDefinition)
    assert (days.timezone, days.get_first_partition_key()) == ("Asia/Tokyo", site.days[0])


def test_an_unknown_table_is_refused_with_the_known_ones(client: Client) -> None:
    with pytest.raises(ValueError, match=r"unknown tables: demo.nothing \(tables of the workspace: demo.campaign_"):
        penstock_asset_specs(client, tables=["demo.nothing"])


def test_a_model_depends_on_the_days_of_its_inputs(tmp_path: Path) -> None:
    days = last_days(9)
    (tmp_path / "week.sql").write_text(
        "SELECT logical_date, sum(clicks) AS clicks FROM demo.campaign_daily GROUP BY logical_date"
    )
    model = {"sql": "week.sql", "depends_on": ["demo.campaign_daily"], "needs": "7 days"}
    folder = write_workspace(tmp_path, days, [], models={"week": model})
    with api_server(folder) as url, Client(url) as client:
        specs = penstock_asset_specs(client)
    assert [spec.key.path[-1] for spec in specs] == ["campaign_daily", "keyword_daily", "week"]
    [dependency] = specs[2].deps
    assert dependency.asset_key == specs[0].key
    graph = dg.Definitions(assets=specs).resolve_asset_graph()
    for day, inputs in ((days[8], days[2:9]), (days[1], days[0:2])):  # days before the first one are left out
        upstream = dependency.partition_mapping.get_upstream_mapped_partitions_result_for_partitions(  # type: ignore[union-attr]
            specs[2].partitions_def.empty_subset().with_partition_keys([day]),  # type: ignore[union-attr]
            specs[2].partitions_def,
            graph.get(specs[0].key).partitions_def,  # type: ignore[arg-type]
        )
        assert list(upstream.partitions_subset.get_partition_keys()) == inputs
