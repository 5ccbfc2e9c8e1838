"""DAGs that order runs and wait for tables, against a real server and a real control loop."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from dags import Dags, example_of_the_page, queued_partitions
from servers import BAD_DAY, GOOD_DAY, TABLE, Site

URI = f"penstock://penstock_default/{TABLE}"

FETCH_AND_WAIT = f"""
    from airflow.sdk import DAG
    from penstock_airflow.assets import table_asset
    from penstock_airflow.operators import PenstockRunOperator
    from penstock_airflow.sensors import PenstockReadySensor

    with DAG("fetch_and_wait", schedule=None) as dag:
        fetch = PenstockRunOperator(
            task_id="fetch",
            selection={{"queries": ["campaign_daily"], "since": "{GOOD_DAY}", "until": "{BAD_DAY}"}},
            reprocess=True,
            deferrable=DEFERRABLE,
            poll_interval=0.5,
            outlets=[table_asset("{TABLE}"), table_asset("demo.slow_daily")],
        )
        ready = PenstockReadySensor(
            task_id="ready", tables=["{TABLE}"], date="{GOOD_DAY}", deferrable=True, poke_interval=1, timeout=60
        )
        fetch >> ready
"""


@pytest.mark.parametrize("deferrable", [False, True], ids=["poll", "defer"])
def test_a_dag_orders_a_run_and_emits_an_event_for_each_published_day(
    dags: Dags, connection: Site, deferrable: bool
) -> None:
    path = dags.write("fetch_and_wait", FETCH_AND_WAIT.replace("DEFERRABLE", str(deferrable)))
    done = dags.run("fetch_and_wait", path)
    assert (done.state, done.tasks) == ("success", {"fetch": "success", "ready": "success"})
    result = done.xcom("fetch")
    assert (result["end"], result["counts"]["accepted"], result["counts"]["rejected"]) == ("done", 3, 0)
    with connection.client() as client:
        order = client.show_order(result["order_id"])
    assert (order["state"], order["run_id"], order["actor"]) == ("succeeded", result["run_id"], "airflow")
    assert order["reason"] == f"Airflow: fetch_and_wait, {done.run_id}"
    facts = {"order_id": result["order_id"], "run_id": result["run_id"]}
    assert done.asset_events() == [(URI, GOOD_DAY, facts), (URI, BAD_DAY, facts)]
    page = f"{connection.url}/runs/orders/{result['order_id']}"
    assert done.xcom("fetch", "_link_PenstockConsoleLink") == page
    assert done.xcom("ready")["tables"][0]["available"] == 2


def test_the_example_of_the_page_runs(dags: Dags, connection: Site) -> None:
    path = dags.write("example", example_of_the_page())
    done = dags.run("fetch_campaigns", path, logical_date=datetime(2024, 6, 2, tzinfo=UTC))
    assert done.tasks == {"fetch": "success", "ready": "success"}
    assert done.asset_events() == [(URI, GOOD_DAY, {"require": "95%"})]
    assert queued_partitions("report_campaigns") == [GOOD_DAY]
