"""Random lives of a warehouse, crashes in every gap included, against a dictionary of what readers must see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import builders
from builders import audit_entry
from house import House
from penstock.partition import PartitionKey, RunId
from penstock.state.authority import AuthorityStore
from penstock.warehouse.snapshots import SnapshotStore
from workspaces import key

KEYS = [key(number, day) for number in (1, 2, 3) for day in ("2024-06-09", "2024-06-10")]
TABLE = "demo.campaign_daily"
GAPS = ("publish.staged", "publish.prepared", "publish.committed", "publish.recorded")


class Crash(BaseException):
    """The process is gone: nothing of ours runs after it."""


@contextmanager
def dying_at(gap: str) -> Iterator[None]:
    def reach(name: str) -> None:
        if name == gap:
            raise Crash

    with patch("penstock.warehouse.publish.reach", reach):
        yield


class Warehouse(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self._folder = builders.quick_folder()
        self.house = House(Path(self._folder.__enter__()))
        self.authority: dict[PartitionKey, int] = {}  # what is vouched for
        self.visible: dict[PartitionKey, int] = {}  # what readers see
        self.runs: dict[PartitionKey, dict[RunId, int]] = {}  # accepted and never demoted
        self.current: dict[PartitionKey, RunId] = {}
        self.kept: dict[str, dict[PartitionKey, int]] = {}  # by the name of a snapshot
        self.committed: dict[PartitionKey, int] = {}  # reached the table, and nobody recorded it
        self.clicks = 0

    def recover(self) -> None:
        """Whoever takes the lease first finishes what reached the table: as far as it is still vouched for."""
        for partition, clicks in self.committed.items():
            if self.authority.get(partition) == clicks:
                self.visible[partition] = clicks
            else:
                self.visible.pop(partition, None)
        self.committed = {}

    def teardown(self) -> None:
        if hasattr(self, "_folder"):
            self._folder.__exit__(None, None, None)

    @property
    def acts(self) -> AuthorityStore:
        return AuthorityStore(self.house.workspace.database, self.house.now)

    @rule(keys=st.sets(st.sampled_from(KEYS), min_size=1, max_size=4))
    def accept(self, keys: set[PartitionKey]) -> None:
        self.clicks += 1
        run = self.house.deliver(dict.fromkeys(sorted(keys), self.clicks), rows=2)
        for partition in keys:
            self.authority[partition] = self.clicks
            self.runs.setdefault(partition, {})[run] = self.clicks
            self.current[partition] = run

    @precondition(lambda self: self.authority)
    @rule(data=st.data())
    def demote(self, data: st.DataObject) -> None:
        partition = data.draw(st.sampled_from(sorted(self.authority)))
        self.acts.demote(partition, "wrong", audit_entry())
        del self.authority[partition]
        self.runs[partition].pop(self.current[partition])
        self.visible.pop(partition, None)
        for kept in self.kept.values():  # what was demoted since is left out of snapshots, too
            if kept.get(partition) is not None and kept[partition] not in self.runs[partition].values():
                del kept[partition]

    @precondition(lambda self: any(len(runs) > 1 for runs in self.runs.values()))
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        partition = data.draw(st.sampled_from(sorted(k for k, runs in self.runs.items() if len(runs) > 1)))
        run = data.draw(st.sampled_from(sorted(self.runs[partition])))
        moved = self.acts.rollback(partition, run, audit_entry())
        assert moved == (self.current[partition] != run or partition not in self.authority)
        self.authority[partition] = self.runs[partition][run]
        self.current[partition] = run
        if moved and self.visible.get(partition) != self.authority[partition]:
            self.visible.pop(partition, None)  # the abandoned run is not read while the older one waits

    @rule()
    def publish(self) -> None:
        self.house.publish()
        self.committed, self.visible = {}, dict(self.authority)

    @rule(gap=st.sampled_from(GAPS))
    def publish_and_die(self, gap: str) -> None:
        publisher, token = self.house.publisher()
        recovering = bool(self.committed)
        try:
            with dying_at(gap):
                publisher.publish()
        except Crash:
            self.house.workers.stop(token)  # as the others see a dead worker
            if recovering and gap == "publish.committed":  # while it finished what another one had left
                return
            due = {k: v for k, v in self.authority.items() if self.visible.get(k) != v}
            self.recover()
            if gap == "publish.committed":
                self.committed = due
            elif gap == "publish.recorded" and not recovering:
                self.visible = dict(self.authority)
        else:
            self.house.workers.stop(token)
            self.committed, self.visible = {}, dict(self.authority)

    @precondition(lambda self: self.visible)
    @rule()
    def compact(self) -> None:
        publisher, token = self.house.publisher()
        publisher.compact(f"{TABLE}.v1")
        self.house.workers.stop(token)
        self.recover()

    @precondition(lambda self: self.visible)
    @rule(gap=st.sampled_from(("compact.staged", "compact.committed")))
    def compact_and_die(self, gap: str) -> None:
        publisher, token = self.house.publisher()
        try:
            with dying_at(gap):
                publisher.compact(f"{TABLE}.v1")
        except Crash:
            pass
        self.house.workers.stop(token)
        self.recover()

    @precondition(lambda self: len(self.kept) < 3)
    @rule()
    def take_a_snapshot(self) -> None:
        name = f"s{len(self.kept)}"
        store: SnapshotStore = self.house.workspace.snapshots
        store.take(name, [("demo", "campaign_daily")], self.house.now(), timedelta(days=1))
        self.kept[name] = dict(self.visible)

    @invariant()
    def readers_see_exactly_what_they_must(self) -> None:
        if not hasattr(self, "house"):
            return
        assert self.house.clicks() == {partition: {clicks} for partition, clicks in self.visible.items()}

    @invariant()
    def snapshots_stay_as_they_were(self) -> None:
        for name, kept in getattr(self, "kept", {}).items():
            rows = self.house.workspace.vouched(TABLE, as_of=name).arrow().to_pylist()
            found = {
                PartitionKey("demo", r["customer_id"], "campaign_daily", r["logical_date"]): r["clicks"] for r in rows
            }
            assert found == kept, name


TestWarehouse = Warehouse.TestCase
TestWarehouse.settings = settings(
    max_examples=60,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a life is short enough to be read whole
)
