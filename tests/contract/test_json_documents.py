"""The JSON documents that scripts rely on: the output of `--json`, field by field."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.errors import ErrorClass
from penstock.flow.summary import Failure, RunSummary
from penstock.lifecycle import AttemptReason, DisplayStatus, Outcome, PartitionStatus, Stage
from penstock.partition import new_run_id
from penstock.state.records import Planned
from penstock.views.runs import run_document
from support import builders
from support.builders import rejected
from support.harness import Harness
from support.workspaces import key

GOLDEN = Path(__file__).parent / "golden_documents.json"
DAY = "2024-06-09"
PARTITION = {"key", "source", "customer_id", "query_name", "logical_date"}
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
FILTERS = ("--since", DAY, "--until", DAY)


@pytest.fixture(scope="module")
def house() -> Iterator[Harness]:
    """One partition is published, one was rejected, and nothing is known of the others."""
    with builders.quick_folder() as folder:
        made = Harness(Path(folder), query={"retry": {"max_age": "20000d"}})  # its days are years ago
        made.deliver({key(1): 1})
        made.publish()
        reject(made, 2)
        yield made
        made.workspace.context.database.close()


def reject(house: Harness, number: int) -> None:
    contract = house.workspace.context.contracts["campaign_daily"]
    planned = Planned(key(number), 0, AttemptReason.MISSING, contract.fingerprint, contract.schema_version)
    token = house.workers.register()
    issued, _ = house.control.issue(new_run_id(), token, 0, [planned])
    complaint = {"check": "range", "message": "clicks is negative", "count": 1, "line": 1, "example": "{}"}
    verdict = rejected(issued[0].attempt, token, complaints=[complaint], record_count=3, payload_digest="d")
    assert house.validator.judge([verdict]).applied
    house.workers.stop(token)


def told(house: Harness, *arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*arguments, "--json", "--workspace", str(house.folder)])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


LISTS: dict[tuple[str, ...], bool] = {
    ("state", "inspect", *FILTERS): True,
    ("state", "terminal", *FILTERS): True,
    ("state", "history", str(key(2))): False,
    ("state", "retry", "--dry-run", *FILTERS): True,
    ("missing", *FILTERS): True,
    ("failed", *FILTERS): True,
    ("stale", *FILTERS): True,
    ("run", "--plan", *FILTERS): True,
    ("warehouse", "pointers"): True,
    ("warehouse", "loads"): True,
    ("raw", "list", str(key(1))): False,
    ("read", "demo.campaign_daily"): False,
    ("runs", "list"): False,
    ("backfill", "list"): False,
    ("audit", "list"): False,
    ("ledger", "tail"): False,
}
NOTHING = {("state", "terminal", *FILTERS), ("stale", *FILTERS), ("backfill", "list"), ("audit", "list")}


@pytest.mark.parametrize("command", LISTS, ids=" ".join)
def test_a_list_has_items_and_a_total_and_partitions_say_which_they_are(
    house: Harness, command: tuple[str, ...]
) -> None:
    found = told(house, *command)
    assert isinstance(found["items"], list)
    assert found["total"] >= len(found["items"])
    assert bool(found["items"]) == (command not in NOTHING)
    if LISTS[command]:
        for item in found["items"]:
            assert set(item) >= PARTITION
            assert item["key"] == "/".join(
                item[name] for name in ("source", "customer_id", "query_name", "logical_date")
            )
            assert re.fullmatch(r"\d{4}-\d\d-\d\d", item["logical_date"])


def test_inspect_has_the_columns_of_the_contract_and_the_control_metadata(house: Harness) -> None:
    good, bad = (told(house, "state", "inspect", str(key(number)))["items"][0] for number in (1, 2))
    contract = {
        "status",
        "current_run_id",
        "schema_version",
        "record_count",
        "updated_at",
        "error_message",
        "attempt_count",
    }
    assert set(good) >= {*PARTITION, *contract, "next_run_at", "terminal", "paused", "open_attempt"}
    assert (good["status"], good["schema_version"], good["record_count"]) == ("success", "v1", 3)
    assert (good["attempt_count"], good["error_message"], good["display_status"]) == (1, None, "materialized")
    assert (bad["status"], bad["current_run_id"], bad["error_message"]) == ("failed", None, "clicks is negative")
    assert (bad["terminal"], bad["paused"], bad["open_attempt"]) == (False, False, None)
    assert MOMENT.fullmatch(good["updated_at"])
    [named] = told(house, "state", "inspect", str(key(3)))["items"]
    assert (named["status"], named["implicit"], named["attempt_count"]) == ("pending", True, 0)


def test_history_shows_the_outcome_of_each_attempt(house: Harness) -> None:
    [attempt] = told(house, "state", "history", str(key(2)))["items"]
    names = ("outcome", "stage", "error_class", "error_message", "record_count")
    assert tuple(attempt[name] for name in names) == ("FAILED", "validate", "data", "clicks is negative", 3)
    assert [complaint["message"] for complaint in attempt["complaints"]] == ["clicks is negative"]
    assert MOMENT.fullmatch(attempt["started_at"])
    assert MOMENT.fullmatch(attempt["finished_at"])
    assert re.fullmatch(r"[0-9A-Z]{26}", attempt["run_id"])


def test_pointers_say_what_is_served(house: Harness) -> None:
    [pointer] = told(house, "warehouse", "pointers")["items"]
    [state] = told(house, "state", "inspect", str(key(1)))["items"]
    assert (pointer["run_id"], pointer["schema_version"]) == (state["current_run_id"], "v1")
    assert (pointer["available"], pointer["record_count"]) == (True, 3)
    [(_, head)] = house.workspace.maintenance.tables()
    assert (pointer["table"], pointer["table_version"]) == (head.name, head.version)
    assert MOMENT.fullmatch(pointer["loaded_at"])


def test_status_counts_by_display_status(house: Harness) -> None:
    found = told(house, "status", *FILTERS, "--by", "customer")
    assert found["counts"] == {"materialized": 1, "never_materialized": 8}
    assert {item["customer"]: item["display_status"] for item in found["items"]}[key(1).customer_id] == "materialized"
    assert sum(item["count"] for item in found["items"]) == 9


def test_a_run_says_what_became_of_it() -> None:
    summary = RunSummary(new_run_id(), planned=9, accepted=4, rejected=2, loaded=4, skipped=1, cancelled=1, blocked=1)
    summary.fail([Failure(key(1), Stage.EXTRACT, ErrorClass.TRANSIENT, "no answer")])
    found = run_document(summary)
    counts = {"planned": 9, "accepted": 4, "rejected": 2, "loaded": 4, "skipped": 2, "cancelled": 1, "seconds": 0.0}
    assert {name: found[name] for name in counts} == counts
    assert found["run_id"] == summary.run_id
    assert found["failures"] == [
        {"key": str(key(1)), "stage": "extract", "error_class": "transient", "message": "no answer"}
    ]


def test_the_names_of_states_are_the_documented_ones() -> None:
    assert [status.value for status in DisplayStatus] == [
        "never_materialized",
        "materialized",
        "materialized_but_last_attempt_failed",
        "stale",
        "unavailable",
    ]
    assert {outcome.value for outcome in Outcome} == {"SUCCEEDED", "FAILED", "CANCELLED"}
    assert {status.value for status in PartitionStatus} == {"pending", "success", "failed"}


def test_pages_of_a_long_list_go_on_after_a_key(house: Harness) -> None:
    first = told(house, "missing", *FILTERS, "--limit", "3")
    rest = told(house, "missing", *FILTERS, "--limit", "100", "--after", first["items"][-1]["key"])
    assert (len(first["items"]), first["total"]) == (3, 8)
    assert [item["key"] for item in (*first["items"], *rest["items"])] == [str(key(number)) for number in range(2, 10)]


def test_the_keys_of_each_document_and_their_order_are_the_golden_ones(house: Harness) -> None:
    golden: dict[str, Any] = json.loads(GOLDEN.read_text())
    assert {command: keys(told(house, *command.split())) for command in golden} == golden


def keys(value: Any) -> Any:
    """The keys of a document in their order; of a list those of its first item."""
    if isinstance(value, dict):
        return [[name, inner] if (inner := keys(item)) else name for name, item in value.items()]
    return [keys(value[0])] if isinstance(value, list) and value and keys(value[0]) else None
