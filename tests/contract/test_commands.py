"""Operator commands in this process, on a real state database and lake: confirmations, refusals, reports. No Spark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
import sqlalchemy as sa

from penstock.app.context import os_user
from penstock.control.breaker import observed
from penstock.control.select import Selection
from penstock.db import schema
from penstock.errors import ErrorClass, UsageError
from penstock.lifecycle import AttemptReason, Stage
from penstock.partition import AttemptKey, PartitionKey, RunId, new_run_id
from penstock.raw.layout import run_folder
from penstock.raw.sink import RawSink
from penstock.state.records import Observation, Planned, Rejected
from support import builders
from support.cli import Ended, in_process
from support.harness import SHRUNK, Harness
from support.workspaces import key

TABLE = "demo.campaign_daily"
PATIENT = "3650d"


class Shop(Harness):
    """A workspace whose clock can be set back, with commands that run in this process by the real clock."""

    ago = timedelta(0)

    def now(self) -> datetime:
        return datetime.now(UTC) - self.ago

    def run(self, *arguments: str, stdin: str | None = None) -> Ended:
        return in_process(*arguments, workspace=self.folder, stdin=stdin)

    def ask(self, *arguments: str) -> dict[str, Any]:
        ended = self.run(*arguments, "--json")
        assert ended.code == 0, ended.stderr
        return ended.document

    def fail(self, keys: Iterable[PartitionKey], **changes: Any) -> RunId:
        """Attempts that end in a rejection: by default of an extraction, for a reason that passes."""
        run_id, token, seen = new_run_id(), self.workers.register(), self._last_attempts()
        facts: dict[str, Any] = {"stage": Stage.EXTRACT, "error_class": ErrorClass.TRANSIENT} | changes
        found = self.workspace.context.contracts
        planned = [
            Planned(
                k,
                seen.get(k, 0),
                AttemptReason.MISSING,
                found[k.query_name].fingerprint,
                found[k.query_name].schema_version,
            )
            for k in keys
        ]
        issued, refused = self.control.issue(run_id, token, 0, planned)
        assert not refused
        verdicts = [Rejected(i.attempt, token, error_message="no answer", **facts) for i in issued]
        assert len(self.validator.judge(verdicts).applied) == len(planned)
        self.workers.stop(token)
        return run_id

    def lose_raw(self, partition: PartitionKey, run_id: RunId) -> None:
        lake = self.workspace.context.lake
        lake.delete([entry.path for entry in lake.list(run_folder(AttemptKey(partition, run_id)))])

    def current(self, partition: PartitionKey) -> tuple[str, str | None]:
        state = self.workspace.context.state.state(partition)
        assert state is not None
        return state.status.value, state.current_run_id

    def commands(self) -> list[tuple[str, int]]:
        return [(line["command"], line["affected"]) for line in self.workspace.context.state.audit()]


def opened(folder: str, **query: Any) -> Shop:
    """By default no failure is too old to be retried."""
    return Shop(Path(folder), query={"start_date": "2024-06-01", "retry": {"max_age": PATIENT}, **query})


@pytest.fixture
def shop() -> Iterator[Shop]:
    with builders.quick_folder() as folder:
        made = opened(folder, checks=[{"shrink": {"max_drop": 0.5}}])
        yield made
        made.workspace.context.database.close()


def days(count: int, number: int = 1) -> list[PartitionKey]:
    first = date(2024, 6, 1)
    return [key(number, (first + timedelta(days=n)).isoformat()) for n in range(count)]


# --- rails -----------------------------------------------------------------------------------------------------------

ACTS = (
    ("state", "retry"),
    ("state", "mark-terminal", "--reason", "gone"),
    ("state", "pause", "--since", "2024-06-01", "--until", "2024-06-21", "--customer", "1000000001", "--reason", "x"),
    ("backfill", "create", "--since", "2024-06-01", "--until", "2024-06-21", "--customer", "1000000001"),
)


@pytest.mark.parametrize("act", ["mark-terminal", "clear-terminal"])
def test_a_mark_that_no_partition_needs_changes_nothing_and_is_not_recorded(shop: Shop, act: str) -> None:
    done = shop.run("state", act)
    assert (done.code, done.stdout) == (0, "nothing to do: no partition matches\n")
    assert shop.commands() == []


def test_pauses_in_force_are_listed_also_of_days_to_come(shop: Shop) -> None:
    said = shop.run("state", "pause", "--since", "2031-01-01", "--reason", "the account moves", "--actor", "kim")
    assert (said.code, said.stdout) == (0, "0 partitions are paused; customers and days that are added later, too\n")
    again = shop.run("state", "pause", "--since", "2031-01-01")
    assert (again.code, again.stdout) == (0, "nothing to do: all partitions that match are paused\n")
    shop.ask("state", "pause", "--date", "2024-06-09", "--yes")
    shop.ask("state", "resume", "--date", "2024-06-09", "--customer", key().customer_id)
    found = shop.ask("state", "pauses")
    names = ("paused", "customer_id", "first_date", "last_date", "actor", "reason")
    assert [tuple(item[name] for name in names) for item in found["items"]] == [
        (False, key().customer_id, "2024-06-09", "2024-06-09", found["items"][0]["actor"], None),
        (True, None, "2024-06-09", "2024-06-09", found["items"][1]["actor"], None),
        (True, None, "2031-01-01", None, "kim", "the account moves"),
    ]
    assert (found["total"], found["paused"]) == (3, 8)
    text = shop.run("state", "pauses").stdout
    assert "8 partitions are paused now" in text
    assert "resumed" in text
    shop.ask("state", "resume", "--yes")
    assert shop.ask("state", "pauses")["items"] == []
    assert shop.run("state", "pauses").stdout == "no pause by filters is in force\n0 partitions are paused now\n"
    over = shop.run("state", "resume", "--yes")
    assert (over.code, over.stdout) == (0, "nothing to do: nothing that matches is paused or held\n")


@pytest.mark.parametrize("act", ACTS, ids=lambda act: " ".join(act[:2]))
def test_more_than_20_partitions_are_changed_only_after_a_confirmation(shop: Shop, act: tuple[str, ...]) -> None:
    shop.fail(days(21))
    before = builders.everything(shop.workspace.context.database)
    refused = shop.run(*act)
    assert refused.code == 2
    assert "21" in refused.stderr
    assert "--yes" in refused.stderr
    assert shop.run(*act, stdin="n\n").code != 0
    assert builders.everything(shop.workspace.context.database) == before
    assert shop.run(*act, stdin="y\n").code == 0
    assert [count for _, count in shop.commands()] == [21]


@pytest.mark.parametrize("act", ACTS[:1], ids=lambda act: " ".join(act[:2]))
def test_20_partitions_are_changed_without_a_question_and_yes_answers_it(shop: Shop, act: tuple[str, ...]) -> None:
    shop.fail(days(20))
    assert shop.ask(*act)["requeued"] == 20
    shop.fail(days(21, number=2))
    assert shop.ask(*act, "--yes")["requeued"] == 21


def test_more_than_10_000_partitions_need_force_besides_yes() -> None:
    with builders.quick_folder() as folder:
        shop = opened(folder, start_date="2020-01-01")
        many = ("backfill", "create", "--until", "2023-12-31")
        refused = shop.run(*many, "--yes")
        assert (refused.code, shop.commands()) == (2, [])
        assert "--force" in refused.stderr
        assert shop.run(*many, "--force").code == 2, "force is no confirmation"
        assert shop.commands() == []
        assert shop.run(*many, "--yes", "--force").code == 0
        assert [name for name, _ in shop.commands()] == ["backfill create"]
        shop.workspace.context.database.close()


def test_a_retry_refuses_partitions_without_evidence_unless_forced(shop: Shop) -> None:
    nothing, error = days(2)
    shop.fail([nothing], stage=Stage.VALIDATE, error_class=ErrorClass.DATA)
    assert shop.run("state", "retry", "--json").code == 1
    shop.fail([error])
    found = shop.ask("state", "retry")
    assert (found["requeued"], found["refused"]) == (1, [str(nothing)])
    assert shop.current(nothing)[0] == "failed"
    found = shop.ask("state", "retry", "--without-raw")
    assert (found["requeued"], found["refused"]) == (1, [])
    assert shop.current(nothing)[0] == "pending"
    assert [line["flags"]["without_raw"] for line in shop.workspace.context.state.audit()] == [True, False]


# --- authority -------------------------------------------------------------------------------------------------------


def test_a_run_whose_raw_data_is_gone_is_not_returned_to(shop: Shop) -> None:
    older, newer = shop.deliver({key(): 1}), shop.deliver({key(): 2})
    shop.lose_raw(key(), older)
    for dry_run in ([], ["--dry-run"]):
        refused = shop.run("state", "rollback", str(key()), "--to", older, *dry_run)
        assert refused.code == 1
        assert "was deleted" in refused.stderr
    assert shop.current(key()) == ("success", newer)
    assert shop.commands() == [("state rollback", 0)]


def test_a_run_whose_raw_data_is_not_what_was_examined_is_not_returned_to(shop: Shop) -> None:
    older, newer = shop.deliver({key(): 1}), shop.deliver({key(): 2})
    shop.lose_raw(key(), older)
    writer = RawSink(shop.workspace.context.lake).writer(AttemptKey(key(), older))
    writer.write(orjson.dumps({"campaign_id": 1, "clicks": 99}))
    writer.seal(shop.now(), "v1", "1", "q", "UTC")
    refused = shop.run("state", "rollback", str(key()), "--to", older)
    assert refused.code == 1
    assert "differs from the validated payload" in refused.stderr
    assert shop.current(key()) == ("success", newer)


def test_a_run_with_its_raw_data_is_returned_to(shop: Shop) -> None:
    older, _ = shop.deliver({key(): 1}), shop.deliver({key(): 2})
    assert shop.ask("state", "rollback", str(key()), "--to", older)["changed"] == 1
    assert shop.current(key()) == ("success", older)
    assert shop.commands() == [("state rollback", 1)]


def test_a_held_back_run_is_approved_only_while_its_raw_data_is_there(shop: Shop) -> None:
    for number, lost in ((1, True), (2, False)):
        held = shop.hold_back(key(number))
        if lost:
            shop.lose_raw(key(number), held)
        ended = shop.run("state", "approve", str(key(number)), "--run", held, "--reason", "a quiet day")
        assert ended.code == int(lost)
        assert shop.current(key(number)) == (("failed", None) if lost else ("success", held))


def test_only_guards_are_overruled(shop: Shop) -> None:
    wrong = shop.hold_back(key(), [SHRUNK, SHRUNK | {"check": "unique campaign_id"}])
    refused = shop.run("state", "approve", str(key()), "--run", wrong, "--reason", "x")
    assert refused.code == 1
    assert "unique campaign_id" in refused.stderr
    assert shop.current(key())[0] == "failed"


def test_history_marks_no_demoted_run_as_the_one_that_consumers_read(shop: Shop) -> None:
    run_id = shop.deliver({key(): 1})
    [item] = shop.ask("state", "history", str(key()))["items"]
    assert (item["run_id"], item["authoritative"], item["demoted_at"]) == (run_id, True, None)
    assert attempt_line(shop).startswith("1 * ")
    assert shop.run("state", "demote", str(key()), "--reason", "wrong").code == 0
    for act in (None, "retry"):  # failed, then pending: the run is still on record
        if act:
            assert shop.run("state", act, str(key())).code == 0
        [item] = shop.ask("state", "history", str(key()))["items"]
        assert (item["authoritative"], item["demoted_at"] is not None) == (False, True)
        line = attempt_line(shop)
        assert line.startswith("1 ")
        assert "*" not in line
        assert line.endswith(f"demoted at {datetime.fromisoformat(item['demoted_at']):%Y-%m-%d %H:%M:%S} UTC")
    newer = shop.deliver({key(): 2})
    items = shop.ask("state", "history", str(key()))["items"]
    assert [(item["run_id"], item["authoritative"]) for item in items] == [(newer, True), (run_id, False)]


def attempt_line(shop: Shop) -> str:
    """The line of the only attempt in the history of a partition."""
    return shop.run("state", "history", str(key())).stdout.splitlines()[3].rstrip()


def test_an_approved_and_demoted_run_shows_why_it_was_held_back_and_that_it_was_demoted(shop: Shop) -> None:
    held = shop.hold_back(key())
    assert shop.run("state", "approve", str(key()), "--run", held, "--reason", "a quiet day").code == 0
    assert shop.run("state", "demote", str(key()), "--reason", "wrong").code == 0
    assert " shrunk; demoted at " in attempt_line(shop)


def test_why_shows_the_reason_of_a_rollback(shop: Shop) -> None:
    older, newest = shop.deliver({key(): 1}), shop.deliver({key(): 2})
    held = f"held back from restatement by {os_user()}"
    assert shop.run("state", "rollback", str(key()), "--to", older, "--reason", "the new one is wrong").code == 0
    assert f"{held}: the new one is wrong" in shop.ask("why", str(key()))["blocks"]
    assert shop.workspace.operations.rollback(key(), newest, reason="it was right", actor="ada")
    assert "held back from restatement by ada: it was right" in shop.ask("why", str(key()))["blocks"]
    assert shop.run("state", "rollback", str(key()), "--to", older).code == 0
    assert f"{held}: rollback to {older}" in shop.ask("why", str(key()))["blocks"]


@pytest.mark.parametrize("reason", ["", " ", "\t\n"])
def test_a_blank_reason_is_wrong_usage(shop: Shop, reason: str) -> None:
    older, _ = shop.deliver({key(1): 1}), shop.deliver({key(1): 2})
    held = shop.hold_back(key(2))
    before = builders.everything(shop.workspace.context.database)
    for act in (
        ("demote", str(key(1))),
        ("rollback", str(key(1)), "--to", older),
        ("approve", str(key(2)), "--run", held),
        ("pause", str(key(1))),
        ("pause", "--customer", key(1).customer_id, "--yes"),
        ("mark-terminal", str(key(2))),
    ):
        for dry_run in ([], ["--dry-run"]):
            refused = shop.run("state", *act, "--reason", reason, *dry_run)
            assert (refused.code, refused.stdout) == (2, "")
            assert "the reason is empty" in refused.stderr
    ws, entry = shop.workspace, builders.audit_entry()
    acts: Sequence[Callable[[], object]] = (
        lambda: ws.operations.demote(key(1), reason=reason, actor=entry.actor),
        lambda: ws.operations.rollback(key(1), older, reason=reason, actor=entry.actor),
        lambda: ws.operations.approve(key(2), held, reason=reason, actor=entry.actor),
        lambda: ws.operations.pause(Selection(keys=(key(1),)), reason=reason, actor=entry.actor),
        lambda: ws.operations.pause(Selection(), reason=reason, actor=entry.actor),
        lambda: ws.context.marks.mark_terminal([key(2)], reason, entry),
        lambda: ws.context.marks.pause([key(2)], reason, entry),
    )
    for method in acts:
        with pytest.raises(UsageError, match="the reason is empty"):
            method()
    assert builders.everything(ws.context.database) == before


# --- raw -------------------------------------------------------------------------------------------------------------


def test_raw_rows_are_read_only_while_the_partition_is_success(shop: Shop) -> None:
    run_id = shop.deliver({key(): 5})
    read = ("raw", "read", str(key()))
    assert [row["clicks"] for row in shop.ask(*read)["items"]] == [5, 5, 5]
    [listed] = shop.ask("raw", "list", str(key()))["items"]
    assert (listed["run_id"], listed["authoritative"]) == (run_id, True)
    assert shop.run("state", "demote", str(key()), "--reason", "wrong").code == 0
    assert shop.commands() == [("state demote", 1)]
    refused = shop.run(*read)
    assert (refused.code, refused.stdout) == (1, "")
    assert "has no trusted run" in refused.stderr
    [listed] = shop.ask("raw", "list", str(key()))["items"]
    assert (listed["run_id"], listed["authoritative"]) == (run_id, False)
    assert shop.run("state", "retry", str(key())).code == 0  # pending, with the demoted run still on record
    assert shop.run(*read).code == 1


def test_raw_gc_previews_deletes_and_is_audited(shop: Shop) -> None:
    shop.ago = timedelta(days=100)
    old = shop.deliver({key(): 1})
    shop.ago = timedelta(0)
    new = shop.deliver({key(): 2})
    shop.publish()
    preview = shop.ask("raw", "gc", "--dry-run")
    assert [(item["key"], item["run_id"]) for item in preview["items"]] == [(str(key()), old)]
    assert preview["total"] == 1
    assert raw_runs(shop) == {old, new}
    assert shop.commands() == []
    assert shop.ask("raw", "gc", "--older-than", "101d", "--dry-run")["items"] == []
    assert shop.ask("raw", "gc", "--older-than", "101d")["deleted"] == 0
    assert shop.ask("raw", "gc", "--actor", "ada") == {"deleted": 1, "files": 2, "dry_run": False}
    assert raw_runs(shop) == {new}
    newest = shop.workspace.context.state.audit()[0]
    assert (newest["command"], newest["actor"], newest["affected"]) == ("raw gc", "ada", 1)
    assert shop.run("state", "rollback", str(key()), "--to", old).code == 1
    assert shop.ask("raw", "gc", "--dry-run")["items"] == []
    assert shop.run("raw", "gc", "--older-than", "soon").code == 2


def raw_runs(shop: Shop) -> set[str]:
    return {entry.path.split("run_id=")[1].split("/")[0] for entry in shop.workspace.context.lake.list("raw")}


# --- output ----------------------------------------------------------------------------------------------------------


def test_history_shows_the_next_retry_of_the_newest_attempt() -> None:
    with builders.quick_folder() as folder:
        shop = opened(folder, retry={"max_attempts": 3, "backoff": ["1h"], "jitter": 0, "max_age": PATIENT})
        shop.fail([key()])
        shop.fail([key()])
        shop.workspace.runners.schedule_retries()
        newest, oldest = shop.ask("state", "history", str(key()))["items"]
        coming = datetime.fromisoformat(newest["next_run_at"])
        assert coming == datetime.fromisoformat(newest["finished_at"]) + timedelta(hours=1)
        assert oldest["next_run_at"] is None
        text = shop.run("state", "history", str(key())).stdout
        assert f"next retry: {coming:%Y-%m-%d %H:%M} UTC" in text
        shop.fail([key()])
        shop.workspace.runners.schedule_retries()
        assert {item["next_run_at"] for item in shop.ask("state", "history", str(key()))["items"]} == {None}
        assert "next retry" not in shop.run("state", "history", str(key())).stdout
        shop.workspace.context.database.close()


def test_terminal_partitions_are_listed_by_attempts_by_age_and_by_mark() -> None:
    with builders.quick_folder() as folder:
        shop = opened(folder, retry={"max_attempts": 2, "backoff": ["5m"], "max_age": "10d"})
        hopeful, often, given_up, old = (
            key(1, (shop.now().date() - timedelta(days=n)).isoformat()) for n in (2, 3, 4, 20)
        )
        shop.ago = timedelta(days=12)
        shop.fail([old])
        shop.ago = timedelta(0)
        shop.fail([hopeful, often, given_up])
        shop.fail([often])
        shop.workspace.runners.schedule_retries()
        assert shop.run("state", "mark-terminal", str(given_up), "--reason", "account closed").code == 0
        found = shop.ask("state", "terminal")
        assert found["total"] == 3
        assert {item["key"]: item["marked"] for item in found["items"]} == {
            str(often): False,
            str(old): False,
            str(given_up): True,
        }
        inspected = shop.ask("state", "inspect")["items"]
        assert {item["key"] for item in inspected if item["terminal"]} == {str(k) for k in (often, old, given_up)}
        assert shop.run("state", "clear-terminal", str(given_up)).code == 0
        assert {item["key"] for item in shop.ask("state", "terminal")["items"]} == {str(often), str(old)}
        shop.workspace.context.database.close()


def test_reading_as_of_a_snapshot_says_how_much_was_withdrawn_since(shop: Shop) -> None:
    shop.deliver({key(1): 1, key(2): 2, key(3): 3})
    shop.publish()
    assert shop.run("state", "demote", str(key(3)), "--reason", "wrong").code == 0
    assert shop.run("snapshot", "june").code == 0
    reading = (("read", TABLE), ("sql", f"SELECT * FROM {TABLE}"))
    for command in reading:
        ended = shop.run(*command, "--as-of", "june", "--format", "json")
        assert (ended.code, ended.stderr) == (0, ""), "what was demoted before the snapshot is not news"
    assert shop.run("state", "demote", str(key(1)), "--reason", "wrong").code == 0
    for command in reading:
        ended = shop.run(*command, "--as-of", "june", "--format", "json")
        assert ended.code == 0
        assert "1 partition" in ended.stderr
        assert "june" in ended.stderr
        assert {row["customer_id"] for row in ended.document["items"]} == {key(2).customer_id}


def test_a_status_that_no_partition_has_counts_nothing_and_says_so() -> None:
    with builders.quick_folder() as folder:
        first = (datetime.now(UTC) - timedelta(days=2)).date()  # one day, for 9 customers
        shop = opened(folder, start_date=first.isoformat(), restate={"days": 3})
        today = first.isoformat()
        shop.deliver({key(number, today): 1 for number in range(1, 8)})
        shop.publish()
        chosen = ("--date", today)
        assert shop.run("status", *chosen, "--status", "failed").stdout == "9 partitions expected: none is failed\n"
        assert shop.ask("status", *chosen)["provisional"] == 7
        assert shop.ask("status", *chosen, "--status", "success")["provisional"] == 7
        shop.fail([key(8, today), key(9, today)])
        for status, total in (("failed", 2), ("pending", 0)):
            found = shop.ask("status", *chosen, "--status", status)
            assert (found["total"], found["provisional"]) == (total, 0)
            assert "provisional" not in shop.run("status", *chosen, "--status", status).stdout
        nothing = "nothing is expected: check customers, start_date and the filters\n"
        assert shop.run("status", "--date", "2024-05-01").stdout == nothing
        assert shop.run("status", "--date", "2024-05-01", "--status", "failed").stdout == nothing
        assert shop.run("status", *chosen, "--source", "nothing", "--status", "failed").code == 2
        shop.workspace.context.database.close()


def test_two_schema_versions_of_one_table_are_refused(shop: Shop) -> None:
    shop.deliver({key(): 1})
    shop.publish()
    asked = ("sql", f"SELECT count(*) AS n FROM {TABLE}", "--schema-version", f"{TABLE}=v1")
    refused = shop.run(*asked, "--schema-version", f"{TABLE}=v2")
    assert (refused.code, refused.stdout) == (2, "")
    assert refused.stderr == f"penstock: --schema-version names two versions of {TABLE}: v1 and v2; name one\n"
    assert shop.ask(*asked)["items"] == shop.ask(*asked, *asked[2:])["items"] == [{"n": 3}]


def test_backfills_show_when_they_ended_and_active_ones_when_they_will(shop: Shop) -> None:
    store, partitions = shop.workspace.context.backfills, days(2)
    made = shop.ask("backfill", "create", *map(str, partitions))["backfill_id"]
    assert end_of(shop, made) == "-", "nothing is done, so nobody knows"
    for at, partition in enumerate(partitions):
        chunk = store.claim(store.get(made), shop.workers.register(), new_run_id(), partition, partition, 1)
        assert chunk is not None
        store.finish(chunk)
        if at == 0:
            for page in (("list",), ("show", made)):
                estimate = datetime.fromisoformat(end_of(shop, made, *page)).replace(tzinfo=UTC)
                assert estimate >= datetime.now(UTC) - timedelta(minutes=1)
            assert shop.ask("backfill", "show", made)["finished_at"] is None
    store.end(made)
    cancelled = shop.ask("backfill", "create", str(key()))["backfill_id"]
    assert shop.run("backfill", "cancel", cancelled).code == 0
    for backfill_id, status in ((made, "finished"), (cancelled, "cancelled")):
        found = shop.ask("backfill", "show", backfill_id)
        assert (found["status"], found["eta"]) == (status, None)
        end = f"{datetime.fromisoformat(found['finished_at']):%Y-%m-%d %H:%M:%S}"
        assert end_of(shop, backfill_id) == end_of(shop, backfill_id, "show", backfill_id) == end


def end_of(shop: Shop, backfill_id: str, *command: str) -> str:
    """The last column of a backfill, in the list or on its page."""
    lines = shop.run("backfill", *(command or ("list",))).stdout.splitlines()
    assert lines[0].rstrip().endswith("done at (UTC)")
    [line] = [line for line in lines if line.startswith(backfill_id)]
    return re.split(r"  +", line.rstrip())[-1]


# --- breaker and ledger ----------------------------------------------------------------------------------------------


def test_an_open_breaker_is_closed_by_hand_and_what_waited_for_it_is_due(shop: Shop) -> None:
    refused = Observation(refused=3, message="renew the credentials")
    shop.workspace.context.breakers.change("demo", lambda breaker: observed(breaker, refused, shop.now()))
    waiting, pausing = days(2)
    later = shop.now() + timedelta(hours=1)
    control = schema.partition_control
    rows = [
        {**builders.columns(partition), "next_run_at": later, "strategy": strategy}
        for partition, strategy in ((waiting, "auth"), (pausing, "quota"))
    ]
    shop.workspace.context.database.transact(lambda connection: connection.execute(sa.insert(control), rows))
    [item] = shop.ask("control", "breakers")["items"]
    assert (item["source"], item["open"], item["error_message"]) == ("demo", True, "renew the credentials")
    assert shop.ask("control", "close-breaker", "demo", "--actor", "ada") == {
        "source": "demo",
        "changed": 1,
        "dry_run": False,
    }
    assert [b["open"] for b in shop.ask("control", "breakers")["items"]] == [False]
    [line] = shop.workspace.context.state.audit()
    assert (line["actor"], line["command"], line["affected"]) == ("ada", "control close-breaker", 1)
    rows = builders.everything(shop.workspace.context.database, [control])["partition_control"]
    assert {row["logical_date"]: row["strategy"] for row in rows} == {
        waiting.logical_date: None,
        pausing.logical_date: "quota",
    }
    assert shop.ask("control", "close-breaker", "demo")["changed"] == 0
    assert len(shop.commands()) == 1, "nothing was done, so nothing is recorded"


def test_the_breaker_of_an_unknown_source_is_refused_with_the_known_ones(shop: Shop) -> None:
    refused = shop.run("control", "close-breaker", "ads")
    assert refused.code == 2
    assert "demo" in refused.stderr


def test_old_events_are_exported_after_a_preview_and_a_yes(shop: Shop) -> None:
    shop.ago = timedelta(days=91)
    old = shop.deliver({key(1): 1})
    shop.ago = timedelta(0)
    young = shop.deliver({key(2): 2})
    export = ("ledger", "export")
    before = shop.ask("ledger", "tail", "--limit", "100")["items"]
    mine = [event for event in before if event["run_id"] == old]
    assert 0 < len(mine) < len(before)
    refused = shop.run(*export)
    assert refused.code == 2
    assert "--yes" in refused.stderr
    assert shop.ask(*export, "--dry-run") == {"events": len(mine), "segments": [], "dry_run": True}
    assert shop.ask("ledger", "tail", "--limit", "100")["items"] == before
    assert shop.ask(*export, "--yes", "--older-than", "92")["events"] == 0
    assert shop.commands() == []
    done = shop.ask(*export, "--yes", "--actor", "ada")
    assert done["events"] == len(mine)
    assert len(done["segments"]) == 1
    assert {event["run_id"] for event in shop.ask("ledger", "tail", "--limit", "100")["items"]} == {young}
    [line] = shop.workspace.context.state.audit()
    assert (line["actor"], line["command"], line["affected"]) == ("ada", "ledger export", len(mine))
    assert line["filters"] == {"older_than_days": 90}
    assert shop.ask("ledger", "rebuild")["events"] == len(before)
    assert {item["key"] for item in shop.ask("state", "inspect")["items"]} == {str(key(1)), str(key(2))}
