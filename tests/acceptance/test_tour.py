"""The first ten minutes of a new user, through the command line."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import yaml

from support.cli import answer, penstock


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace of 5 customers x 2 queries x 4 days after its first run, in which some partitions failed."""
    folder = tmp_path_factory.mktemp("tour") / "workspace"
    made = penstock("init", str(folder), "--customers", "5", "--days", "4")
    assert made.returncode == 0, made.stderr
    body = yaml.safe_load((folder / "penstock.yaml").read_text())
    body["sources"]["demo"] = {
        "kind": "demo",
        "rows": 6,
        "faults": [
            {"fault": "wrong_type", "customer": "1000000002", "enabled": "${FAULTS:-true}"},
            {"fault": "quota", "customer": "1000000003", "query": "network_daily", "enabled": "${FAULTS:-true}"},
            {"fault": "fewer_rows", "customer": "1000000001", "enabled": "${BAD_REFETCH:-false}"},
        ],
    }
    del body["models"]
    (folder / "penstock.yaml").write_text(yaml.safe_dump(body, sort_keys=False))
    first = answer("run", workspace=folder, code=1)
    counts = {name: first[name] for name in ("planned", "accepted", "rejected", "loaded", "cancelled", "skipped")}
    assert counts == {"planned": 40, "accepted": 28, "rejected": 8, "loaded": 28, "cancelled": 4, "skipped": 0}
    assert {tuple(sorted(failure)) for failure in first["failures"]} == {("error_class", "key", "message", "stage")}
    return folder


def day(tour: Path) -> str:
    found: str = answer("warehouse", "pointers", "--limit", "1", workspace=tour)["items"][0]["logical_date"]
    return found


def test_init_refuses_a_folder_that_has_a_workspace(tour: Path) -> None:
    again = penstock("init", str(tour))
    assert again.returncode == 2
    assert "exists already" in again.stderr


def test_status_counts_everything_that_is_expected(tour: Path) -> None:
    status = answer("status", workspace=tour)
    assert status["counts"] == {"materialized": 28, "never_materialized": 12}
    by_customer = answer("status", "--by", "customer", "--query", "network_daily", workspace=tour)
    assert {(i["customer"], i["display_status"], i["count"]) for i in by_customer["items"]} == {
        ("1000000001", "materialized", 4),
        ("1000000002", "never_materialized", 4),
        ("1000000003", "never_materialized", 4),
        ("1000000004", "materialized", 4),
        ("1000000005", "materialized", 4),
    }
    grid = penstock("status", "--grid", "--query", "network_daily", workspace=tour).stdout
    assert "1000000001 ████" in grid
    assert "1000000002 ✗✗✗✗" in grid
    assert "1000000003 ····" in grid


def test_failed_and_missing_say_why(tour: Path) -> None:
    failed = answer("failed", "--query", "campaign_daily", workspace=tour)
    assert failed["total"] == 4
    assert {item["error_message"] for item in failed["items"]} == {
        "campaign_id is not a whole number of at most 64 bits (line 6)"
    }
    missing = answer("missing", "--limit", "5", workspace=tour)
    assert (len(missing["items"]), missing["total"]) == (5, 12)
    rest = answer("missing", "--after", missing["items"][-1]["key"], workspace=tour)
    assert len(rest["items"]) == 7


def test_inspect_and_history_show_rows_and_attempts(tour: Path) -> None:
    bad, good = (f"demo/{customer}/campaign_daily/{day(tour)}" for customer in ("1000000002", "1000000001"))
    [row] = answer("state", "inspect", good, workspace=tour)["items"]
    assert (row["key"], row["status"], row["record_count"], row["attempt_count"]) == (good, "success", 6, 1)
    assert {"current_run_id", "schema_version", "updated_at", "error_message"} <= set(row)
    assert {"next_run_at", "terminal", "paused", "open_attempt"} <= set(row)
    [attempt] = answer("state", "history", bad, workspace=tour)["items"]
    assert (attempt["outcome"], attempt["stage"], attempt["error_class"]) == ("FAILED", "validate", "data")
    assert attempt["complaints"][0]["line"] == 6
    assert '"many"' in attempt["complaints"][0]["example"]
    future = answer("state", "inspect", "demo/1000000001/campaign_daily/2099-01-01", workspace=tour)["items"]
    assert [(item["status"], item["implicit"]) for item in future] == [("pending", True)]


def test_why_says_what_blocks_a_partition_and_what_happens_next(tour: Path) -> None:
    bad = f"demo/1000000002/campaign_daily/{day(tour)}"
    page = answer("why", bad, workspace=tour)
    assert page["blocks"] == [
        "it failed and waits for an explicit retry: campaign_id is not a whole number of at most 64 bits (line 6)"
    ]
    assert f"penstock state retry {bad}" in page["next"]
    assert (
        "the next `penstock run` attempts it"
        in penstock("why", f"demo/1000000003/network_daily/{day(tour)}", workspace=tour).stdout
    )


def test_rows_come_out_in_every_format(tour: Path, tmp_path: Path) -> None:
    arguments = ("read", "demo.campaign_daily", "--customer", "1000000001", "--columns", "campaign_id,clicks")
    as_json = answer(*arguments, workspace=tour)
    assert as_json["total"] == 24
    as_csv = penstock(*arguments, "--format", "csv", workspace=tour).stdout
    assert pa.csv.read_csv(io.BytesIO(as_csv.encode())).to_pylist() == as_json["items"]
    for kind in ("parquet", "arrow"):
        target = tmp_path / f"rows.{kind}"
        done = penstock(*arguments, "--format", kind, "--output", str(target), workspace=tour)
        assert done.returncode == 0, done.stderr
        read: Any = (
            pa.parquet.read_table
            if kind == "parquet"
            else lambda path: pa.ipc.open_stream(path.read_bytes()).read_all()
        )
        assert read(target).to_pylist() == as_json["items"]
    assert "campaign_id" in penstock(*arguments, workspace=tour).stdout


def test_output_goes_through_links_and_into_pipes_and_replaces_neither(tour: Path, tmp_path: Path) -> None:
    arguments = ("read", "demo.campaign_daily", "--columns", "clicks", "--limit", "1", "--format", "csv", "--output")
    real, link = tmp_path / "real.csv", tmp_path / "link.csv"
    real.write_text("old")
    link.symlink_to(real)
    assert penstock(*arguments, str(link), workspace=tour).returncode == 0
    assert link.is_symlink()
    assert real.read_text().startswith('"clicks"')
    done = penstock(*arguments, "/dev/full", workspace=tour)
    assert done.returncode == 2
    assert "No space left" in done.stderr
    assert Path("/dev/full").is_char_device()
    done = penstock("sql", "SELECT 1 AS a", "--format", "csv", "--output", "/dev/stdout", workspace=tour)
    assert done.stdout == '"a"\n1\n'


def test_filters_are_the_same_everywhere(tour: Path) -> None:
    good, bad = (f"demo/{customer}/campaign_daily/{day(tour)}" for customer in ("1000000001", "1000000002"))
    assert answer("failed", good, bad, workspace=tour)["total"] == 1
    assert answer("missing", "--status", "failed", "--query", "campaign_daily", workspace=tour)["total"] == 4
    assert answer("status", good, bad, "--status", "failed", workspace=tour)["counts"] == {"never_materialized": 1}
    assert answer("status", "--grid", good, bad, workspace=tour)["counts"] == {
        "materialized": 1,
        "never_materialized": 1,
    }
    assert answer("warehouse", "pointers", good, bad, "--status", "success", workspace=tour)["total"] == 1
    assert answer("run", "--plan", "--reprocess", "--status", "success", workspace=tour)["reasons"] == {"reprocess": 28}


def test_sql_reads_vouched_rows_and_nothing_else(tour: Path) -> None:
    statement = "SELECT count(*) AS n, count(DISTINCT customer_id) AS c FROM demo.campaign_daily"
    assert answer("sql", statement, workspace=tour)["items"] == [{"n": 96, "c": 4}]
    joined = (
        "WITH days AS (SELECT DISTINCT logical_date FROM Demo.campaign_daily AS c) SELECT count(*) AS n"
        " FROM demo.campaign_daily a JOIN demo.network_daily USING (customer_id, logical_date)"
        " JOIN days USING (logical_date)"
    )
    assert answer("sql", joined, workspace=tour)["items"] == [{"n": 3 * 4 * 6 * 6}]
    refusals = {
        "SELECT * FROM demo.nothing": "unknown table demo.nothing (tables: demo.campaign_daily, demo.network_daily",
        "SELEC 1": "the SQL is not valid",
        "SELECT clickz FROM demo.campaign_daily": "clickz",
        f"SELECT * FROM read_parquet('{tour}/lake/warehouse/**/*.parquet')": "the function read_parquet is not allowed",
        "DROP TABLE demo.campaign_daily": "only SELECT statements are allowed",
        "SET memory_limit = '1MB'": "only SELECT statements are allowed",
        "SELECT 1; SELECT 2": "one SELECT at a time",
        "SELECT * FROM delta_scan('x')": "the function delta_scan is not allowed",
        "SELECT CASE WHEN range = 900000 THEN error('boom') END FROM range(1000000)": "boom",
    }
    for bad, words in refusals.items():
        done = penstock("sql", bad, "--format", "csv", workspace=tour)
        assert done.returncode == 2, bad
        assert words in done.stderr, bad
        assert "Traceback" not in done.stderr


def test_every_type_of_duckdb_is_shown_or_refused_with_a_message(tour: Path, tmp_path: Path) -> None:
    statement = "SELECT * FROM test_all_types()"
    assert [row["timestamp"] for row in answer("sql", statement, workspace=tour)["items"]] == [
        "290309-12-22 (BC) 00:00:00",
        "294247-01-10 04:00:54.775806",
        None,
    ]
    assert penstock("sql", statement, workspace=tour).returncode == 0
    for kind in ("csv", "parquet", "arrow"):
        done = penstock("sql", statement, "--format", kind, "--output", str(tmp_path / kind), workspace=tour)
        assert done.returncode in (0, 2), done.stderr
        assert "Traceback" not in done.stderr
        assert done.returncode == 0 or "cannot be written as" in done.stderr


REFUSALS = [
    (("run", "demo/1/campaign_daily/2024-06-01"), "unknown customer 1 (known: 1000000001"),
    (("run", "demo/1000000001/campaign_daily/2099-01-01"), "is not due"),
    (("state", "inspect", "--customer", "42"), "unknown customer 42"),
    (("state", "inspect", "--query", "nope"), "unknown query nope (known: campaign_daily, network_daily)"),
    (("status", "--source", "nope"), "unknown source nope (known: demo)"),
    (("status", "--since", "yesterday"), "'yesterday' is not a date"),
    (("status", "--since", "2024-06-02", "--until", "2024-06-01"), "is after"),
    (("status", "--by", "colour"), "cannot group by colour"),
    (("state", "inspect", "--status", "green"), "use pending, success, failed"),
    (("state", "history", "demo/1000000001"), "is not a partition key"),
    (("read", "demo.nothing"), "unknown table demo.nothing"),
    (("read", "demo.campaign_daily", "--columns", "x"), "unknown column x"),
    (("read", "demo.campaign_daily", "--format", "xml"), "--format 'xml' is unknown"),
    (("run", "--date", "2024-06-01", "--since", "2024-06-01"), "--date is one day"),
    (("run", "--date", "", "--plan"), "--date is empty"),
    (("status", "--source", ""), "--source is empty"),
    (("missing", "--after", ""), "is not a partition key"),
    (("sql", "SELECT 1 AS a, 2 AS a", "--json"), "two columns have the same name"),
    (("sql", "SELECT INTERVAL 1 DAY AS d", "--format", "csv"), "cannot be written as csv"),
    (("read", "demo.campaign_daily", "--format", "csv", "--output", "/dev/null/x.csv"), "cannot write"),
    (("init", "/proc/x"), "cannot create a workspace"),
]


@pytest.mark.parametrize(
    ("arguments", "words"), REFUSALS, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_bad_input_is_refused_with_a_helpful_message(arguments: tuple[str, ...], words: str, tour: Path) -> None:
    done = penstock(*arguments, workspace=None if arguments[0] == "init" else tour)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_looking_needs_no_java(tour: Path, tmp_path: Path) -> None:
    (tmp_path / "java").write_text("#!/bin/sh\necho a JVM was started >&2; exit 1\n")
    (tmp_path / "java").chmod(0o755)
    looking = [
        ("status",), ("status", "--grid"), ("missing",), ("failed",), ("state", "inspect"), ("warehouse", "pointers"),
        ("read", "demo.campaign_daily"), ("sql", "SELECT 1"), ("run", "--plan"), ("audit", "list"), ("db", "migrate"),
    ]  # fmt: skip
    for arguments in looking:
        done = penstock(*arguments, workspace=tour, PATH=str(tmp_path), JAVA_HOME="")
        assert (done.returncode, "JVM" in done.stderr) == (0, False), (arguments, done.stderr)


def test_an_operator_retries_what_failed_and_a_bad_refetch_leaves_the_good_rows(tour: Path) -> None:
    """The last test of the tour: it changes the workspace."""
    preview = answer("state", "retry", "--dry-run", workspace=tour)
    assert (preview["total"], preview["requeued"]) == (8, 0)
    assert answer("state", "retry", "--customer", "1000000002", "--actor", "ops", workspace=tour)["requeued"] == 8
    assert answer("state", "retry", workspace=tour)["requeued"] == 0  # repeating changes nothing
    [entry] = answer("audit", "list", workspace=tour)["items"]
    assert (entry["actor"], entry["command"], entry["affected"]) == ("ops", "state retry", 8)
    assert entry["filters"] == {"customers": ["1000000002"]}
    reasons = answer("run", "--plan", workspace=tour)["reasons"]
    assert reasons == {"requeued": 8, "missing": 4}

    second = answer("run", workspace=tour, FAULTS="false")
    assert (second["accepted"], second["loaded"], second["failures"]) == (12, 12, [])
    third = answer("run", workspace=tour)
    assert (third["planned"], third["loaded"]) == (0, 0)

    before = answer("read", "demo.campaign_daily", workspace=tour)
    bad = answer(
        "run", "--customer", "1000000001", "--reprocess", workspace=tour, code=1, FAULTS="false", BAD_REFETCH="true"
    )
    assert (bad["planned"], bad["rejected"]) == (8, 4)  # only campaign_daily has a shrink guard
    assert answer("read", "demo.campaign_daily", workspace=tour) == before
    counts = answer("status", "--query", "campaign_daily", workspace=tour)["counts"]
    assert counts == {"materialized": 16, "materialized_but_last_attempt_failed": 4}
    runs = json.dumps(answer("read", "demo.network_daily", "--customer", "1000000001", workspace=tour))
    assert bad["run_id"] in runs


# --- runs, ledger and projections ------------------------------------------------------------------------------------


def test_runs_are_listed_and_shown_with_what_holds_them_up(tour: Path) -> None:
    found = answer("runs", "list", workspace=tour)
    newest = found["items"][0]
    assert newest["tasks_total"] == sum(
        newest[f"tasks_{state}"]
        for state in ("succeeded", "failed", "skipped", "cancelled", "running", "ready", "blocked")
    )
    first = found["items"][-1]
    page = answer("runs", "show", first["run_id"], workspace=tour)
    assert page["state"] == "FAILED"
    assert {(row["stage"], row["state"]) for row in page["stages"]} >= {("load", "SKIPPED"), ("load", "SUCCEEDED")}
    assert page["failed"]
    assert page["blocked"][0]["resolution"] == "FAILED"
    words = penstock("runs", "show", first["run_id"], workspace=tour).stdout
    assert "Held up" in words
    missing = penstock("runs", "show", "01J00000000000000000000000", workspace=tour)
    assert (missing.returncode, "there is no run" in missing.stderr) == (2, True)


def test_projections_are_tables_in_sql_and_can_be_made_anew(tour: Path) -> None:
    tables = ("runs", "tasks", "dep_satisfaction", "partition_status")

    def everything() -> dict[str, Any]:
        return {
            name: answer("sql", f"SELECT * FROM system.{name} ORDER BY ALL", workspace=tour)["items"] for name in tables
        }

    before = everything()
    assert before["partition_status"][0]["tenant_id"] == before["runs"][0]["tenant_id"]
    assert answer("ledger", "rebuild", workspace=tour)["events"] > 0
    assert everything() == before
    events = answer("ledger", "tail", "--limit", "3", workspace=tour)["items"]
    assert [event["position"] for event in events] == sorted(event["position"] for event in events)
    more = answer("ledger", "tail", "--after", "1", "--limit", "2", "--type", "TaskStarted", workspace=tour)["items"]
    assert {event["type"] for event in more} == {"TaskStarted"}


def test_missing_is_listed_in_ranges_and_stale_with_its_reasons(tour: Path) -> None:
    missing = answer("missing", workspace=tour)
    assert sum(gap["partitions"] for gap in missing["ranges"]) == missing["total"]
    assert answer("stale", "--reasons", workspace=tour)["reasons"]["UPSTREAM_CHANGED"] == 0
    assert answer("stale", "--sweep", workspace=tour)["swept"] == answer("stale", workspace=tour)["total"]


# --- the published side ----------------------------------------------------------------------------------------------


def test_readiness_raw_loads_and_snapshots(tour: Path) -> None:
    pointers = answer("warehouse", "pointers", workspace=tour)["items"]
    served = next(pointer for pointer in pointers if pointer["available"])
    loads = answer("warehouse", "loads", served["key"], workspace=tour)["items"]
    assert served["run_id"] in {load["run_id"] for load in loads}
    asset = f"{served['source']}.{served['query_name']}"
    one = ("--date", served["logical_date"], "--customer", served["customer_id"])
    assert answer("ready", asset, *one, workspace=tour)["ready"] is True
    too_much = answer("ready", asset, "--require", "9999", "--wait", "1s", workspace=tour, code=1)
    assert (too_much["ready"], too_much["tables"][0]["table"]) == (False, asset)
    runs = answer("raw", "list", served["key"], workspace=tour)["items"]
    assert [run["run_id"] for run in runs if run["authoritative"]] == [served["run_id"]]
    assert answer("raw", "read", served["key"], workspace=tour)["total"] == served["record_count"]
    taken = answer("snapshot", "tour", workspace=tour)
    assert taken["snapshot"] == "tour"
    rows = ("read", asset, "--customer", served["customer_id"], "--date", served["logical_date"])
    assert answer(*rows, "--as-of", "tour", workspace=tour)["items"] == answer(*rows, workspace=tour)["items"]
    unknown = penstock(*rows, "--as-of", "never", workspace=tour)
    assert "unknown snapshot 'never' (snapshots: tour)" in unknown.stderr


def test_the_warehouse_is_verified_reconciled_and_vacuumed(tour: Path) -> None:
    assert answer("warehouse", "verify", workspace=tour)["total"] == 0
    assert answer("warehouse", "reconcile", "--dry-run", workspace=tour)["counts"] == {}
    assert answer("warehouse", "reconcile", workspace=tour)["loaded"] == 0
    before = answer("read", "demo.campaign_daily", workspace=tour)["items"]
    compacted = answer("warehouse", "compact", workspace=tour)
    assert sorted(item["table"] for item in compacted["items"]) == ["demo.campaign_daily.v1", "demo.network_daily.v1"]
    assert all(item["files_after"] <= item["files_before"] for item in compacted["items"])
    assert answer("read", "demo.campaign_daily", workspace=tour)["items"] == before
    assert answer("warehouse", "vacuum", "--dry-run", workspace=tour)["files"] == 0
    refused = penstock("warehouse", "vacuum", "--retention", "5m", workspace=tour)
    assert (refused.returncode, "at least" in refused.stderr) == (2, True)
