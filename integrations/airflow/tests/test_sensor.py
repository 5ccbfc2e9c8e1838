"""The sensor: what it waits for, and what it reports."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest
from airflow.sdk._shared.module_loading import import_string
from dags import Dags, Finished
from penstock_airflow.triggers import PenstockOrderTrigger, PenstockReadyTrigger
from servers import BAD_DAY, FETCHED, GOOD_DAY, REJECTED, TABLE, Site


@dataclass
class Logs:
    """What Airflow logged: tasks and triggers write to stdout, the runner of DAGs to a logger of the test."""

    capture: pytest.CaptureFixture[str]
    records: pytest.LogCaptureFixture

    def text(self) -> str:
        return self.capture.readouterr().out + self.records.text

    def wait_for_deferral(self) -> None:
        deadline = time.monotonic() + 60
        while "running trigger in line" not in self.records.text and time.monotonic() < deadline:
            time.sleep(0.1)


@pytest.fixture
def logs(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Logs:
    return Logs(capfd, caplog)


def run_sensor(dags: Dags, outlets: str = "", **arguments: Any) -> Finished:
    """A DAG with a sensor alone."""
    given = {"tables": [TABLE], "poke_interval": 0.5, "timeout": 2, **arguments}
    path = dags.write(
        "waits",
        f"""
        from airflow.sdk import DAG
        from penstock_airflow.assets import table_asset
        from penstock_airflow.sensors import PenstockReadySensor

        with DAG("waits", schedule=None):
            PenstockReadySensor(task_id="ready", outlets=[{outlets}], **{given!r})
        """,
    )
    return dags.run("waits", path)


@pytest.mark.parametrize("deferrable", [False, True], ids=["poke", "defer"])
def test_a_sensor_that_times_out_reports_what_is_missing_by_cause(
    dags: Dags, connection: Site, logs: Logs, deferrable: bool
) -> None:
    done = run_sensor(dags, date=BAD_DAY, deferrable=deferrable)
    log = logs.text()
    assert done.tasks == {"ready": "failed"}
    assert ("running trigger in line" in log) is deferrable
    assert "not ready after 2 s:" in log
    assert f"{TABLE} {BAD_DAY}: 1 of 2 partitions, missing: 1 failed check, for example {REJECTED}" in log
    assert done.asset_events() == []


def test_a_sensor_with_soft_fail_is_skipped(dags: Dags, connection: Site) -> None:
    assert run_sensor(dags, date=BAD_DAY, deferrable=True, soft_fail=True).tasks == {"ready": "skipped"}


@pytest.mark.parametrize("require", ["any", 1, "50%"])
def test_the_rule_decides_how_much_may_be_missing(dags: Dags, connection: Site, require: str | int) -> None:
    done = run_sensor(dags, date=BAD_DAY, require=require)
    assert done.tasks == {"ready": "success"}
    assert done.xcom("ready") == {
        "ready": True,
        "require": str(require),
        "tables": [{"table": TABLE, "ready": True, "expected": 2, "available": 1, "since": BAD_DAY, "until": BAD_DAY}],
    }


def test_customers_that_are_not_named_do_not_count(dags: Dags, connection: Site) -> None:
    assert run_sensor(dags, since=GOOD_DAY, customers=["1000000001"]).tasks == {"ready": "success"}
    assert run_sensor(dags, since=GOOD_DAY).tasks == {"ready": "failed"}


def test_a_deferred_sensor_ends_when_the_day_is_published(dags: Dags, connection: Site, logs: Logs) -> None:
    with connection.client() as client:
        plan = client.preview("demote", {"keys": [FETCHED]}, reason="wrong rows")
        assert client.apply(plan["token"])["result"]["affected"] == 1

    def publish_later() -> None:
        logs.wait_for_deferral()
        with connection.client() as client:
            plan = client.preview("retry", {"keys": [FETCHED]}, reason="source fixed")
            client.apply(plan["token"])
            client.order_run({"keys": [FETCHED]})

    thread = threading.Thread(target=publish_later)
    thread.start()
    try:
        done = run_sensor(dags, date=GOOD_DAY, deferrable=True, timeout=120, outlets=f"table_asset({TABLE!r})")
    finally:
        thread.join()
    log = logs.text()
    assert done.tasks == {"ready": "success"}
    assert (
        f"{TABLE} {GOOD_DAY}: 1 of 2 partitions, missing: 1 failed check, for example {FETCHED} (demoted by kim" in log
    )
    assert "running trigger in line" in log
    assert done.asset_events() == [(f"penstock://penstock_default/{TABLE}", GOOD_DAY, {"require": "all"})]


@pytest.mark.parametrize("deferrable", [False, True], ids=["poke", "defer"])
def test_a_server_that_does_not_respond_is_asked_until_the_timeout(
    dags: Dags,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    logs: Logs,
    deferrable: bool,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_PENSTOCK_DEFAULT", site.connection(port=1))
    assert run_sensor(dags, date=GOOD_DAY, deferrable=deferrable).tasks == {"ready": "failed"}
    log = logs.text()
    assert log.count("http://127.0.0.1:1 does not respond") > 2
    assert "not ready after 2 s:" in log


@pytest.mark.parametrize("deferrable", [False, True], ids=["poke", "defer"])
def test_a_wrong_token_fails_at_once_and_names_the_connection_and_the_remedy(
    dags: Dags,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    logs: Logs,
    deferrable: bool,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_PENSTOCK_DEFAULT", site.connection(password="penstock_0000_wrong"))
    assert run_sensor(dags, date=GOOD_DAY, deferrable=deferrable, timeout=3600).tasks == {"ready": "failed"}
    log = logs.text()
    assert "AirflowFailException: connection penstock_default: " in log
    assert "(NotAuthenticated). Send `Authorization: Bearer TOKEN` with a token of `penstock tokens create`" in log
    assert "penstock_0000_wrong" not in log


def test_a_token_that_is_revoked_during_the_wait_ends_it(
    dags: Dags, connection: Site, monkeypatch: pytest.MonkeyPatch, logs: Logs
) -> None:
    with connection.client() as client:
        monkeypatch.setenv(
            "AIRFLOW_CONN_PENSTOCK_DEFAULT", connection.connection(password=client.create_token("leaves", "viewer"))
        )

        def revoke_later() -> None:
            logs.wait_for_deferral()
            client.revoke_token("leaves")

        thread = threading.Thread(target=revoke_later)
        thread.start()
        assert run_sensor(dags, date=BAD_DAY, deferrable=True, timeout=3600).tasks == {"ready": "failed"}
        thread.join()
    assert "(NotAuthenticated)" in logs.text()


def test_an_unknown_table_is_refused_with_the_known_ones(dags: Dags, connection: Site, logs: Logs) -> None:
    assert run_sensor(dags, tables=["demo.campaigns"], date=GOOD_DAY).tasks == {"ready": "failed"}
    assert TABLE in logs.text().partition("AirflowFailException: ")[2]


def test_asset_events_need_a_day(dags: Dags, connection: Site) -> None:
    with pytest.raises(AssertionError, match="asset events have a day as partition key: set date"):
        run_sensor(dags, since=GOOD_DAY, outlets=f"table_asset({TABLE!r})")


READY_QUESTION = {
    "tables": [TABLE],
    "require": "95%",
    "date": None,
    "since": GOOD_DAY,
    "until": None,
    "customers": ["1000000001"],
}
POLLING = {"penstock_conn_id": "ads", "poll_interval": 30, "deadline": 1_750_000_000.5}


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (PenstockReadyTrigger, {"question": READY_QUESTION, **POLLING}),
        (PenstockOrderTrigger, {"order_id": "01J0000000000000000000000A", **POLLING}),
    ],
)
def test_a_trigger_is_the_same_after_it_was_stored(
    kind: type[PenstockReadyTrigger | PenstockOrderTrigger], arguments: dict[str, Any]
) -> None:
    path, stored = kind(**arguments).serialize()
    assert stored == arguments
    restored = import_string(path)(**json.loads(json.dumps(stored)))
    assert type(restored) is kind
    assert restored.serialize() == (path, arguments)
