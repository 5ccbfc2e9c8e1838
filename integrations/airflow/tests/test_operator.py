"""The operator: how it fails, what it cancels, and which order it follows."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from dags import Dags, Finished
from servers import REJECTED, SLOW, TABLE, Site, penstock, serving


def write_operator(
    dags: Dags, code: str = "", kind: str = "PenstockRunOperator", options: str = "", **arguments: Any
) -> Path:
    """A DAG with an operator alone. `code` precedes it; `options` are arguments in Python, the others are values."""
    given = {"poll_interval": 0.3, **arguments}
    body = f"""
from datetime import timedelta
from airflow.sdk import DAG
from penstock_airflow.assets import table_asset
from penstock_airflow.operators import PenstockRunOperator
{code}
with DAG("fetches", schedule=None):
    {kind}(task_id="fetch", {options} **{given!r})
"""
    return dags.write("fetches", body)


def run_operator(dags: Dags, **arguments: Any) -> Finished:
    return dags.run("fetches", write_operator(dags, **arguments))


def requeue(site: Site) -> None:
    """Make the rejected partition due again; its rows are still wrong."""
    with site.client() as client:
        plan = client.preview("retry", {"keys": [REJECTED]}, reason="source fixed")
        assert client.apply(plan["token"])["result"]["affected"] == 1


@pytest.mark.parametrize("deferrable", [False, True], ids=["poll", "defer"])
def test_rejected_partitions_fail_the_task_only_if_it_says_so(
    dags: Dags, connection: Site, capfd: pytest.CaptureFixture[str], deferrable: bool
) -> None:
    requeue(connection)
    done = run_operator(dags, selection={"keys": [REJECTED]}, deferrable=deferrable)
    assert done.tasks == {"fetch": "success"}
    assert done.xcom("fetch")["counts"]["rejected"] == 1
    requeue(connection)
    done = run_operator(dags, selection={"keys": [REJECTED]}, deferrable=deferrable, fail_on_rejected=True)
    assert done.tasks == {"fetch": "failed"}
    assert "1 partitions were rejected by their checks" in capfd.readouterr().out


def test_an_order_that_has_nothing_to_do_emits_no_event(dags: Dags, connection: Site) -> None:
    outlets = f"outlets=[table_asset({TABLE!r})],"
    done = run_operator(dags, options=outlets, selection={"queries": ["campaign_daily"]})
    assert done.tasks == {"fetch": "success"}
    assert done.xcom("fetch")["counts"]["planned"] == 0
    assert done.asset_events() == []


def test_a_selection_that_names_an_unknown_query_is_refused_with_the_known_ones(
    dags: Dags, connection: Site, capfd: pytest.CaptureFixture[str]
) -> None:
    known = len(connection.orders())
    assert run_operator(dags, selection={"queries": ["campaigns"]}).tasks == {"fetch": "failed"}
    assert "campaign_daily" in capfd.readouterr().out.partition("AirflowFailException: ")[2]
    assert len(connection.orders()) == known


def test_a_viewer_may_not_order_a_run(
    dags: Dags, site: Site, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with site.client() as client:
        token = client.create_token("looks", "viewer")
    monkeypatch.setenv("AIRFLOW_CONN_PENSTOCK_DEFAULT", site.connection(password=token))
    assert run_operator(dags).tasks == {"fetch": "failed"}
    log = capfd.readouterr().out
    assert "connection penstock_default: " in log
    assert "(AccessDenied). Use a token with the role in the message" in log


@pytest.mark.parametrize("deferrable", [False, True], ids=["poll", "defer"])
def test_the_task_fails_with_the_error_of_its_order(
    dags: Dags,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    deferrable: bool,
) -> None:
    with serving(tmp_path / "ads") as site:
        monkeypatch.setenv("AIRFLOW_CONN_PENSTOCK_DEFAULT", site.connection())

        def execute_without_the_customer() -> None:
            site.order_after(0, "queued")
            file = site.folder / "penstock.yaml"
            file.write_text("".join(line for line in file.open() if 'id: "1000000002"' not in line))
            penstock(site.folder, "control", "tick")

        thread = threading.Thread(target=execute_without_the_customer)
        thread.start()
        try:
            done = run_operator(dags, selection={"customers": ["1000000002"]}, deferrable=deferrable)
        finally:
            thread.join()
        [order] = site.orders()
    log = capfd.readouterr().out
    assert done.tasks == {"fetch": "failed"}
    assert order["state"] == "failed"
    assert f"AirflowException: order {order['order_id']} failed: {order['error']}" in log
    assert "no control loop was ever started: start `penstock control serve`" in log


@pytest.mark.parametrize("deferrable", [False, True], ids=["poll", "defer"])
def test_a_task_that_exceeds_its_time_limit_cancels_its_order(
    dags: Dags, quiet_connection: Site, deferrable: bool
) -> None:
    known = len(quiet_connection.orders())
    limit = "execution_timeout=timedelta(seconds=3),"
    assert run_operator(dags, options=limit, deferrable=deferrable).tasks == {"fetch": "failed"}
    orders = quiet_connection.orders()
    assert [order["state"] for order in orders[: len(orders) - known]] == ["cancelled"]


def test_the_next_try_follows_the_order_of_a_lost_worker(dags: Dags, connection: Site) -> None:
    loses_its_worker = """
class LosesItsWorker(PenstockRunOperator):
    def _follow(self, client, order):
        from airflow.sdk import get_current_context

        if get_current_context()["ti"].try_number == 1:
            raise RuntimeError("the worker is lost")
        return super()._follow(client, order)
"""
    known = len(connection.orders())
    done = run_operator(
        dags,
        code=loses_its_worker,
        kind="LosesItsWorker",
        options="retries=1, retry_delay=timedelta(0),",
        selection={"keys": [SLOW]},
        reprocess=True,
    )
    assert done.tasks == {"fetch": "success"}
    orders = connection.orders()
    assert [order["order_id"] for order in orders[: len(orders) - known]] == [done.xcom("fetch")["order_id"]]


def test_the_next_try_after_a_failure_places_a_new_order(dags: Dags, connection: Site) -> None:
    requeue(connection)
    known = len(connection.orders())
    done = run_operator(
        dags,
        options="retries=1, retry_delay=timedelta(0),",
        selection={"keys": [REJECTED]},
        fail_on_rejected=True,
    )
    assert done.tasks == {"fetch": "success"}
    orders = connection.orders()
    second, first = orders[: len(orders) - known]
    assert (first["result"]["counts"]["rejected"], second["result"]["counts"]["planned"]) == (1, 0)
    assert done.xcom("fetch")["order_id"] == second["order_id"]
