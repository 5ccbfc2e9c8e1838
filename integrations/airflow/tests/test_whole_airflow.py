"""DAGs in a whole Airflow: deferred tasks in a real triggerer, tasks that a user ends, and DAGs that events start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from dags import example_of_the_page
from servers import FETCHED, GOOD_DAY, SLOW, TABLE, Site
from whole_airflow import Airflow, whole_airflow

OTHER_DAGS = f"""
with DAG("fetches_slowly", schedule=None):
    PenstockRunOperator(task_id="fetch", selection={{"keys": ["{SLOW}"]}}, reprocess=True, poll_interval=1)

with DAG("fetches_slowly_deferred", schedule=None):
    PenstockRunOperator(
        task_id="fetch", selection={{"keys": ["{SLOW}"]}}, reprocess=True, poll_interval=1, deferrable=True
    )

with DAG("waits", schedule=None):
    PenstockReadySensor(
        task_id="ready",
        tables=["{TABLE}"],
        date="{GOOD_DAY}",
        deferrable=True,
        poke_interval=1,
        timeout=300,
        outlets=[CAMPAIGNS],
    )
"""


@pytest.fixture(scope="module")
def airflow(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """An Airflow with the example of the page, for a day that exists and without a schedule, and some other DAGs."""
    example = example_of_the_page().replace("{{ macros.ds_add(ds, -1) }}", GOOD_DAY)
    example = example.replace('schedule="0 6 * * *", catchup=False', "schedule=None")
    with whole_airflow(tmp_path_factory.mktemp("whole"), site.connection(), example + OTHER_DAGS) as running:
        running.wait(lambda: running.get("/dags")["total_entries"] == 5)
        yield running


def runs_of_consumer(airflow: Airflow) -> list[tuple[str, str]]:
    """The runs of the second DAG of the example, in their order."""
    found = airflow.get("/dags/report_campaigns/dagRuns?order_by=id")["dag_runs"]
    return [(run["partition_key"], run["state"]) for run in found]


def test_the_example_of_the_page_starts_its_second_dag_for_the_day(airflow: Airflow, site: Site) -> None:
    known, before = len(site.orders()), len(runs_of_consumer(airflow))
    run = airflow.trigger("fetch_campaigns")
    airflow.wait(lambda: airflow.states(run)["ready"] in ("success", "failed", "upstream_failed"))
    assert airflow.states(run) == {"fetch": "success", "ready": "success"}
    wanted = [(GOOD_DAY, "success")]
    airflow.wait(lambda: runs_of_consumer(airflow)[before:] == wanted)
    orders = site.orders()
    [order] = orders[: len(orders) - known]
    links = airflow.get(f"{run}/taskInstances/fetch/links")["extra_links"]
    assert links == {"Penstock console": f"{site.url}/runs/orders/{order['order_id']}"}


def test_a_sensor_waits_in_the_triggerer_until_the_day_is_published(airflow: Airflow, site: Site) -> None:
    before = len(runs_of_consumer(airflow))
    with site.client() as client:
        plan = client.preview("demote", {"keys": [FETCHED]}, reason="wrong rows")
        client.apply(plan["token"])
        run = airflow.trigger("waits")
        airflow.wait(lambda: airflow.states(run) == {"ready": "deferred"})
        plan = client.preview("retry", {"keys": [FETCHED]}, reason="source fixed")
        client.apply(plan["token"])
        client.order_run({"keys": [FETCHED]})
    airflow.wait(lambda: airflow.states(run)["ready"] in ("success", "failed"))
    assert airflow.states(run) == {"ready": "success"}
    wanted = [(GOOD_DAY, "success")]
    airflow.wait(lambda: runs_of_consumer(airflow)[before:] == wanted)


@pytest.mark.parametrize(("dag_id", "state"), [("fetches_slowly", "running"), ("fetches_slowly_deferred", "deferred")])
def test_a_task_that_a_user_ends_cancels_its_order_and_the_run_of_it(
    airflow: Airflow, site: Site, dag_id: str, state: str
) -> None:
    known = len(site.orders())
    run = airflow.trigger(dag_id)
    order = site.order_after(known, "running", patience=120)
    airflow.wait(lambda: airflow.states(run) == {"fetch": state})
    airflow.mark_failed(run, "fetch")
    with site.client() as client:
        ended = client.wait_for_order(order["order_id"], patience=60, every=0.2)
        assert (ended["state"], ended["result"]["end"]) == ("cancelled", "cancelled")
        assert client.run(ended["run_id"])["cancel_requested_at"] is not None
    assert airflow.states(run) == {"fetch": "failed"}
