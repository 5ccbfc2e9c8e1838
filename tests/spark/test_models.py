"""Derived tables: when partitions of models are computed, from which inputs, and when they are computed again."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.app import Workspace
from penstock.control.select import Selection
from penstock.errors import UsageError
from penstock.lifecycle import Outcome
from penstock.partition import PartitionKey
from penstock.state.inputs import InputReader
from support.cli import answer
from support.workspaces import NOW, customer_id, key, open_at, run, write_workspace

SPEND = "SELECT logical_date, sum(cost_micros) AS cost, count(*) AS rows_ FROM demo.campaign_daily GROUP BY ALL"
D9, D10 = date(2024, 6, 9), date(2024, 6, 10)


def spend(**more: Any) -> dict[str, Any]:
    return {"code": SPEND, "depends_on": ["demo.campaign_daily"], **more}


def slice_of(day: date, model: str = "spend", customer: str = "all") -> PartitionKey:
    return PartitionKey("models", customer, model, day)


def rows(ws: Workspace, table: str, *columns: str) -> list[tuple[Any, ...]]:
    found = ws.data.vouched(table).arrow().to_pylist()
    return sorted(tuple(row[name] for name in columns) for row in found)


def costs(ws: Workspace) -> dict[date, int]:
    """The expected rows of the model, computed by hand."""
    found: dict[date, int] = {}
    for row in ws.data.vouched("demo.campaign_daily").arrow().to_pylist():
        found[row["logical_date"]] = found.get(row["logical_date"], 0) + row["cost_micros"]
    return found


def plan(ws: Workspace, **chosen: Any) -> dict[str, str]:
    return {str(item.key): item.reason for item in ws.plans.preview(Selection(**chosen)).items}


def demote(ws: Workspace, partition: PartitionKey) -> None:
    assert ws.operations.demote(partition, reason="wrong", actor="test")


def test_a_model_is_made_in_the_run_that_brings_its_inputs(tmp_path: Path, spark: Any) -> None:
    ws = open_at(write_workspace(tmp_path, customers=3, models={"spend": spend()}))
    summary = run(ws, spark)
    assert (summary.planned, summary.accepted, summary.loaded) == (8, 8, 8)
    assert dict(rows(ws, "models.spend", "logical_date", "cost")) == costs(ws)
    assert run(ws, spark).planned == 0

    [made] = ws.context.state.attempts(slice_of(D9))
    assert made.outcome is Outcome.SUCCEEDED
    assert list(ws.raw.lines(slice_of(D9))) == [b'{"cost":%d,"rows_":15}' % costs(ws)[D9]]
    used = InputReader(ws.context.database).of_trusted("models.spend", [slice_of(D9)])[slice_of(D9)]
    assert set(used.inputs) == {key(1), key(2), key(3)}


def test_a_day_is_made_only_when_enough_of_its_inputs_can_be_read(tmp_path: Path, spark: Any) -> None:
    faults = [{"fault": "wrong_type", "customer": customer_id(1), "date": "2024-06-10"}]
    models = {"spend": spend(), "most": spend(require="60%"), "some": spend(require=3)}
    folder = write_workspace(tmp_path, customers=3, faults=faults, models=models)
    ws = open_at(folder)
    summary = run(ws, spark)
    assert summary.rejected == 1
    assert {name: [day for (day,) in rows(ws, f"models.{name}", "logical_date")] for name in models} == {
        "spend": [D9],
        "most": [D9, D10],
        "some": [D9],
    }
    assert rows(ws, "models.most", "logical_date", "rows_") == [(D9, 15), (D10, 10)]
    waiting = ws.plans.preview(Selection())
    assert (list(waiting.items), waiting.waiting) == ([], 2)

    # The late customer arrives: partitions that waited are computed, partitions without it are computed again.
    ws = open_at(write_workspace(tmp_path, customers=3, models={"spend": spend(), "most": spend(require="60%")}))
    ws.operations.retry(Selection(keys=(key(1, "2024-06-10"),)), without_raw=True, actor="test")
    assert plan(ws) == {
        str(key(1, "2024-06-10")): "requeued",
        str(slice_of(D10)): "missing",
        str(slice_of(D10, "most")): "refresh",
    }
    run(ws, spark)
    assert rows(ws, "models.most", "logical_date", "rows_") == [(D9, 15), (D10, 15)]
    assert rows(ws, "models.spend", "logical_date", "rows_") == [(D9, 15), (D10, 15)]


def two_deep() -> dict[str, Any]:
    twice = "SELECT logical_date, cost * 2 AS twice FROM models.spend"
    return {"spend": spend(), "total": {"code": twice, "depends_on": ["models.spend"]}}


def test_inputs_that_come_again_unchanged_make_no_work(tmp_path: Path, spark: Any) -> None:
    ws = open_at(write_workspace(tmp_path, customers=2, models=two_deep()))
    run(ws, spark)
    before = rows(ws, "models.total", "logical_date", "_run_id")
    assert run(ws, spark, key(1), key(2), reprocess=True).accepted == 2
    assert plan(ws) == {}

    folder = write_workspace(tmp_path, customers=2, query={"restate": {"days": 3}}, models=two_deep())
    later = open_at(folder, NOW + timedelta(days=1))
    restated = run(later, spark)
    assert restated.unchanged == 4  # two days of two models
    found = rows(later, "models.total", "logical_date", "_run_id")
    assert found == [*before, (date(2024, 6, 11), restated.run_id)]


def test_what_was_overtaken_is_stale_and_made_again_with_what_is_behind_it(tmp_path: Path, spark: Any) -> None:
    models = {
        "spend": spend(require="any"),
        "total": {"code": "SELECT logical_date, cost AS same FROM models.spend", "depends_on": ["models.spend"]},
    }
    ws = open_at(write_workspace(tmp_path, customers=2, models=models))
    first = run(ws, spark)
    demote(ws, key(2, "2024-06-10"))
    assert plan(ws) == {str(slice_of(D10)): "stale", str(slice_of(D10, "total")): "stale"}
    second = run(ws, spark)
    assert dict(rows(ws, "models.total", "logical_date", "same")) == costs(ws)
    assert dict(rows(ws, "models.total", "logical_date", "_run_id")) == {D9: first.run_id, D10: second.run_id}
    assert plan(ws) == {}


def test_a_model_without_refresh_stays_and_is_shown_as_stale(tmp_path: Path, spark: Any) -> None:
    ws = open_at(write_workspace(tmp_path, customers=2, models={"spend": spend(require="any", refresh=False)}))
    run(ws, spark)
    demote(ws, key(2, "2024-06-10"))
    assert plan(ws) == {}
    board = ws.status.board(Selection(source="models"))
    assert board.stale_reasons()["UPSTREAM_CHANGED"] == 1
    assert run(ws, spark, slice_of(D10), reprocess=True).accepted == 1
    assert dict(rows(ws, "models.spend", "logical_date", "cost")) == costs(ws)


def test_a_window_reaches_back_and_slices_of_customers_follow_their_own(tmp_path: Path, spark: Any) -> None:
    rolling = """
        SELECT p.logical_date, c.customer_id, sum(c.clicks) AS clicks, count(DISTINCT c.logical_date) AS days
        FROM penstock.partitions p
        JOIN demo.campaign_daily c ON c.customer_id = p.customer_id
            AND c.logical_date BETWEEN date_sub(p.logical_date, 2) AND p.logical_date
        GROUP BY ALL"""
    model = {"code": rolling, "depends_on": ["demo.campaign_daily"], "per": "customer,date", "needs": "3 days"}
    query = {"start_date": "2024-06-06"}
    ws = open_at(write_workspace(tmp_path, customers=2, query=query, models={"rolling": model}))
    run(ws, spark)
    one = customer_id(1)
    found = rows(ws, "models.rolling", "customer_id", "logical_date", "days")
    assert [(day.day, days) for who, day, days in found if who == one] == [(6, 1), (7, 2), (8, 3), (9, 3), (10, 3)]
    demote(ws, key(1, "2024-06-08"))
    planned = ws.plans.preview(Selection())
    assert (list(planned.items), planned.waiting) == ([], 3)  # three windows of one customer lack a day
    assert len(found) == 10


def test_a_model_may_be_a_python_function(tmp_path: Path, spark: Any) -> None:
    code = (
        "from pyspark.sql import functions as F\n\n\n"
        "def model(inputs, partitions):\n"
        "    rows = inputs['demo.campaign_daily'].join(partitions.select('logical_date'), 'logical_date')\n"
        "    return rows.groupBy('logical_date').agg(F.max('clicks').alias('most'))\n"
    )
    ws = open_at(write_workspace(tmp_path, models={"peak": {"code": code, "depends_on": ["demo.campaign_daily"]}}))
    run(ws, spark)
    clicks: dict[date, int] = {}
    for row in ws.data.vouched("demo.campaign_daily").arrow().to_pylist():
        clicks[row["logical_date"]] = max(clicks.get(row["logical_date"], 0), row["clicks"])
    assert dict(rows(ws, "models.peak", "logical_date", "most")) == clicks


def test_nested_columns_and_exact_numbers_are_kept(tmp_path: Path, spark: Any) -> None:
    code = """SELECT logical_date, sum(CAST(cost_micros AS DECIMAL(20, 0))) / 1000000 AS cost,
        timestamp(logical_date) AS at,
        collect_list(named_struct('campaign', campaign_id, 'clicks', clicks)) AS campaigns
        FROM demo.campaign_daily GROUP BY logical_date"""
    ws = open_at(write_workspace(tmp_path, models={"rich": {"code": code, "depends_on": ["demo.campaign_daily"]}}))
    assert run(ws, spark).accepted == 4
    for row in ws.data.vouched("models.rich").arrow().to_pylist():
        assert row["cost"] * 1_000_000 == costs(ws)[row["logical_date"]]
        assert sum(item["clicks"] for item in row["campaigns"]) > 0
        assert len(row["campaigns"]) == 5


def test_a_folder_may_have_a_name_that_engines_take_for_a_pattern(tmp_path: Path, spark: Any) -> None:
    ws = open_at(write_workspace(tmp_path / "w[1]*{a,b}", customers=2, models={"spend": spend()}))
    assert run(ws, spark).accepted == 6
    ws.status.projector.advance()
    assert ws.status.board(Selection()).counts([]) == [{"display": "materialized", "n": 6}]
    vouched = ws.data.vouched("models.spend")
    assert vouched.duckdb().aggregate("count(*)").fetchall() == [(2,)]
    assert vouched.spark(spark).count() == 2
    assert dict(rows(ws, "models.spend", "logical_date", "cost")) == costs(ws)


def test_a_slice_without_rows_is_a_slice(tmp_path: Path, spark: Any) -> None:
    code = "SELECT logical_date, clicks FROM demo.campaign_daily WHERE logical_date = DATE '2024-06-09'"
    ws = open_at(write_workspace(tmp_path, models={"some": {"code": code, "depends_on": ["demo.campaign_daily"]}}))
    summary = run(ws, spark)
    assert (summary.accepted, summary.rejected) == (4, 0)
    assert [ws.context.state.attempts(slice_of(day, "some"))[0].record_count for day in (D9, D10)] == [5, 0]


def test_rows_that_break_the_query_fail_their_own_day(tmp_path: Path, spark: Any) -> None:
    code = """SELECT logical_date, if(logical_date = DATE '2024-06-09', raise_error('nobody clicked'), clicks) AS x
        FROM demo.campaign_daily"""
    ws = open_at(write_workspace(tmp_path, models={"odd": {"code": code, "depends_on": ["demo.campaign_daily"]}}))
    summary = run(ws, spark)
    [failure] = summary.failures
    assert (failure.key, failure.error_class) == (slice_of(D9, "odd"), "data")
    assert "nobody clicked" in failure.message
    assert ws.context.state.attempts(slice_of(D10, "odd"))[0].outcome is Outcome.SUCCEEDED


def test_checks_of_a_model_reject_what_it_made(tmp_path: Path, spark: Any) -> None:
    checks = [{"range": {"field": "cost", "max": -1}}, {"expression": "rows_ < 3"}]
    ws = open_at(write_workspace(tmp_path, models={"spend": spend(checks=checks)}))
    summary = run(ws, spark)
    assert summary.rejected == 2
    [attempt] = ws.context.state.attempts(slice_of(D9))
    complaints = list(attempt.complaints or ())
    assert [complaint["check"] for complaint in complaints] == ["range(cost)", "expression(rows_ < 3)"]
    assert complaints[0]["example"].startswith('{"cost":')
    assert rows(ws, "models.spend", "cost") == []


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("SELECT logical_date, nosuch FROM demo.campaign_daily", "nosuch"),
        ("SELECT 1 AS x", "must have the column logical_date"),
        ("SELEC logical_date, 1 AS x FROM demo.campaign_daily", "the SQL is not valid"),
        ("  ", "there is no SELECT"),
        (
            "SELECT string(logical_date) AS logical_date, 1 AS x FROM demo.campaign_daily",
            "must be a date, it is string",
        ),
        ("SELECT logical_date, 1 AS x, 2 AS x FROM demo.campaign_daily", "the column x twice"),
        ("SELECT logical_date, 1 AS _run_id FROM demo.campaign_daily", "which is reserved"),
        ("SELECT logical_date, map(1, 2) AS x FROM demo.campaign_daily", "cannot be stored"),
        ("SELECT logical_date, 1 AS x FROM demo.other", "demo"),
        ("def model(inputs, partitions):\n    return nonsense\n", "NameError"),
        ("def model(inputs, partitions:\n", "SyntaxError"),
    ],
)
def test_a_definition_that_cannot_be_kept_is_refused(tmp_path: Path, spark: Any, code: str, words: str) -> None:
    ws = open_at(write_workspace(tmp_path, models={"bad": {"code": code, "depends_on": ["demo.campaign_daily"]}}))
    refused = ws.models.learn_contracts(spark)
    assert refused["bad"].startswith("models.bad")
    assert words in refused["bad"]


def test_a_broken_model_holds_up_itself_and_its_dependents_only(tmp_path: Path, spark: Any) -> None:
    """Its file is missing, Spark refuses it, or its input cannot be computed: sources and other models continue."""
    models = {
        "gone": spend(),
        "broken": spend(code="SELECT nosuch FROM demo.campaign_daily"),
        "above": spend(code="SELECT logical_date, 1 AS x FROM models.broken", depends_on=["models.broken"]),
        "good": spend(),
    }
    folder = write_workspace(tmp_path, models=models)
    (folder / "gone.sql").unlink()
    ws = open_at(folder)
    assert ws.plans.preview(Selection()).total > 0
    summary = run(ws, spark)
    assert (summary.accepted, summary.loaded, summary.end) == (4, 4, "done")
    assert summary.blocked == 6
    words = "\n".join(summary.problems)
    assert "models.gone: there is no file 'gone.sql' in the folder of penstock.yaml" in words
    assert "models.broken" in words
    assert "models.above: it depends on models.broken, which cannot be derived" in words
    assert len(rows(ws, "models.good", "cost")) == 2
    assert [ws.context.state.attempts(slice_of(D9, name)) for name in ("gone", "broken", "above")] == [[], [], []]

    assert "there is no file 'gone.sql'" in answer("status", workspace=folder)["troubles"][0]
    findings = {found["check"]: found for found in answer("doctor", workspace=folder, code=1)["items"]}
    assert "there is no file 'gone.sql'" in findings["models"]["detail"]
    assert ws.sql("SELECT count(*) AS n FROM demo.campaign_daily").read_all().to_pylist() == [{"n": 10}]


def test_checks_that_do_not_fit_the_columns_are_refused(tmp_path: Path, spark: Any) -> None:
    ws = open_at(write_workspace(tmp_path, models={"spend": spend(checks=[{"unique": ["campaign"]}])}))
    assert ws.models.learn_contracts(spark)["spend"].startswith("models.spend: 'campaign' is not a field of spend")


def test_other_columns_need_another_schema_version(tmp_path: Path, spark: Any) -> None:
    run(open_at(write_workspace(tmp_path, models={"spend": spend()})), spark)
    other = SPEND.replace("AS cost", "AS euros")
    ws = open_at(write_workspace(tmp_path, models={"spend": spend(code=other)}))
    assert ws.status.board(Selection(source="models")).stale_reasons()["CODE_CHANGED"] == 2
    [trouble] = run(ws, spark).problems
    assert "cost long was removed; euros long was added" in trouble
    ws = open_at(write_workspace(tmp_path, models={"spend": spend(code=other, schema_version="v2")}))
    assert run(ws, spark).accepted == 2
    assert rows(ws, "models.spend", "schema_version", "logical_date") == [("v2", D9), ("v2", D10)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models/all/nosuch/2024-06-09", "unknown query nosuch"),
        (f"models/{customer_id(1)}/spend/2024-06-09", "has one partition per date: write 'all' as the customer"),
        ("models/all/spend/2030-01-01", "is not due"),
    ],
)
def test_keys_of_models_that_cannot_be_meant_are_refused(tmp_path: Path, spark: Any, text: str, words: str) -> None:
    ws = open_at(write_workspace(tmp_path, models={"spend": spend()}))
    with pytest.raises(UsageError, match=words):
        run(ws, spark, PartitionKey.parse(text))
