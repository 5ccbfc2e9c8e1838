"""Frozen history: days that a source no longer serves stay as they are, whatever is requested."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
import yaml

from penstock.app import Workspace
from penstock.control.requeue import NotRetried
from penstock.control.round import Planner
from penstock.control.select import Selection
from penstock.errors import ErrorClass, UsageError
from penstock.flow.guard import Gate
from penstock.lifecycle import AttemptReason, Stage
from penstock.partition import PartitionKey, new_run_id
from penstock.state.control import ControlStore
from penstock.state.records import Accepted, Planned, Rejected
from penstock.state.validator import ValidatorStore
from penstock.state.worker import WorkerStore
from support import builders
from support.builders import BACKENDS, audit_entry
from support.workspaces import customer_id, open_at, write_workspace

NOW = datetime(2024, 6, 11, 12, tzinfo=UTC)
FROZEN, OPEN = (1, 2, 3, 4, 5), (6, 7, 8, 9, 10)  # of June, for a source that keeps five days


def key(day: int, number: int = 1) -> PartitionKey:
    return PartitionKey("demo", customer_id(number), "campaign_daily", date(2024, 6, day))


def days_of(keys: list[PartitionKey]) -> list[int]:
    return sorted({key.logical_date.day for key in keys})


@dataclass(frozen=True, slots=True)
class Office:
    """A workspace, and a worker that closes attempts in it."""

    workspace: Workspace
    token: str

    def close(self, *days: int, accept: bool) -> None:
        database, run_id = self.workspace.context.database, new_run_id()
        contract = self.workspace.context.contracts["campaign_daily"]
        control, validator = (
            ControlStore(database, self.workspace.context.now),
            ValidatorStore(database, self.workspace.context.now),
        )
        control.store_contracts([(contract.fingerprint, "demo", contract.query_name, "v1", contract.body())])
        planned = [Planned(key(day), 0, AttemptReason.MISSING, contract.fingerprint, "v1") for day in days]
        issued, refused = control.issue(run_id, self.token, 1, planned)
        assert not refused
        for item in issued:
            if accept:
                verdict = Accepted(item.attempt, self.token, "v1", 5, f"sha-{run_id}", 100, f"content-{run_id}")
                assert validator.judge([verdict]).applied
            else:
                words = (Stage.EXTRACT, ErrorClass.TRANSIENT, "no answer")
                assert validator.judge([Rejected(item.attempt, self.token, *words)]).applied

    def planner(self) -> Planner:
        ws = self.workspace
        return Planner(
            ws.context.state,
            ws.context.backfills,
            ws.settings,
            ws.context.contracts,
            self.token,
            lambda source: Gate.OPEN,
        )


@pytest.fixture(params=BACKENDS)
def office(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Office]:
    folder = write_workspace(tmp_path, customers=1, query={"start_date": "2024-06-01", "restate": {"days": 30}})
    body = yaml.safe_load((folder / "penstock.yaml").read_text())
    body["sources"]["demo"]["keeps"] = "5 days"
    if request.param == "postgresql":
        database = builders.open_database("postgresql", folder, lambda: request.getfixturevalue("postgres_url"))
        body |= {"state": database.url.render_as_string(hide_password=False), "schema": database.schema}
    (folder / "penstock.yaml").write_text(yaml.safe_dump(body, sort_keys=False))
    workspace = open_at(folder, NOW)
    yield Office(workspace, WorkerStore(workspace.context.database, workspace.context.now).register())
    workspace.context.database.close()


def test_missing_days_that_are_frozen_are_expected_but_never_planned(office: Office) -> None:
    plan = office.workspace.plans.preview(Selection())
    assert days_of([item.key for item in plan.items]) == [*OPEN]
    assert plan.reasons == {"missing": 5}
    assert office.workspace.status.board(Selection()).missing() == 10
    planned = office.planner().plan(new_run_id(), NOW)
    assert days_of([item.key for item in planned.items]) == [*OPEN]
    assert planned.waiting == 0


def test_frozen_days_are_neither_reprocessed_nor_restated_nor_retried(office: Office) -> None:
    office.close(1, 2, 6, 7, accept=True)
    office.close(3, 8, accept=False)
    office.workspace.runners.schedule_retries()
    later = open_at(office.workspace.settings.root, datetime(2024, 6, 11, 18, tzinfo=UTC))
    plan = later.plans.preview(Selection(), reprocess=True)
    assert days_of([item.key for item in plan.items]) == [*OPEN]
    assert {item.key.logical_date.day: item.reason for item in plan.items} == {
        6: "reprocess", 7: "reprocess", 8: "retry", 9: "missing", 10: "missing",
    }  # fmt: skip
    tomorrow = open_at(office.workspace.settings.root, datetime(2024, 6, 12, 18, tzinfo=UTC))
    assert days_of([item.key for item in tomorrow.plans.preview(Selection()).items if item.reason == "restate"]) == [7]
    for workspace in (later, tomorrow):
        workspace.context.database.close()


def test_a_frozen_partition_given_by_key_is_refused_with_a_message(office: Office) -> None:
    for reprocess in (False, True):
        with pytest.raises(UsageError, match=r"06-05 is frozen: demo serves only 2024-06-06 and later"):
            office.workspace.plans.preview(Selection(keys=(key(5),)), reprocess=reprocess)
    assert [item.key for item in office.workspace.plans.preview(Selection(keys=(key(6),))).items] == [key(6)]


def test_what_failed_and_froze_cannot_be_requeued(office: Office) -> None:
    office.close(4, 8, accept=False)
    found = office.workspace.operations.preview_retry(Selection(), without_raw=False)
    wanted, refused = found.keys, found.refused
    assert (wanted, refused[NotRetried.FROZEN]) == ([key(8)], [key(4)])


def test_why_says_that_a_day_is_frozen_and_that_it_stays(office: Office) -> None:
    office.close(4, accept=True)
    why = office.workspace.partitions.why(key(4))
    assert why.blocks[0] == "frozen: its source serves only 2024-06-06 and later; the present state stays"
    assert why.next.startswith("the next `penstock run` or `penstock control tick` publishes it")
    assert office.workspace.partitions.why(key(3)).next.startswith("nothing: the source no longer has this day")
    assert "frozen" not in " ".join(
        (*office.workspace.partitions.why(key(6)).blocks, office.workspace.partitions.why(key(6)).next)
    )


def test_a_backfill_leaves_frozen_days_out_and_ends(office: Office) -> None:
    office.close(1, 2, 6, accept=True)
    workspace, everything = office.workspace, Selection()
    made = workspace.backfills.plan(everything, reprocess=True, chunk_size=2, priority=0, max_chunks=9, actor="ada")
    assert (made.total, workspace.partitions.frozen_count(everything)) == (5, 5)
    workspace.context.backfills.create(made, audit_entry())
    planned = office.planner().plan(new_run_id(), NOW)
    claimed = [item.key for claimed in planned.chunks for item in claimed.items]
    assert days_of(claimed) == [7, 8, 9, 10]  # the sixth got its verdict at the time of the backfill's creation
    assert sum(claimed.chunk.partitions for claimed in planned.chunks) == 5
    with pytest.raises(UsageError, match="is frozen"):
        workspace.backfills.plan(
            Selection(keys=(key(1),)), reprocess=True, chunk_size=2, priority=0, max_chunks=9, actor="ada"
        )


def test_a_customer_whose_days_are_all_frozen_has_nothing_to_plan(office: Office) -> None:
    folder = office.workspace.settings.root
    written = (folder / "penstock.yaml").read_text()
    (folder / "penstock.yaml").write_text(
        written.replace("- id: '1000000001'", "- {id: '1000000001', active_to: 2024-06-05}")
    )
    frozen = open_at(folder, NOW)
    assert len(frozen.context.ranges(Selection())) == 1
    plan = frozen.plans.preview(Selection(), reprocess=True)
    assert (plan.items, plan.reasons) == ([], {})
    frozen.context.database.close()
