"""The sensor follows the ledger: each changed table and day is reported once."""

from __future__ import annotations

import dagster as dg
import pytest
from penstock.client import Client

from conftest import Site
from penstock_dagster import PenstockResource, build_penstock_checks, build_penstock_sensor, penstock_asset_specs
from servers import CUSTOMERS, ROWS
from ticks import Ticks

ASSET = "demo/campaign_daily"


@pytest.fixture
def ticks(site: Site, client: Client, instance: dg.DagsterInstance) -> Ticks:
    specs = penstock_asset_specs(client, tables=["demo.campaign_daily"])
    return Ticks(build_penstock_sensor(specs, build_penstock_checks(specs)), instance, site.resource)


def executed(client: Client, order: dict[str, object]) -> str:
    """The run of an order, when it is over."""
    done = client.wait_for_order(str(order["order_id"]), patience=120, every=0.2)
    assert done["state"] == "succeeded", done
    return str(done["run_id"])


def test_publications_are_reported_once_by_day_and_not_by_customer(site: Site, ticks: Ticks) -> None:
    first = ticks.evaluate()
    assert first.materialized == [(ASSET, day) for day in site.days]
    facts = first.materialization(site.faulty_day)
    counts = {name: facts[name] for name in ("rows", "partitions", "partitions_available", "partitions_expected")}
    assert counts == {"rows": ROWS, "partitions": 1, "partitions_available": 1, "partitions_expected": 2}
    assert facts["last_run"] == f"{site.url}/runs/{facts['runs'][-1]}"
    whole = first.materialization(site.days[0])
    assert (whole["dagster/partition_row_count"], whole["partitions_available"]) == (2 * ROWS, 2)
    assert ticks.instance.get_materialized_partitions(dg.AssetKey(["demo", "campaign_daily"])) == set(site.days)

    second = ticks.evaluate()
    assert second.events == []
    assert second.skip_message == "nothing was published or rejected since the last evaluation"


def test_days_that_dagster_stored_before_it_died_are_not_reported_again(ticks: Ticks) -> None:
    ticks.dies_before_cursor = True
    assert len(ticks.evaluate().materialized) == 3
    ticks.dies_before_cursor = False
    again = ticks.evaluate()
    assert again.materialized == []
    assert ticks.evaluate().events == []


def test_small_evaluations_report_the_same_days(site: Site, client: Client, instance: dg.DagsterInstance) -> None:
    specs = penstock_asset_specs(client, tables=["demo.campaign_daily"])
    ticks = Ticks(build_penstock_sensor(specs, days_per_evaluation=1), instance, site.resource)
    found = []
    while (tick := ticks.evaluate()).events:
        assert len(set(tick.materialized)) == 1
        found += tick.materialized
    assert set(found) == {(ASSET, day) for day in site.days}
    published = client.events(kind="PartitionPublished")
    assert len(found) <= sum("/campaign_daily/" in event["payload"]["partition_key"] for event in published)


def test_a_sensor_begins_after_a_position(site: Site, client: Client, instance: dg.DagsterInstance) -> None:
    *_, last = client.events()
    sensor = build_penstock_sensor(penstock_asset_specs(client), begin_after=last["position"])
    assert Ticks(sensor, instance, site.resource).evaluate().events == []


def test_a_restated_day_is_reported_again(site: Site, client: Client, ticks: Ticks) -> None:
    ticks.evaluate()
    key = f"demo/{CUSTOMERS[0]}/campaign_daily/{site.days[2]}"
    run = executed(client, client.order_run({"keys": [key]}, reprocess=True, reason="restated"))
    tick = ticks.evaluate()
    assert tick.materialized == [(ASSET, site.days[2])]
    facts = tick.materialization(site.days[2])
    assert (facts["runs"], facts["partitions"], facts["rows"]) == ([run], 1, ROWS)
    assert "dagster/partition_row_count" not in facts  # of one customer only
    assert ticks.evaluate().events == []


def test_a_demotion_is_an_observation_and_a_failed_day(site: Site, client: Client, ticks: Ticks) -> None:
    ticks.evaluate()
    key, day = f"demo/{CUSTOMERS[0]}/campaign_daily/{site.days[0]}", site.days[0]
    plan = client.preview("demote", {"keys": [key]}, reason="wrong account")
    client.apply(plan["token"])
    executed(client, client.order_run({"keys": [f"demo/{CUSTOMERS[1]}/campaign_daily/{day}"]}, reprocess=True))
    tick = ticks.evaluate()
    [observation] = tick.observations
    assert observation.partition == day
    assert observation.metadata["partitions_available"].value == 1
    assert observation.description is not None
    assert f"1 of 2 partitions are published; 1 of 2 partitions failed, for example {key}" in observation.description
    assert "was demoted" in observation.description
    [check] = tick.checks
    assert check.metadata["failed_days"].value == {site.faulty_day: 1, day: 1}

    client.apply(client.preview("retry", {"keys": [key]}, reason="fetched again")["token"])
    executed(client, client.order_run({"keys": [key]}))
    healed = ticks.evaluate()
    assert healed.materialized == [(ASSET, day)]
    assert healed.checks[0].metadata["failed_days"].value == {site.faulty_day: 1}


def test_a_wrong_token_fails_the_evaluation_with_the_remedy(site: Site, ticks: Ticks) -> None:
    ticks.resource = PenstockResource(url=site.url, token="wrong")
    with pytest.raises(dg.Failure) as error:
        ticks.evaluate()
    assert str(error.value.description).startswith(
        f"{site.url}: the token is not valid: it is unknown or revoked. Send"
    )
    assert ticks.cursor is None
