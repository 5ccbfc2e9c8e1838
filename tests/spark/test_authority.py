"""Authority that an operator's act moves: its effect on readers and models, and the messages meanwhile."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

from penstock.app import Workspace
from penstock.control.select import Selection
from penstock.lifecycle import Outcome
from penstock.partition import PartitionKey, RunId
from penstock.state.audited import AuditedAct
from penstock.state.control import AuditEntry
from penstock.state.worker import WorkerStore
from support.workspaces import NOW, Silent, customer_id, key, open_at, run, write_workspace

D9, D10 = date(2024, 6, 9), date(2024, 6, 10)
SPEND = "SELECT logical_date, sum(cost_micros) AS cost, count(*) AS rows_ FROM demo.campaign_daily GROUP BY ALL"
TOTAL = "SELECT logical_date, rows_ * 2 AS twice FROM models.spend"
ENTRY = AuditEntry("test", AuditedAct.STATE_APPROVE, {}, {})
SHRUNK = {"fault": "fewer_rows", "customer": customer_id(1), "date": "2024-06-09"}


def workspace(folder: Path, *faults: dict[str, Any], **models: Any) -> Workspace:
    """Two customers and two days of ten rows, and models of them; rewritten, it is the same workspace."""
    made = {"spend": {"code": SPEND, "depends_on": ["demo.campaign_daily"]}}
    made |= {name: {"depends_on": ["models.spend"], **model} for name, model in models.items()}
    return open_at(write_workspace(folder, customers=2, rows=10, faults=faults, models=made))


def rows(ws: Workspace, day: date = D9) -> int:
    """The source rows that the model counts for a day."""
    [found] = [
        row["rows_"] for row in ws.data.vouched("models.spend").arrow().to_pylist() if row["logical_date"] == day
    ]
    return int(found)


def model(name: str, day: date = D9) -> PartitionKey:
    return PartitionKey("models", "all", name, day)


def tick(ws: Workspace, spark: Any) -> Any:
    return ws.rounds.tick(lambda: spark, WorkerStore(ws.context.database, ws.context.now).register(), Silent())


def never() -> Any:
    raise AssertionError("Spark was started for nothing")


def test_an_approved_run_is_published_before_models_are_planned(tmp_path: Path, spark: Any) -> None:
    run(workspace(tmp_path), spark)
    ws = workspace(tmp_path, SHRUNK)
    held = run(ws, spark, key(1), reprocess=True)
    assert (held.rejected, rows(ws)) == (1, 20)

    why = ws.partitions.why(key(1))
    assert why.headline.startswith("serving attempt 1 with 10 rows, attempt 2 failed")
    command = f'penstock state approve {key(1)} --run {held.run_id} --reason "..."'
    assert (why.approve, f"`{command}`" in why.next) == (command, True)
    assert ws.operations.approve(key(1), held.run_id, reason="the account shrank", actor="test")

    why = ws.partitions.why(key(1))
    assert (
        why.headline == "serving attempt 1 with 10 rows; attempt 2 with 2 rows has authority and waits to be published"
    )
    assert why.serving is not None
    assert why.waiting is not None
    assert (why.serving.record_count, why.waiting.run_id, why.approve) == (10, held.run_id, None)
    assert any(f"run {held.run_id} (attempt 2, 2 rows) waits to be published" in words for words in why.blocks)

    done = run(ws, spark)
    assert (done.accepted, done.loaded, done.cancelled, done.end) == (1, 2, 0, "done")
    assert rows(ws) == 12
    why = ws.partitions.why(key(1))
    assert (why.headline, why.waiting) == ("serving attempt 2 with 2 rows", None)

    # A round does the same after a rollback, during which readers get no rows.
    first = ws.context.state.attempts(key(1))[-1].run_id
    assert ws.operations.rollback(key(1), first, actor="test")
    assert (
        ws.partitions.why(key(1)).headline
        == "readers get no rows; attempt 1 with 10 rows has authority and waits to be published"
    )
    facts = tick(ws, spark)
    assert (facts["planned"], facts["accepted"], facts["loaded"]) == (1, 1, 2)
    assert (rows(ws), ws.partitions.why(key(1)).headline) == (20, "serving attempt 1 with 10 rows")

    # With nothing to publish and nothing to run, Spark is not started.
    assert ws.rounds.tick(never, WorkerStore(ws.context.database, ws.context.now).register(), Silent())["planned"] == 0


def test_a_model_does_not_wait_for_ever_for_a_publication_that_fails(tmp_path: Path, spark: Any) -> None:
    """It is not planned and cancelled in each run, either: its input is not there."""
    run(workspace(tmp_path), spark)
    ws = workspace(tmp_path, SHRUNK)
    held = run(ws, spark, key(1), reprocess=True)
    assert ws.operations.approve(key(1), held.run_id, reason="the account shrank", actor="test")
    for payload in (tmp_path / "lake" / "raw").rglob(f"*{held.run_id}*/payload*"):
        payload.write_bytes(b"spoilt")
    for _ in range(2):
        done = run(ws, spark)
        assert (done.planned, done.loaded, done.cancelled) == (0, 0, 0)
        assert [failure.key for failure in done.failures] == [key(1)]
        assert done.waiting is not None
        assert (done.waiting["publication"], done.waiting["model_inputs"]) == (1, 1)
    assert len(ws.context.state.attempts(model("spend"))) == 1
    assert rows(ws) == 20


def test_a_demotion_is_seen_at_once_in_everything_that_was_made_from_the_run(tmp_path: Path, spark: Any) -> None:
    ws = workspace(tmp_path, total={"code": TOTAL}, secret={"code": TOTAL, "on_demotion": "hide"})
    first = run(ws, spark)
    assert first.accepted == 10
    ws.data.take_snapshot("before")
    assert ws.ready("models.total")
    ws = open_at(tmp_path, NOW + timedelta(hours=1))
    assert ws.operations.demote(key(1), reason="wrong currency", actor="test")

    names = ("spend", "total", "secret")
    for name in names:
        table = f"models.{name}"
        assert (ws.ready(table, date=D9), ws.ready(table, date=D10)) == (False, True), name
        [day] = ws.coverage(table, date=D9)
        assert day.withdrawn_inputs == (model(name),)
        assert ws.data.vouched(table).withdrawn_inputs == (model(name),)
        assert ws.data.vouched(table, since=D10).withdrawn_inputs == ()
        assert ws.data.vouched(table, as_of="before").withdrawn_inputs == (model(name),)
        why = ws.partitions.why(model(name))
        assert f"not ready: it was derived from run {first.run_id} of {key(1)}, which was demoted" in why.blocks[0]
        assert (why.display, why.stale[0].partition(":")[0]) == ("stale", "UPSTREAM_CHANGED")
    assert ws.status.board(Selection()).flags() == {"upstream_changed": 3, "input_demoted": 3}

    # Rows are read as before, or hidden by every reader if the model is configured so.
    for table, as_of, days in (
        ("models.total", None, {D9, D10}),
        ("models.total", "before", {D9, D10}),
        ("models.secret", None, {D10}),
        ("models.secret", "before", {D10}),
    ):
        vouched = ws.data.vouched(table, as_of=as_of)
        told: list[Any] = []
        by_sql = ws.data.sql(f"SELECT * FROM {table}", as_of=as_of, opened=told.append).read_all()
        frames = [vouched.arrow(), vouched.duckdb().to_arrow_table(), by_sql, vouched.spark(spark).toArrow()]
        for found in frames:
            assert set(found.column("logical_date").to_pylist()) == days, (table, as_of)
        assert told[0].hidden_inputs == (() if D9 in days else (told[0].withdrawn_inputs))
    assert "its rows are hidden from readers" in ws.partitions.why(model("secret")).headline

    # Without the input nothing is derived from the rest, and models of models wait, too.
    waiting = run(ws, spark)
    assert (waiting.planned, waiting.waiting) == (
        0,
        {"retry": 0, "operator": 1, "terminal": 0, "paused": 0, "blocked": 0, "open": 0, "publication": 0}
        | {"model_inputs": 3},
    )
    assert set(ws.data.vouched("models.total").arrow().column("logical_date").to_pylist()) == {D9, D10}

    # The input comes back with the same rows: all models are computed again nevertheless, and are ready.
    assert ws.operations.retry(Selection(keys=(key(1),)), without_raw=True, actor="test") == 1
    again = run(ws, spark)
    assert (again.accepted, again.unchanged, again.cancelled) == (4, 0, 0)
    digests = {attempt.content_digest for attempt in ws.context.state.attempts(key(1))}
    assert len(digests) == 1
    for name in names:
        assert ws.ready(f"models.{name}")
        assert ws.data.vouched(f"models.{name}").withdrawn_inputs == ()
    assert ws.status.board(Selection()).flags() == {}
    assert set(ws.data.vouched("models.secret").arrow().column("logical_date").to_pylist()) == {D9, D10}


def test_how_a_model_answers_a_demotion_is_no_part_of_its_contract(tmp_path: Path, spark: Any) -> None:
    models = {"total": {"code": TOTAL}}
    run(workspace(tmp_path, **models), spark)
    ws = workspace(tmp_path, total={"code": TOTAL, "on_demotion": "hide"})
    assert ws.status.board(Selection()).flags() == {}
    assert run(ws, spark).planned == 0


def test_what_was_stopped_without_a_verdict_is_cancelled_and_not_failed(tmp_path: Path, spark: Any) -> None:
    faults = [
        {"fault": "quota", "customer": customer_id(1), "date": "2024-06-10"},
        {"fault": "wrong_type", "customer": customer_id(2), "date": "2024-06-10"},
    ]
    ws = workspace(tmp_path, *faults)
    done = run(ws, spark)
    assert [item.key for item in done.failures] == [key(2, "2024-06-10")]
    assert [item.key for item in done.cancelled_items] == [key(1, "2024-06-10")]
    assert done.cancelled == 1
    assert ws.context.state.attempts(key(1, "2024-06-10"))[0].outcome is Outcome.CANCELLED
    assert RunId(done.run_id) == done.runs[-1]
