"""Unusual models: odd SQL, odd rows, odd times. No row is lost, and no wrong row is trusted."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.app import Workspace
from penstock.control.select import Selection
from penstock.errors import ErrorClass
from penstock.flow.derive import Deriver
from penstock.flow.heartbeat import Heartbeat
from penstock.partition import PartitionKey, new_run_id
from penstock.state.audited import AuditedAct
from penstock.state.control import AuditEntry, ControlStore
from penstock.state.inputs import InputReader, InputStore
from penstock.state.records import Consumed
from penstock.state.worker import WorkerStore
from support.workspaces import CAMPAIGNS, NOW, Silent, customer_id, key, open_at, run, write_workspace

D9, D10 = date(2024, 6, 9), date(2024, 6, 10)
CLICKS = "SELECT logical_date, sum(clicks) AS clicks, count(*) AS rows_ FROM demo.campaign_daily GROUP BY ALL"


def model(code: str, **more: Any) -> dict[str, Any]:
    return {"code": code, "depends_on": ["demo.campaign_daily"], **more}


def slice_of(day: date, name: str = "made", customer: str = "all") -> PartitionKey:
    return PartitionKey("models", customer, name, day)


def made(ws: Workspace, *columns: str) -> list[tuple[Any, ...]]:
    found = ws.data.vouched("models.made").arrow().to_pylist()
    return sorted(tuple(row[name] for name in columns) for row in found)


def planned(ws: Workspace) -> dict[str, str]:
    return {str(item.key): item.reason for item in ws.plans.preview(Selection()).items}


def entry() -> AuditEntry:
    return AuditEntry("test", AuditedAct.STATE_RETRY, {}, {})


@pytest.mark.parametrize(
    "code",
    [
        "-- don't read this\nSELECT logical_date, 5 AS x FROM demo.campaign_daily -- it's the table\nLIMIT 100;",
        "/* don't\n read it */ SELECT logical_date, 5 AS x FROM Demo.Campaign_Daily; -- done",
        r"SELECT logical_date, if('it\'s' = '', 0, 5) AS x FROM demo.campaign_daily WHERE campaign_name <> 'it''s'",
        'SELECT logical_date, 5 AS x FROM demo.campaign_daily WHERE campaign_name <> "a \\" b"',
        "SELECT logical_date, 5 AS x FROM `demo`.`campaign_daily`",
        "SELECT demo.campaign_daily.logical_date, 5 AS x FROM demo.campaign_daily",
        "WITH campaign_daily AS (SELECT * FROM demo.campaign_daily) SELECT logical_date, 5 AS x FROM campaign_daily",
        "SELECT c.logical_date, 5 AS x FROM demo.campaign_daily AS c JOIN penstock.partitions USING (logical_date)",
        "SELECT logical_date, length('-- /*') AS x FROM demo.campaign_daily /* -- */",
    ],
)
def test_tables_are_found_in_any_sql(tmp_path: Path, spark: Any, code: str) -> None:
    ws = open_at(write_workspace(tmp_path, models={"made": model(code)}))
    assert run(ws, spark).rejected == 0
    assert made(ws, "logical_date", "x") == [(D9, 5)] * 5 + [(D10, 5)] * 5


def test_rows_that_belong_to_no_slice_do_not_vanish(tmp_path: Path, spark: Any) -> None:
    code = "SELECT nullif(logical_date, DATE '2024-06-09') AS logical_date, clicks FROM demo.campaign_daily"
    ws = open_at(write_workspace(tmp_path, models={"made": model(code)}))
    summary = run(ws, spark)
    [failure] = summary.failures
    assert (failure.key, failure.error_class) == (slice_of(D9), "data")
    assert "logical_date" in failure.message
    assert "NULL" in failure.message
    assert {day for (day,) in made(ws, "logical_date")} == {D10}


@pytest.mark.parametrize(
    ("code", "more", "words"),
    [
        ("SELECT DISTINCT logical_date FROM demo.campaign_daily", {}, "no column"),
        (
            "SELECT logical_date, bigint(customer_id) AS customer_id, clicks FROM demo.campaign_daily",
            {"per": "customer,date"},
            "customer_id must be a string, it is bigint",
        ),
        ("SELECT logical_date, NULL AS x FROM demo.campaign_daily", {}, "cast it"),
        ("SELECT logical_date, map('a', 1) AS x FROM demo.campaign_daily", {}, "cast it"),
        ("SELECT DATE '2024-06-09' AS logical_date, value FROM text.`/etc/passwd`", {}, "is a file"),
        (
            "SELECT logical_date, reflect('java.lang.System', 'getenv', 'HOME') AS x FROM demo.campaign_daily",
            {},
            "reflect",
        ),
        ("SELECT logical_date, clicks FROM demo.network_daily", {}, "unknown table demo.network_daily"),
        ("-- nothing yet", {}, "models.made"),
        ("SELECT logical_date, 1 AS x FROM demo.campaign_daily; SELECT 2", {}, "models.made"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    tmp_path: Path, spark: Any, code: str, more: dict[str, Any], words: str
) -> None:
    ws = open_at(write_workspace(tmp_path, models={"made": model(code, **more)}))
    refused = ws.models.learn_contracts(spark)
    assert "models.made" in refused["made"]
    assert words in refused["made"]


def test_all_types_go_through_unchanged(tmp_path: Path, spark: Any) -> None:
    code = """
        SELECT logical_date, CAST(1.25 AS DECIMAL(38, 10)) AS amount, TIMESTAMP '2024-06-09 23:59:59.123456' AS moment,
            DATE '0001-01-01' AS day, double('NaN') AS nothing, float(0.5) AS half, tinyint(-1) AS small,
            CAST(NULL AS STRING) AS word, true AS yes, '' AS empty
        FROM demo.campaign_daily LIMIT 1"""
    ws = open_at(write_workspace(tmp_path, query={"start_date": "2024-06-10"}, models={"made": model(code)}))
    assert run(ws, spark).rejected == 0
    [row] = made(ws, "amount", "moment", "day", "half", "small", "word", "yes", "empty")
    moment = datetime(2024, 6, 9, 23, 59, 59, 123456, tzinfo=UTC)
    assert row == (Decimal("1.25"), moment, date(1, 1, 1), 0.5, -1, None, True, "")


def test_an_input_that_comes_late_in_a_run_of_its_own_makes_the_slice_stale(tmp_path: Path, spark: Any) -> None:
    faults = [{"fault": "wrong_type", "customer": customer_id(2), "date": "2024-06-09"}]
    models = {"made": model(CLICKS, require="any")}
    run(open_at(write_workspace(tmp_path, customers=2, faults=faults, models=models)), spark)
    ws = open_at(write_workspace(tmp_path, customers=2, models={"made": model(CLICKS, require="any")}))
    assert made(ws, "logical_date", "rows_") == [(D9, 5), (D10, 10)]
    ws.operations.retry(Selection(keys=(key(2),)), without_raw=True, actor="test")
    assert run(ws, spark, key(2)).accepted == 1
    assert ws.status.board(Selection(source="models")).stale_reasons()["UPSTREAM_CHANGED"] == 1
    assert planned(ws) == {str(slice_of(D9)): "stale"}
    run(ws, spark)
    assert made(ws, "logical_date", "rows_") == [(D9, 10), (D10, 10)]
    assert planned(ws) == {}


def test_a_recheck_after_a_code_change_uses_the_columns_of_sparks_analysis(tmp_path: Path, spark: Any) -> None:
    run(open_at(write_workspace(tmp_path, models={"made": model(CLICKS)})), spark)
    ws = open_at(write_workspace(tmp_path, models={"made": model(CLICKS + " -- the same")}))
    assert len(made(ws, "clicks")) == 2
    found = ws.rechecks.run(Selection(source="models"), listener=Silent(), spark=spark)
    assert (found.examined, found.demoted) == (2, {})
    checks = [{"range": {"field": "clicks", "max": -1}}]
    ws = open_at(write_workspace(tmp_path, models={"made": model(CLICKS, checks=checks)}))
    assert set(ws.rechecks.run(Selection(source="models"), listener=Silent(), spark=spark).demoted) == {
        slice_of(D9),
        slice_of(D10),
    }


def test_a_slice_is_made_from_what_was_written_down_or_not_at_all(tmp_path: Path, spark: Any) -> None:
    ws = open_at(write_workspace(tmp_path, customers=2, models={"made": model(CLICKS, require="any")}))
    run(ws, spark)
    used = InputReader(ws.context.database).of_trusted("models.made", [slice_of(D9)])[slice_of(D9)]
    assert set(used.inputs) == {key(1), key(2)}

    # An attempt was begun while one customer could be read, and is taken up again when both can.
    token = WorkerStore(ws.context.database, ws.context.now).register()
    plan = ws.plans.preview(Selection(keys=(slice_of(D9),)), reprocess=True)
    [issued], _ = ControlStore(ws.context.database, ws.context.now).issue(new_run_id(), token, "1", plan.items)
    state = ws.context.state.state(key(1))
    assert state is not None
    assert state.current_run_id is not None
    only = [Consumed(key(1), state.current_run_id, used.inputs[key(1)])]
    assert InputStore(ws.context.database).record({issued.attempt: only}) == set()
    deriver = Deriver(ws.context.database, ws.context.versions, ws.context.contracts, ws.context.derived)
    [found] = deriver.derive(spark, [issued.attempt], lambda share: None)
    assert (found.ok, found.judged, found.error_class) == (False, False, ErrorClass.TRANSIENT)


def test_a_broken_day_does_not_break_its_neighbours_through_a_window_function(tmp_path: Path, spark: Any) -> None:
    code = """
        WITH c AS (SELECT logical_date, if(logical_date = DATE '2024-06-09', raise_error('bad'), clicks) AS clicks
                   FROM demo.campaign_daily)
        SELECT logical_date, rank() OVER (ORDER BY clicks) AS x FROM c"""
    ws = open_at(write_workspace(tmp_path, models={"made": model(code)}))
    summary = run(ws, spark)
    assert [failure.key for failure in summary.failures] == [slice_of(D9)]
    assert {day for (day,) in made(ws, "logical_date")} == {D10}


def chain() -> dict[str, Any]:
    """Per customer, per day with a window, per customer from both, and per day again, by a name that SQL keeps."""
    own = "SELECT logical_date, customer_id, sum(clicks) AS clicks FROM demo.campaign_daily GROUP BY ALL"
    whole = """
        SELECT p.logical_date, sum(c.clicks) AS clicks FROM penstock.partitions p
        JOIN demo.campaign_daily c ON c.logical_date BETWEEN date_sub(p.logical_date, 1) AND p.logical_date
        GROUP BY ALL"""
    share = """
        SELECT o.logical_date, o.customer_id, o.clicks, o.clicks / w.clicks AS share
        FROM models.own o JOIN models.whole w USING (logical_date)"""
    order = "SELECT logical_date, count(*) AS customers, sum(clicks) AS clicks FROM models.share GROUP BY ALL"
    return {
        "own": model(own, per="customer,date"),
        "whole": model(whole, needs="2 days"),
        "share": {"code": share, "depends_on": ["models.own", "models.whole"], "per": "customer,date"},
        "order": {"code": order, "depends_on": ["models.share"]},
    }


def changed(folder: Path, **sections: Any) -> Path:
    """The workspace with other sections."""
    file = folder / "penstock.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **sections}, sort_keys=False))
    return folder


def orders(ws: Workspace) -> dict[date, tuple[int, int]]:
    found = ws.data.vouched("models.order").arrow().to_pylist()
    return {row["logical_date"]: (row["customers"], row["clicks"]) for row in found}


def by_hand(ws: Workspace) -> dict[date, tuple[int, int]]:
    """The expected rows at the end of the chain."""
    found: dict[date, dict[str, int]] = {}
    for row in ws.data.vouched("demo.campaign_daily").arrow().to_pylist():
        clicks = found.setdefault(row["logical_date"], {})
        clicks[row["customer_id"]] = clicks.get(row["customer_id"], 0) + row["clicks"]
    return {day: (len(clicks), sum(clicks.values())) for day, clicks in found.items()}


def test_models_of_models_follow_customers_that_come_and_go_in_other_time_zones(tmp_path: Path, spark: Any) -> None:
    customers = [
        {"id": customer_id(1), "time_zone": "Pacific/Auckland"},
        {"id": customer_id(2), "time_zone": "America/Los_Angeles", "active_from": "2024-06-07"},
        {"id": customer_id(3), "active_to": "2024-06-08"},
        {"id": customer_id(4), "active_from": "2024-06-30"},
    ]
    query = {"start_date": "2024-06-05"}
    folder = changed(write_workspace(tmp_path, query=query, models=chain()), customers=customers)
    ws = open_at(folder, datetime(2024, 6, 11, 2, tzinfo=UTC))  # the 10th is over, but not in Los Angeles
    assert run(ws, spark).failures == []
    assert orders(ws) == {day: found for day, found in by_hand(ws).items() if day < D10}
    assert planned(ws) == {}

    # A partition in the middle is withdrawn and computed again: its downstream partitions follow, across its window.
    gone = slice_of(date(2024, 6, 8), "own", customer_id(1))
    assert ws.operations.demote(gone, reason="wrong", actor="test")
    assert planned(ws) == {}  # its downstream partitions wait
    ws.operations.retry(Selection(keys=(gone,)), without_raw=True, actor="test")
    assert planned(ws) == {
        str(gone): "requeued",
        str(slice_of(date(2024, 6, 8), "share", customer_id(1))): "stale",
        str(slice_of(date(2024, 6, 8), "order")): "stale",
    }
    assert run(ws, spark).failures == []
    for engine in ("embedded", "spark"):
        ws.ledger.rebuild(engine, spark)
        assert planned(ws) == {}
    assert ws.maintenance.verify([], lambda share: None, raw=True).wrong == {}


def test_rounds_that_are_smaller_than_the_inputs_of_a_day_make_every_day(tmp_path: Path, spark: Any) -> None:
    folder = changed(write_workspace(tmp_path, customers=4, models=chain()), control={"round": 3})
    ws = open_at(folder)
    with Heartbeat(WorkerStore(ws.context.database, ws.context.now)) as heart:
        while ws.rounds.tick(lambda: spark, heart.token, Silent())["planned"]:
            pass
    assert orders(ws) == by_hand(ws)
    assert len(orders(ws)) == 2
    assert planned(ws) == {}


@pytest.mark.parametrize(
    "bad",
    [model(CLICKS, checks=[{"expression": "nosuch > 1"}]), model("SELECT nosuch FROM demo.campaign_daily")],
    ids=["check", "code"],
)
def test_a_model_that_cannot_be_made_holds_up_no_source(tmp_path: Path, spark: Any, bad: dict[str, Any]) -> None:
    ws = open_at(write_workspace(tmp_path, models={"made": dict(bad)}))
    summary = run(ws, spark, key(1, "2024-06-09"), slice_of(date(2024, 6, 9)))
    assert (summary.accepted, summary.blocked) == (1, 1)
    with Heartbeat(WorkerStore(ws.context.database, ws.context.now)) as heart:
        facts = ws.rounds.tick(lambda: spark, heart.token, Silent())
    assert facts["accepted"] == 1
    assert facts["troubles"][0].startswith("models.made")


def test_a_window_reads_two_schema_versions_of_a_table(tmp_path: Path, spark: Any) -> None:
    code = """
        SELECT p.logical_date, count(c.conversions) AS conversions, count(DISTINCT c.schema_version) AS versions
        FROM penstock.partitions p
        JOIN demo.campaign_daily c ON c.logical_date BETWEEN date_sub(p.logical_date, 1) AND p.logical_date
        GROUP BY ALL"""
    run(open_at(write_workspace(tmp_path, models={"made": model(code, needs="2 days")})), spark)
    fewer = [field for field in CAMPAIGNS["fields"] if field["name"] != "conversions"]
    query = {"schema_version": "v2", "fields": fewer}
    folder = write_workspace(tmp_path, query=query, models={"made": model(code, needs="2 days")})
    ws = open_at(folder, NOW + timedelta(days=1))
    assert run(ws, spark).accepted == 2
    assert made(ws, "logical_date", "conversions", "versions")[-1] == (date(2024, 6, 11), 5, 2)


def test_a_query_that_every_day_breaks_is_not_tried_for_each_of_them(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.model._BROKEN_QUERIES", 3)
    code = "SELECT logical_date, if(clicks < 0, 1, raise_error('never')) AS x FROM demo.campaign_daily"
    ws = open_at(write_workspace(tmp_path, query={"start_date": "2024-06-07"}, models={"made": model(code)}))
    summary = run(ws, spark)
    assert (summary.rejected, summary.cancelled) == (1, 3)  # all four, the first two, the first
    assert set(planned(ws)) == {str(slice_of(date(2024, 6, day))) for day in (8, 9, 10)}
