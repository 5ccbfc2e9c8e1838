"""One partition from source to reader, and partitions that fail on the way."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable
from pyspark.errors import AnalysisException

from penstock.app import Workspace
from penstock.config.settings import Customer
from penstock.db import schema
from penstock.errors import (
    ConfigError,
    DatabaseUnavailable,
    ErrorClass,
    ExitCode,
    PenstockError,
    UsageError,
    WarehouseError,
)
from penstock.flow.heartbeat import Heartbeat
from penstock.lifecycle import DisplayStatus, Outcome, PartitionStatus, Stage
from penstock.partition import PartitionKey, new_run_id
from penstock.pipeline import load
from penstock.pipeline.worker_jobs import run_in_workers
from penstock.projections.fact import START, Cursor
from penstock.source.demo import DemoSource
from penstock.source.protocol import RunContext
from penstock.state.worker import WorkerStore
from support.cli import penstock
from support.workspaces import (
    CAMPAIGNS,
    NOW,
    Silent,
    customer_id,
    key,
    open_at,
    rows_by_partition,
    run,
    write_workspace,
)


def state_of(workspace: Workspace, partition: PartitionKey) -> tuple[PartitionStatus, int]:
    state = workspace.context.state.state(partition)
    assert state is not None
    return state.status, state.attempt_count


def test_workers_of_a_local_master_come_from_a_process_that_has_imported_what_they_need(spark: Any) -> None:
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc
        import sys

        from penstock.pipeline import daemon

        for _ in batches:
            came_with = sys.modules["__main__"].__spec__
            places = [str(sys.modules[name].__file__) for name in ("pyspark.worker", "py4j", "penstock.pipeline.load")]
            started = "" if came_with is None else came_with.name
            yield pa.record_batch(
                {"said": [started, daemon.MODULE, *places, f"frozen {gc.get_freeze_count() > 5_000}"]}
            )

    [answer] = run_in_workers(spark, pa.table({"item": [1]}), [0], look, "said string")
    started, ours, *places, frozen = answer.column("said").to_pylist()
    assert started == ours
    assert [place for place in places if ".zip" in place] == []
    assert frozen == "frozen True"


def test_a_few_slices_are_loaded_without_a_job_and_many_with_one_to_the_same_rows(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    def counted(session: Any, items: Any, tasks: Any, *rest: Any) -> Any:
        begun.append(len(tasks))
        return run_in_workers(session, items, tasks, *rest)

    monkeypatch.setattr(load, "run_in_workers", counted)

    def loaded(folder: str) -> tuple[int, list[list[dict[str, Any]]]]:
        """How many jobs the loads took, a first time and as a replacement, and the rows that readers see."""
        begun.clear()
        ws = open_at(write_workspace(tmp_path / folder))
        for again in (False, True):
            assert run(ws, spark, reprocess=again).loaded == 2
        found = rows_by_partition(ws)
        return len(begun), [[row | {"_run_id": ""} for row in found[partition]] for partition in sorted(found)]

    jobs, rows = loaded("by-workers")
    monkeypatch.setattr(load, "_LOCAL_BYTES", 2**20)
    no_jobs, same = loaded("here")
    assert (jobs, no_jobs) == (2, 0)
    assert rows == same


def test_a_damaged_file_fails_a_small_publication_with_a_message_and_loses_nothing(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_LOCAL_BYTES", 2**20)
    ws = open_at(write_workspace(tmp_path))
    run(ws, spark)
    [file] = (tmp_path / "lake" / "warehouse").rglob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(b"no Parquet")
    with pytest.raises(WarehouseError, match=r"recover --from database --table demo\.campaign_daily"):
        run(ws, spark, key(), reprocess=True)
    file.write_bytes(whole)
    assert run(ws, spark).loaded == 1
    assert {len({row["_run_id"] for row in rows}) for rows in rows_by_partition(ws).values()} == {1}


def test_a_slice_travels_from_source_to_reader(tmp_path: Path, spark: Any) -> None:
    ws = open_at(write_workspace(tmp_path))
    summary = run(ws, spark)

    source = DemoSource({"seed": 7, "rows": 5}, RunContext(new_run_id()))
    day = date(2024, 6, 9)
    query, customer = ws.settings.query("campaign_daily"), Customer(id=customer_id(1))
    sent = [row for _, row in source.extract(query, customer, [day]) if isinstance(row, dict)]
    received = rows_by_partition(ws)

    assert summary.counts() | {"planned": 2, "accepted": 2, "loaded": 2} == summary.counts()
    assert summary.failures == []
    assert received[key()] == [{**row, "_run_id": summary.run_id, "schema_version": "v1"} for row in sent]
    assert set(received) == {key(day="2024-06-09"), key(day="2024-06-10")}


FAULTS: dict[str, tuple[Outcome, Stage, ErrorClass | None, str]] = {
    "transient": (Outcome.FAILED, Stage.EXTRACT, ErrorClass.TRANSIENT, "did not respond"),
    "quota": (Outcome.CANCELLED, Stage.EXTRACT, ErrorClass.QUOTA, "asks to wait 30 s"),
    "auth": (Outcome.CANCELLED, Stage.EXTRACT, ErrorClass.AUTH, "credentials"),
    "truncated": (Outcome.FAILED, Stage.VALIDATE, ErrorClass.DATA, "not valid JSON"),
    "wrong_type": (Outcome.FAILED, Stage.VALIDATE, ErrorClass.DATA, "campaign_id is not a whole number"),
    "duplicate_key": (Outcome.FAILED, Stage.VALIDATE, ErrorClass.DATA, "campaign_id is not unique"),
    "zero_rows": (Outcome.FAILED, Stage.VALIDATE, ErrorClass.DATA, "0 rows, at least 1 expected"),
    "fewer_rows": (Outcome.SUCCEEDED, Stage.VALIDATE, None, ""),
    "unsteady": (Outcome.SUCCEEDED, Stage.VALIDATE, None, ""),
    "slow": (Outcome.SUCCEEDED, Stage.VALIDATE, None, ""),
}


def test_each_fault_ends_in_its_own_outcome_and_spoils_no_other_slice(tmp_path: Path, spark: Any) -> None:
    day = "2024-06-10"
    faults = [
        {"fault": fault, "customer": customer_id(n + 1), "date": day, "seconds": 0.1} for n, fault in enumerate(FAULTS)
    ]
    ws = open_at(write_workspace(tmp_path, customers=len(FAULTS) + 1, faults=faults))
    summary = run(ws, spark)

    for number, (fault, (outcome, stage, error_class, words)) in enumerate(FAULTS.items(), start=1):
        [attempt] = ws.context.state.attempts(key(number, day))
        assert (attempt.outcome, attempt.stage, attempt.error_class) == (outcome, stage, error_class), fault
        assert words in (attempt.error_message or ""), fault
        assert ws.context.state.state(key(number, "2024-06-09")).status is PartitionStatus.SUCCESS, fault  # type: ignore[union-attr]
    assert summary.rejected == 5
    assert summary.cancelled == 2
    assert ws.context.state.state(key(2, day)) is None  # a cancelled attempt does not count
    broken = {
        key(n, day) for n, (outcome, *_) in enumerate(FAULTS.values(), start=1) if outcome is not Outcome.SUCCEEDED
    }
    assert (
        set(rows_by_partition(ws))
        == {key(n, d) for n in range(1, len(FAULTS) + 2) for d in ("2024-06-09", day)} - broken
    )


def test_a_slice_that_kills_its_worker_takes_no_other_with_it(tmp_path: Path, spark: Any) -> None:
    faults = [{"fault": "crash", "customer": customer_id(2), "date": "2024-06-10"}]
    folder = write_workspace(tmp_path, customers=3, faults=faults)
    for lost in range(1, 4):
        summary = run(open_at(folder), spark)
        assert (summary.rejected, summary.cancelled) == (0, 1)
        assert summary.accepted == (5 if lost == 1 else 0)
    assert run(open_at(folder), spark).rejected == 1  # the fourth loss in a row
    ws = open_at(folder)
    attempts = ws.context.state.attempts(key(2, "2024-06-10"))
    assert [attempt.outcome for attempt in attempts] == ["FAILED", "CANCELLED", "CANCELLED", "CANCELLED"]
    assert len(rows_by_partition(ws)) == 5


def test_a_span_that_breaks_off_keeps_its_complete_days(tmp_path: Path, spark: Any) -> None:
    faults = [{"fault": "quota", "date": "2024-06-08"}]
    ws = open_at(write_workspace(tmp_path, faults=faults, query={"start_date": "2024-06-06"}))
    run(ws, spark)
    outcomes = [ws.context.state.attempts(key(1, f"2024-06-{day:02d}"))[0].outcome for day in range(6, 11)]
    assert outcomes == [Outcome.SUCCEEDED, Outcome.SUCCEEDED] + [Outcome.CANCELLED] * 3


def test_a_rejection_lists_every_complaint_with_count_line_and_example(tmp_path: Path, spark: Any) -> None:
    checks = [
        {"unique": ["campaign_name"]},
        {"unique": ["network"]},
        {"expression": "impressions < 0", "name": "impossible"},
        {"range": {"field": "clicks", "min": 0, "max": 1}},
        {"allowed": {"field": "network", "values": ["RADIO"]}},
        {"rows": {"max": 3}},
    ]
    fields = [
        {"name": "campaign_name", "type": "string"},
        {"name": "network", "type": "string"},
        {"name": "impressions", "type": "long"},
        {"name": "clicks", "type": "long"},
    ]
    ws = open_at(write_workspace(tmp_path, rows=8, query={"checks": checks, "fields": fields}))
    run(ws, spark, key())
    [attempt] = ws.context.state.attempts(key())
    complaints = {complaint["check"]: complaint for complaint in attempt.complaints or []}

    assert set(complaints) == {"unique(network)", "impossible", "range(clicks)", "allowed(network)", "rows"}
    assert complaints["impossible"]["count"] == 8
    assert complaints["impossible"]["line"] == 1
    assert '"impressions":' in complaints["impossible"]["example"]
    assert complaints["unique(network)"]["count"] >= 4  # eight rows, four networks
    assert attempt.record_count == 8
    assert attempt.payload_digest is not None


def test_a_failed_refetch_leaves_the_good_rows_visible(tmp_path: Path, spark: Any) -> None:
    ws = open_at(write_workspace(tmp_path))
    good = run(ws, spark)
    before = rows_by_partition(ws)
    for fault in ("fewer_rows", "wrong_type", "transient"):
        ws = open_at(write_workspace(tmp_path, faults=[{"fault": fault}]))
        assert run(ws, spark, reprocess=True).accepted == 0, fault
        assert rows_by_partition(ws) == before, fault
    state = ws.context.state.state(key())
    assert state is not None
    assert (state.status, state.current_run_id, state.attempt_count) == (PartitionStatus.SUCCESS, good.run_id, 4)
    assert ws.status.standings([key()])[key()].display is DisplayStatus.LAST_ATTEMPT_FAILED


def test_a_replacement_is_total_and_never_mixes_runs(tmp_path: Path, spark: Any) -> None:
    faults = [{"fault": "unsteady", "customer": customer_id(1)}]
    ws = open_at(write_workspace(tmp_path, customers=3, rows=40, faults=faults))
    first = run(ws, spark)
    second = run(ws, spark, key(1), key(2), reprocess=True)
    rows = rows_by_partition(ws)

    runs = {partition: {row["_run_id"] for row in found} for partition, found in rows.items()}
    replaced = {key(1), key(2)}
    assert runs == {partition: {second.run_id if partition in replaced else first.run_id} for partition in runs}
    for partition, found in rows.items():
        state = ws.context.state.state(partition)
        assert state is not None
        assert len(found) == state.record_count, partition
        assert [row["campaign_id"] for row in found] == sorted(row["campaign_id"] for row in found)  # payload order


def test_an_accepted_empty_slice_replaces_its_old_rows_by_none(tmp_path: Path, spark: Any) -> None:
    ws = open_at(write_workspace(tmp_path, query={"checks": []}))
    run(ws, spark)
    ws = open_at(write_workspace(tmp_path, query={"checks": []}, faults=[{"fault": "zero_rows", "date": "2024-06-09"}]))
    assert run(ws, spark, key(), reprocess=True).loaded == 1
    assert set(rows_by_partition(ws)) == {key(day="2024-06-10")}
    pointer = ws.context.pointers.pointer(key())
    assert pointer is not None
    assert (pointer.available, pointer.record_count) == (True, 0)


def test_a_new_schema_version_moves_a_slice_from_one_table_to_the_other(tmp_path: Path, spark: Any) -> None:
    ws = open_at(write_workspace(tmp_path))
    run(ws, spark)
    fewer = [{"name": "campaign_id", "type": "long"}, {"name": "network", "type": "string"}]
    ws = open_at(write_workspace(tmp_path, query={"schema_version": "v2", "fields": fewer, "checks": []}))
    run(ws, spark, key(), reprocess=True)
    rows = rows_by_partition(ws)

    assert {row["schema_version"] for row in rows[key()]} == {"v2"}
    assert {row["schema_version"] for row in rows[key(day="2024-06-10")]} == {"v1"}
    assert {row["network"] for row in rows[key(day="2024-06-10")]} == {None}
    plain = DeltaTable(ws.context.lake.uri("warehouse/demo/campaign_daily/v1")).to_pyarrow_table()
    assert set(plain.column("logical_date").to_pylist()) == {date(2024, 6, 10)}


def test_fields_that_change_without_a_new_schema_version_are_refused_before_anything_is_issued(
    tmp_path: Path, spark: Any
) -> None:
    run(open_at(write_workspace(tmp_path)), spark)
    ws = open_at(write_workspace(tmp_path, query={"fields": [{"name": "campaign_id", "type": "string"}], "checks": []}))
    with pytest.raises(ConfigError, match="campaign_id was long, is string"):
        run(ws, spark, reprocess=True)
    assert len(ws.context.state.attempts(key())) == 1


def test_a_check_that_spark_does_not_understand_is_refused_before_anything_is_issued(
    tmp_path: Path, spark: Any
) -> None:
    ws = open_at(write_workspace(tmp_path, query={"checks": [{"expression": "clickz <= impressions"}]}))
    with pytest.raises(ConfigError, match="clickz"):
        run(ws, spark)
    assert ws.context.state.attempts(key()) == []


BROKEN = {**CAMPAIGNS, "checks": [{"expression": "clicks + 1"}]}
PER_DAY = "SELECT logical_date, count(*) AS n FROM {table} GROUP BY ALL"


def per_day(*tables: str) -> dict[str, Any]:
    return {"code": PER_DAY.format(table=tables[0]), "depends_on": list(tables), "per": "date"}


def test_a_query_with_a_check_that_spark_refuses_holds_up_itself_and_its_models_only(
    tmp_path: Path, spark: Any
) -> None:
    """In a run and in a round; it stays due, and is fetched when the check is valid."""
    models = {
        "fine": per_day("demo.good_daily"),
        "above": per_day("demo.good_daily", "demo.campaign_daily"),
    }
    queries = {"good_daily": CAMPAIGNS, "campaign_daily": BROKEN}
    ws = open_at(write_workspace(tmp_path, queries=queries, models={name: {**one} for name, one in models.items()}))
    good = key(1, "2024-06-09", "good_daily")
    reason = "queries.campaign_daily: the check expression(clicks + 1) is not valid: [DATATYPE_MISMATCH"

    def slice_of(name: str, day: str) -> PartitionKey:
        return PartitionKey.parse(f"models/all/{name}/{day}")

    first = "2024-06-09"
    summary = run(ws, spark, good, key(1, first), slice_of("fine", first), slice_of("above", first))
    assert (summary.planned, summary.accepted, summary.loaded, summary.blocked) == (4, 2, 2, 1)
    assert summary.end == "done"
    [trouble] = summary.problems
    assert trouble.startswith(reason)
    assert ws.context.state.attempts(key(1, first)) == []
    assert set(rows_by_partition(ws, "demo.good_daily")) == {good}
    assert [row["n"] for row in ws.data.vouched("models.fine").arrow().to_pylist()] == [5]
    assert ws.data.vouched("models.above").arrow().num_rows == 0

    with Heartbeat(WorkerStore(ws.context.database, ws.context.now)) as heart:
        facts = ws.rounds.tick(lambda: spark, heart.token, Silent())
    assert (facts["accepted"], facts["blocked"], facts["waiting"]) == (2, 2, 0)
    assert facts["troubles"][0].startswith(reason)

    whole = {"good_daily": CAMPAIGNS, "campaign_daily": CAMPAIGNS}
    ws = open_at(write_workspace(tmp_path, queries=whole, models={name: {**one} for name, one in models.items()}))
    summary = run(ws, spark)
    assert (summary.planned, summary.accepted, summary.blocked, summary.problems) == (4, 4, 0, [])


def test_a_portion_with_nothing_but_refused_checks_does_not_stop_the_others(tmp_path: Path, spark: Any) -> None:
    queries = {
        "good_daily": {**CAMPAIGNS, "start_date": "2024-05-30"},
        "campaign_daily": {**BROKEN, "start_date": "2024-06-01"},
    }
    ws = open_at(write_workspace(tmp_path, queries=queries, control={"largest_run": 10}))
    days = [date(2024, 6, number) for number in range(1, 11)]
    run(ws, spark, *(key(1, f"{day}", "good_daily") for day in days))
    summary = run(ws, spark)  # of June only the refused query is left, of May the other
    assert (summary.accepted, summary.blocked, summary.end) == (2, 10, "done")
    [trouble] = summary.problems
    assert "the check expression(clicks + 1) is not valid" in trouble
    with pytest.raises(ConfigError, match="the check expression"):
        run(ws, spark)  # nothing else is due


def test_a_check_that_spark_refuses_is_reported_in_one_line_without_its_stack(tmp_path: Path) -> None:
    queries = {"campaign_daily": {**BROKEN, "start_date": "2024-06-10"}}
    folder = write_workspace(tmp_path, queries=queries)
    open_at(folder).context.database.close()
    done = penstock("run", "demo/1000000001/campaign_daily/2024-06-10", workspace=folder)
    assert (done.returncode, done.stdout) == (ExitCode.FAILED, "")
    assert [line.partition(": [")[0] for line in done.stderr.splitlines() if line != "planning"] == [
        "penstock: queries.campaign_daily: the check expression(clicks + 1) is not valid"
    ]


def test_a_withdrawn_partition_is_gone_at_once_and_leaves_the_table_at_the_next_publish(
    tmp_path: Path, spark: Any
) -> None:
    ws = open_at(write_workspace(tmp_path, customers=2))
    run(ws, spark)
    state = schema.partition_state
    withdraw = (
        sa.update(state)
        .where(state.c.customer_id == customer_id(1), state.c.logical_date == date(2024, 6, 9))
        .values(status="failed", error_message="withdrawn", authority_version=state.c.authority_version + 1)
    )
    due = {**{name: getattr(key(), name) for name in schema.KEY}, "authority_version": 2, "since": NOW}

    def withdrawn(connection: sa.Connection) -> None:
        connection.execute(withdraw)
        connection.execute(sa.insert(schema.publish_due), due)

    ws.context.database.transact(withdrawn)
    left = {key(1, "2024-06-10"), key(2, "2024-06-09"), key(2, "2024-06-10")}
    assert set(rows_by_partition(ws)) == left
    plain = DeltaTable(ws.context.lake.uri("warehouse/demo/campaign_daily/v1"))
    assert plain.to_pyarrow_table().num_rows == 20  # plain Delta readers follow at the next publish

    assert run(ws, spark).hidden == 1
    assert set(rows_by_partition(ws)) == left
    plain.update_incremental()
    assert plain.to_pyarrow_table().num_rows == 15


def test_a_database_that_is_away_while_the_source_is_slow_does_not_end_the_run(tmp_path: Path, spark: Any) -> None:
    """A waiting run checks for cancellation every two seconds; only errors that concern it make it fail."""
    ws = open_at(write_workspace(tmp_path, faults=[{"fault": "slow", "seconds": 3}]))
    news, away = ws.context.ledger.news_of_run, []

    def sometimes_away(run_id: str, cursor: Cursor) -> Any:
        found = news(run_id, cursor)
        told = {fact.type for fact in news(run_id, START)[0]}
        if "TaskStarted" in told and "SlicesExtracted" not in told:  # the source is being asked
            away.append(run_id)
            raise DatabaseUnavailable("the database did not answer")
        return found

    ws.context.ledger.news_of_run = sometimes_away  # type: ignore[method-assign]
    assert run(ws, spark).loaded == 2
    assert away, "nobody looked while the source was asked"


def test_the_data_source_reads_what_every_reader_sees(tmp_path: Path, spark: Any) -> None:
    ws = open_at(write_workspace(tmp_path, customers=3))
    run(ws, spark)
    source = spark.read.format("penstock").option("workspace", str(tmp_path)).option("table", "demo.campaign_daily")
    found = {tuple(row) for row in source.load().collect()}
    assert found == {tuple(row.values()) for row in ws.data.vouched("demo.campaign_daily").arrow().to_pylist()}
    some = source.load().where("customer_id = '1000000002' AND logical_date >= DATE '2024-06-10'")
    assert some.count() == 5
    assert source.load().where("customer_id = '1' AND customer_id = '2'").count() == 0
    assert source.option("columns", "clicks").load().columns == ["clicks"]
    with pytest.raises(AnalysisException, match=r"unknown table demo\.nothing"):
        source.option("table", "demo.nothing").load()


def test_every_reader_sees_the_same_rows(tmp_path: Path, spark: Any) -> None:
    ws = open_at(write_workspace(tmp_path, customers=3))
    run(ws, spark)
    state = schema.partition_state
    ws.context.database.transact(
        lambda connection: connection.execute(
            sa.update(state).where(state.c.customer_id == customer_id(2)).values(status="failed", error_message="x")
        )
    )

    def ordered(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        return sorted(tuple(sorted((name, str(value)) for name, value in row.items())) for row in rows)

    vouched = ws.data.vouched("demo.campaign_daily")
    arrow = ordered(vouched.arrow().to_pylist())
    assert len(arrow) == 20
    assert ordered([dict(zip(vouched.schema.names, row, strict=True)) for row in vouched.duckdb().fetchall()]) == arrow
    frame = ws.read("demo.campaign_daily", spark=spark)
    assert ordered([row.asDict() for row in frame.collect()]) == arrow
    statement = "SELECT * FROM demo.campaign_daily"
    assert ordered(ws.sql(statement).read_all().to_pylist()) == arrow
    assert ordered(ws.data.spark_sql(statement, spark).read_all().to_pylist()) == arrow
    for bad, words in {
        "SELECT reflect('java.lang.System', 'getProperty', 'user.home')": "the function reflect is not allowed",
        "SELECT * FROM text.`/etc/passwd`": "text./etc/passwd is a file",
        "SELECT * FROM demo__campaign_daily": "unknown table demo__campaign_daily",  # the view of the statement before
    }.items():
        with pytest.raises(UsageError, match=words):
            ws.data.spark_sql(bad, spark)
    with pytest.raises(AnalysisException):  # Spark itself does not read paths as tables
        spark.sql("SELECT * FROM text.`/etc/passwd`")
    assert spark.sql("SELECT '${env:HOME}' AS x").first().x == "${env:HOME}"
    narrow = ws.data.vouched(
        "demo.campaign_daily", customers=[customer_id(1)], since=date(2024, 6, 10), columns=["clicks"]
    )
    assert narrow.arrow().num_rows == 5
    assert narrow.schema.names == ["clicks"]


def test_a_publish_folds_small_files_of_its_month_and_leaves_other_months_alone(tmp_path: Path, spark: Any) -> None:
    folder = write_workspace(tmp_path, customers=2, query={"start_date": "2024-05-31"})
    for day in (1, 2, 3):
        run(open_at(folder, datetime(2024, 6, day, 12, tzinfo=UTC)), spark)
    ws = open_at(folder)
    table = DeltaTable(ws.context.lake.uri("warehouse/demo/campaign_daily/v1"))
    months = [uri.split("_month=")[1].split("/")[0] for uri in table.file_uris()]
    assert sorted(months) == ["2024-05", "2024-06"]
    assert {len(rows) for rows in rows_by_partition(ws).values()} == {5}


@pytest.mark.parametrize("folder", ["raw", "warehouse"])
def test_a_lake_that_refuses_writes_is_a_terminal_error_and_counts_against_no_partition(
    tmp_path: Path, spark: Any, folder: str
) -> None:
    ws = open_at(write_workspace(tmp_path))
    (tmp_path / "lake").mkdir(exist_ok=True)
    (tmp_path / "lake" / folder).write_text("")  # refuses like a folder without permission, also for root
    with pytest.raises(PenstockError) as refused:
        run(ws, spark)
    assert (refused.value.exit_code, "cannot" in str(refused.value)) == (ExitCode.FAILED, True)
    states = [ws.context.state.state(key(day=day)) for day in ("2024-06-09", "2024-06-10")]
    assert [(s.status, s.error_message) for s in states if s and s.status is PartitionStatus.FAILED] == []
