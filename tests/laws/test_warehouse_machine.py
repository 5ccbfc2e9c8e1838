"""Random histories of a warehouse, crashes in every gap included, against a dictionary of the visible rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.errors import ActRefused, UsageError
from penstock.partition import PartitionKey, RunId
from penstock.state.authority import AuthorityStore
from penstock.warehouse.format import table_format
from penstock.warehouse.heads import TableHead
from support import builders
from support.builders import audit_entry
from support.harness import Harness
from support.publisher_kills import COMPACT_GAPS
from support.workspaces import key

KEYS = [key(number, day) for number in (1, 2) for day in ("2024-06-09", "2024-06-10")]
TABLE = "demo.campaign_daily"
VERSIONS = ("v1", "v2")
GAPS = ("publish.staged", "publish.prepared", "publish.committed", "publish.recorded")
ROWS = 2


class Crash(BaseException):
    """The process is gone: nothing of ours runs after it."""


class OldHouse(Harness):
    """All times are a month ago: unused files are old enough for vacuum."""

    def now(self) -> datetime:
        return super().now() - timedelta(days=30)


@contextmanager
def dying_at(gap: str) -> Iterator[None]:
    def reach(name: str) -> None:
        if name == gap:
            raise Crash

    with patch("penstock.warehouse.publish.reach", reach):
        yield


def by_partition(rows: list[dict[str, Any]]) -> dict[PartitionKey, list[tuple[Any, ...]]]:
    found: dict[PartitionKey, list[tuple[Any, ...]]] = {}
    for row in rows:
        partition = PartitionKey("demo", row["customer_id"], "campaign_daily", row["logical_date"])
        facts = (row["clicks"], row.get("cost_micros"), row["_run_id"], row["schema_version"])
        found.setdefault(partition, []).append(facts)
    return found


class Warehouse(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self._folder = builders.quick_folder()
        self.house = OldHouse(Path(self._folder.__enter__()))
        self.houses = {"v1": self.house, "v2": self.house.under("v2")}
        self.facts: dict[int, tuple[RunId, str]] = {}  # run and schema version, by clicks
        self.authority: dict[PartitionKey, int] = {}  # trusted runs
        self.visible: dict[PartitionKey, int] = {}  # visible runs
        self.runs: dict[PartitionKey, dict[RunId, int]] = {}  # accepted and never demoted
        self.current: dict[PartitionKey, int] = {}  # the last that was vouched for
        self.kept: dict[str, dict[PartitionKey, int]] = {}  # by the name of a snapshot
        self.committed: dict[PartitionKey, int] = {}  # committed to the table, not recorded in the database
        self.withdrawn: set[PartitionKey] = set()  # demoted or rolled back since then
        self.clicks = self.names = 0

    def recover(self) -> None:
        """The next holder of the lease finishes what reached the table, unless it was withdrawn since."""
        for partition, clicks in self.committed.items():
            replaced = partition in self.visible and partition not in self.withdrawn
            if self.authority.get(partition) == clicks or replaced:
                self.visible[partition] = clicks
            else:
                self.visible.pop(partition, None)
        self.committed, self.withdrawn = {}, set()

    def all_is_published(self) -> None:
        self.committed, self.withdrawn, self.visible = {}, set(), dict(self.authority)

    def teardown(self) -> None:
        if hasattr(self, "_folder"):
            for house in self.houses.values():
                house.workspace.context.database.close()
            self._folder.__exit__(None, None, None)

    @property
    def acts(self) -> AuthorityStore:
        return AuthorityStore(self.house.workspace.context.database, self.house.now)

    def heads(self) -> list[TableHead]:
        return [head for _, head in self.house.workspace.maintenance.tables()]

    @rule(keys=st.sets(st.sampled_from(KEYS), min_size=1, max_size=2), version=st.sampled_from(VERSIONS))
    def accept(self, keys: set[PartitionKey], version: str) -> None:
        self.clicks += 1
        run = self.houses[version].deliver(dict.fromkeys(sorted(keys), self.clicks), rows=ROWS)
        self.facts[self.clicks] = (run, version)
        for partition in keys:
            self.authority[partition] = self.current[partition] = self.clicks
            self.runs.setdefault(partition, {})[run] = self.clicks

    @precondition(lambda self: self.authority)
    @rule(data=st.data())
    def demote(self, data: st.DataObject) -> None:
        partition = data.draw(st.sampled_from(sorted(self.authority)))
        self.acts.demote(partition, "wrong", audit_entry())
        del self.authority[partition]
        self.runs[partition].pop(self.facts[self.current[partition]][0])
        self.visible.pop(partition, None)
        self.withdrawn.add(partition)
        for kept in self.kept.values():  # snapshots leave out demoted runs, too
            if kept.get(partition) is not None and kept[partition] not in self.runs[partition].values():
                del kept[partition]

    @precondition(lambda self: any(len(runs) > 1 for runs in self.runs.values()))
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        partition = data.draw(st.sampled_from(sorted(k for k, runs in self.runs.items() if len(runs) > 1)))
        run = data.draw(st.sampled_from(sorted(self.runs[partition])))
        clicks, now = self.runs[partition][run], self.current[partition]
        if self.facts[clicks][1] != self.facts[now][1]:
            with pytest.raises(ActRefused, match="of schema version"):
                self.acts.rollback(partition, run, audit_entry())
            return
        moved = self.acts.rollback(partition, run, audit_entry())
        assert moved == (now != clicks or partition not in self.authority)
        self.authority[partition] = self.current[partition] = clicks
        if moved:
            self.withdrawn.add(partition)
        if moved and self.visible.get(partition) != clicks:
            self.visible.pop(partition, None)  # the abandoned run is not read while the older one waits

    @rule()
    def publish(self) -> None:
        self.house.publish()
        self.all_is_published()
        self.every_delta_reader_sees_the_same()
        assert self.house.unfinished() == set()
        assert self.house.workspace.maintenance.differences() == ([], {})
        assert self.house.workspace.maintenance.verify((), lambda share: None, raw=False).wrong == {}

    @rule(gap=st.sampled_from(GAPS))
    def publish_and_die(self, gap: str) -> None:
        publisher, token = self.house.publisher()
        recovering = bool(self.committed)
        try:
            with dying_at(gap):
                publisher.publish()
        except Crash:
            self.house.workers.stop(token)  # as the others see a dead worker
            if recovering and gap == "publish.committed":  # while it finished the batch of another publisher
                return
            due = {k: v for k, v in self.authority.items() if self.visible.get(k) != v}
            self.recover()
            if gap == "publish.committed":
                self.committed = due
            elif gap == "publish.recorded" and not recovering:
                self.visible = dict(self.authority)
        else:
            self.house.workers.stop(token)
            self.all_is_published()

    @precondition(lambda self: self.heads())
    @rule(data=st.data(), gap=st.sampled_from((None, *COMPACT_GAPS)))
    def compact(self, data: st.DataObject, gap: str | None) -> None:
        """Perhaps to its end."""
        table = data.draw(st.sampled_from(sorted(head.name for head in self.heads())))
        publisher, token = self.house.publisher()
        try:
            with dying_at(gap or "nowhere"):
                publisher.compact(table)
        except Crash:
            pass
        self.house.workers.stop(token)
        self.recover()

    @precondition(lambda self: len(self.kept) < 3)
    @rule()
    def take_a_snapshot(self) -> None:
        self.names += 1
        name = f"s{self.names}"
        asset = [("demo", "campaign_daily")]
        self.house.workspace.data.snapshots.take(name, asset, self.house.now(), timedelta(days=60))
        self.kept[name] = dict(self.visible)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def drop_a_snapshot(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.kept)))
        self.house.workspace.data.snapshots.drop(name)
        del self.kept[name]

    @rule()
    def vacuum(self) -> None:
        self.house.grow_old()
        if self.house.unfinished() & {head.name for head in self.heads()}:
            with pytest.raises(UsageError, match="was interrupted"):
                self.house.workspace.maintenance.vacuum((), timedelta(hours=1), dry_run=False)
            return
        self.house.workspace.maintenance.vacuum((), timedelta(hours=1), dry_run=False)
        self.nothing_is_left_that_nobody_needs()

    def nothing_is_left_that_nobody_needs(self) -> None:
        lake, snapshots = self.house.workspace.context.lake, self.house.workspace.data.snapshots.all()
        for head in self.heads():
            versions = {None, head.version}
            versions |= {kept.version for s in snapshots for _, kept in s.tables if kept.name == head.name}
            needed = {f.path for v in versions for f in table_format(lake).open(head.name, head.location, v).files()}
            place = Path(lake.url) / head.location
            assert {
                str(path.relative_to(place)) for path in place.rglob("*.parquet") if "_delta_log" not in path.parts
            } == needed

    def every_delta_reader_sees_the_same(self) -> None:
        """A plain Delta reader does not use pointers, and finds the trusted rows in each table."""
        for head in self.heads():
            rows = DeltaTable(self.house.workspace.context.lake.uri(head.location)).to_pyarrow_table().to_pylist()
            found = by_partition([{**row, "schema_version": head.schema_version} for row in rows])
            mine = {k: v for k, v in self.authority.items() if self.facts[v][1] == head.schema_version}
            assert found == self.expected(mine)

    def expected(self, clicks_of: dict[PartitionKey, int]) -> dict[PartitionKey, list[tuple[Any, ...]]]:
        return {
            partition: [(clicks, 10 * clicks if version == "v2" else None, run, version)] * ROWS
            for partition, clicks in clicks_of.items()
            for run, version in [self.facts[clicks]]
        }

    @invariant()
    def readers_see_exactly_what_they_must(self) -> None:
        for house in getattr(self, "houses", {}).values():
            rows = house.workspace.data.vouched(TABLE).arrow().to_pylist()
            assert by_partition(rows) == self.expected(self.visible)

    @invariant()
    def snapshots_stay_as_they_were(self) -> None:
        for name, kept in getattr(self, "kept", {}).items():
            rows = self.house.workspace.data.vouched(TABLE, as_of=name).arrow().to_pylist()
            assert by_partition(rows) == self.expected(kept), name


TestWarehouse = Warehouse.TestCase
TestWarehouse.settings = settings(
    max_examples=60,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a life is short enough to be read whole
)
