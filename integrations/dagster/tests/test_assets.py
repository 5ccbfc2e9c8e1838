"""Assets that order runs, executed by Dagster against a control loop."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from penstock.client import Client

from conftest import Site
from penstock_dagster import PenstockResource, build_penstock_assets, build_penstock_sensor, penstock_asset_specs
from servers import CUSTOMERS, api_server, create_token, last_days, process, write_workspace
from ticks import Ticks


def materialized(
    site: Site,
    client: Client,
    instance: dg.DagsterInstance,
    table: str,
    *days: str,
    resource: PenstockResource | None = None,
    require: str = "all",
    **config: Any,
) -> dg.ExecuteInProcessResult:
    """A Dagster run of the asset of a table for one day or a range of days."""
    [asset] = build_penstock_assets(penstock_asset_specs(client, tables=[table]), every=0.2, require=require)
    definitions = dg.Definitions(assets=[asset], resources={"penstock": resource or site.resource})
    job = definitions.resolve_implicit_global_asset_job_def()
    tags = {"dagster/asset_partition_range_start": days[0], "dagster/asset_partition_range_end": days[-1]}
    return job.execute_in_process(
        instance=instance,
        partition_key=days[0] if len(days) == 1 else None,
        tags=tags if len(days) > 1 else None,
        run_config={"ops": {asset.op.name: {"config": config}}} if config else None,
        raise_on_error=False,
    )


def failure(done: dg.ExecuteInProcessResult) -> str:
    """The message of the only failed step."""
    assert not done.success
    [event] = [event for event in done.all_events if event.is_step_failure]
    error = event.step_failure_data.error
    assert error is not None
    return f"{error.message} {error.cause.message if error.cause else ''}"


def test_a_dagster_run_orders_the_missing_partitions_of_its_day(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    """The order waits until a control loop starts, which executes orders before its first round."""
    days = last_days(2)
    folder = write_workspace(tmp_path, days, [])
    token = create_token(folder, "dagster", "operator")
    with api_server(folder) as url, Client(url, token) as client, ExitStack() as processes:
        ordered = threading.Thread(target=start_loop_after_order, args=(folder, url, token, processes))
        ordered.start()
        done = materialized(Site(folder, url, token, days), client, instance, "demo.keyword_daily", days[0])
        ordered.join()
        assert done.success
        [event] = done.get_asset_materialization_events()
        facts: dict[str, Any] = {name: value.value for name, value in event.materialization.metadata.items()}
        assert (event.partition, facts["accepted"], facts["rejected"]) == (days[0], 2, 0)
        assert (facts["partitions_available"], facts["partitions_expected"]) == (2, 2)
        [order] = client.orders()
        assert facts["order"] == f"{url}/runs/orders/{order['order_id']}"
        assert (order["actor"], order["reason"]) == ("dagster", f"Dagster run {done.run_id}")
        run = [event["payload"] for event in client.events(run=order["run_id"], kind="PartitionPublished")]
        assert [one["partition_key"] for one in run] == [f"demo/{c}/keyword_daily/{days[0]}" for c in CUSTOMERS]


def start_loop_after_order(folder: Path, url: str, token: str, processes: ExitStack) -> None:
    deadline = time.monotonic() + 60
    with Client(url, token) as client:
        while not list(client.orders()) and time.monotonic() < deadline:
            time.sleep(0.1)
    processes.enter_context(process(folder, "control", "serve"))


def test_the_sensor_does_not_report_publications_that_a_dagster_run_ordered(
    site: Site, client: Client, instance: dg.DagsterInstance
) -> None:
    *_, last = client.events()
    done = materialized(site, client, instance, "demo.keyword_daily", site.days[0], reprocess=True)
    assert done.success
    specs = penstock_asset_specs(client, tables=["demo.keyword_daily"])
    sensor = build_penstock_sensor(specs, begin_after=last["position"])
    assert Ticks(sensor, instance, site.resource).evaluate().materialized == []
    with dg.DagsterInstance.ephemeral() as other:  # without the Dagster run, the publications are news
        assert len(Ticks(sensor, other, site.resource).evaluate().materialized) == 1


def test_a_range_of_days_is_one_order(site: Site, client: Client, instance: dg.DagsterInstance) -> None:
    before = len(list(client.orders()))
    done = materialized(site, client, instance, "demo.keyword_daily", *site.days[1:], reprocess=True)
    assert done.success
    events = done.get_asset_materialization_events()
    assert [event.partition for event in events] == site.days[1:]
    assert {event.materialization.metadata["accepted"].value for event in events} == {4}
    assert len(list(client.orders())) == before + 1


def test_a_day_with_a_rejected_partition_fails_by_the_rule(
    site: Site, client: Client, instance: dg.DagsterInstance
) -> None:
    done = materialized(site, client, instance, "demo.campaign_daily", site.faulty_day)
    text = failure(done)
    assert "demo.campaign_daily: 1 of 2 partitions are published, all required" in text
    assert site.faulty_key in text
    assert materialized(site, client, instance, "demo.campaign_daily", site.faulty_day, require="any").success


def test_a_wrong_token_is_a_clear_error(site: Site, client: Client, instance: dg.DagsterInstance) -> None:
    wrong = PenstockResource(url=site.url, token="wrong")
    text = failure(materialized(site, client, instance, "demo.keyword_daily", site.days[0], resource=wrong))
    assert f"{site.url}: the token is not valid: it is unknown or revoked. Send `Authorization: Bearer TOKEN`" in text


def test_a_viewer_may_not_order(site: Site, client: Client, instance: dg.DagsterInstance) -> None:
    token = create_token(site.folder, "looks", "viewer")
    viewer = PenstockResource(url=site.url, token=token)
    text = failure(materialized(site, client, instance, "demo.keyword_daily", site.days[0], resource=viewer))
    assert "operator" in text
    assert "penstock tokens create" in text


def test_an_order_that_no_loop_takes_says_so_and_is_cancelled_by_an_interruption(tmp_path: Path) -> None:
    folder = write_workspace(tmp_path, last_days(1), [])
    with api_server(folder) as url, Client(url) as client:
        penstock = PenstockResource(url=url)
        selection = {"customers": [CUSTOMERS[0]]}
        with pytest.raises(dg.Failure) as late:
            penstock.order_run(selection, idempotency_key="one", patience=0.5, every=0.1)
        assert "is queued after 0.5 s and goes on: no control loop was ever started" in str(late.value.description)

        timer = threading.Timer(1, lambda: signal.raise_signal(signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            penstock.order_run(selection, idempotency_key="one", patience=60, every=0.1)
        [order] = client.orders()  # the second call followed the first order
        assert order["state"] == "cancelled"
        with pytest.raises(dg.Failure, match="is cancelled"):
            penstock.order_run(selection, idempotency_key="one")
    with pytest.raises(dg.Failure, match="does not respond") as down:
        penstock.order_run(selection)
    assert down.value.allow_retries
