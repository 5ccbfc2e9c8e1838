"""Loaders and readers of one warehouse, each in its own process that may be killed at any moment.

Loaders deliver partitions through the real stores and publish with the real protocol; only Spark is left out. The
number of rows of a partition equals its clicks, so that a reader can detect a partial one.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import sqlalchemy as sa

from penstock.app import load_workspace
from penstock.control.rescue import rescue
from penstock.db import schema
from penstock.errors import ActRefused, TransientError
from penstock.flow.heartbeat import Heartbeat
from penstock.partition import PartitionKey
from penstock.state.authority import AuthorityStore
from penstock.warehouse import packing
from support.builders import audit_entry
from support.harness import Harness
from support.workspaces import customer_id

TABLE = "demo.campaign_daily"
FIRST_DAY = date(2024, 5, 30)  # so that there are two months, and two folders


def keys(customers: Iterable[int], days: int) -> list[PartitionKey]:
    dates = [FIRST_DAY + timedelta(days=number) for number in range(days)]
    return [PartitionKey("demo", customer_id(n), "campaign_daily", day) for n in customers for day in dates]


STEADY = keys((1, 3), 5)  # only ever replaced
SHAKY = keys((2, 4), 5)  # also demoted and rolled back


def rows_of(clicks: int) -> int:
    return clicks % 4 + 1


def folding_nothing() -> AbstractContextManager[object]:
    """Publications leave small neighbours alone, so that there is something to compact."""
    return patch.object(packing, "_small_neighbours", lambda files, written: [])


def start(role: str, folder: Path, *arguments: object, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "support.loader_processes", role, str(folder), *map(str, arguments)]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    return subprocess.Popen(command, env={**os.environ, **environment, "PYTHONPATH": paths})


class Loader:
    """Delivers, demotes, rolls back and compacts at random, and publishes after each."""

    def __init__(self, house: Harness, token: str, seed: int) -> None:
        self._house = house
        self._houses = [house, house.under("v2")]
        self._token = token
        self._random = random.Random(seed)
        self._clicks = 1_000_000 * seed
        self._acts = AuthorityStore(house.workspace.context.database, house.now)

    def round(self) -> None:
        rescue(self._house.workers, self._house.control, self._house.validator)
        act = self._random.choices(
            [self._deliver, self._demote, self._roll_back, self._compact], weights=[6, 2, 2, 2], k=1
        )
        act[0]()
        self._house.publisher(self._token)[0].publish()

    def _deliver(self) -> None:
        self._clicks += 1
        some = self._random.sample(STEADY + SHAKY, self._random.randint(1, 8))
        self._random.choice(self._houses).offer(dict.fromkeys(some, self._clicks), rows_of(self._clicks))

    def _demote(self) -> None:
        self._acts.demote(self._random.choice(SHAKY), "wrong", audit_entry())

    def _roll_back(self) -> None:
        partition = self._random.choice(SHAKY)
        runs = [attempt.run_id for attempt in self._house.workspace.context.state.attempts(partition)]
        if runs:
            self._acts.rollback(partition, self._random.choice(runs), audit_entry())

    def _compact(self) -> None:
        heads = self._house.workspace.maintenance.tables()
        if heads:
            self._house.publisher(self._token)[0].compact(self._random.choice(heads)[1].name)


def load(folder: str, seed: str, rounds: str) -> None:
    house = Harness(Path(folder))
    with folding_nothing(), Heartbeat(house.workers) as heart:
        loader = Loader(house, heart.token, int(seed))
        done = 0
        while done < int(rounds):
            try:
                loader.round()
                done += 1
            except ActRefused:
                done += 1
            except TransientError:  # another process was faster
                time.sleep(0.05)


def publish(folder: str) -> None:
    Harness(Path(folder)).publish()


def compact(folder: str, table: str) -> None:
    publisher, _ = Harness(Path(folder)).publisher()
    publisher.compact(table)


def recover(folder: str) -> None:
    load_workspace(Path(folder)).maintenance.recovery.from_lake(lambda share: None, actor="ada")


def rebuild(folder: str) -> None:
    Harness(Path(folder)).rebuild(TABLE)


class Caught(Exception):
    """A reader saw an inconsistent result."""


class Witness:
    """Reads in a loop until it is stopped; every read is verified."""

    def __init__(self, house: Harness) -> None:
        self.house = house
        self.reads = 0

    def look(self) -> None:
        withdrawn = self._withdrawn()  # before the read: all of it must be gone
        vouched = self.house.workspace.data.vouched(TABLE)
        rows = vouched.arrow()
        if not rows.equals(vouched.arrow()):
            raise Caught("the same read gave other rows the second time")
        found = whole_slices(rows)
        if seen := withdrawn & {(partition, run) for partition, (_, run) in found.items()}:
            raise Caught(f"a run was read that had been demoted before: {seen}")
        self.judge(found)
        self.reads += 1

    def judge(self, found: dict[PartitionKey, tuple[int, str]]) -> None:
        raise NotImplementedError

    def _withdrawn(self) -> set[tuple[PartitionKey, str]]:
        a = schema.partition_attempt.c
        statement = sa.select(*(a[name] for name in schema.KEY), a.run_id).where(a.demoted_at.is_not(None))
        with self.house.workspace.context.database.snapshot() as connection:
            return {(PartitionKey(*row[:4]), row[4]) for row in connection.execute(statement)}


class SteadyWitness(Witness):
    """A partition that is only replaced is always visible, and a replaced run never comes back."""

    def __init__(self, house: Harness) -> None:
        super().__init__(house)
        self._now: dict[PartitionKey, str] = {}
        self._before: dict[PartitionKey, set[str]] = defaultdict(set)

    def judge(self, found: dict[PartitionKey, tuple[int, str]]) -> None:
        for partition in STEADY:
            if partition not in found:
                raise Caught(f"{partition} is gone, and nobody took it away")
            run = found[partition][1]
            if run in self._before[partition]:
                raise Caught(f"{partition} went back to run {run}")
            if run != self._now.setdefault(partition, run):
                self._before[partition].add(self._now[partition])
                self._now[partition] = run


class UniformWitness(Witness):
    """All of the expected partitions are of one publication, and no read is of an older one than the read before."""

    def __init__(self, house: Harness, partitions: int) -> None:
        super().__init__(house)
        self._partitions = partitions
        self.last = 0

    def judge(self, found: dict[PartitionKey, tuple[int, str]]) -> None:
        clicks = {clicks for clicks, _ in found.values()}
        if len(found) != self._partitions or len(clicks) != 1:
            raise Caught(f"{len(found):,} of {self._partitions:,} partitions, of the publications {sorted(clicks)}")
        [now] = clicks
        if now < self.last:
            raise Caught(f"publication {now} was read after {self.last}")
        self.last = now


def whole_slices(rows: pa.Table) -> dict[PartitionKey, tuple[int, str]]:
    """The clicks and the run of each partition, if each is complete and of one run only."""
    keys = ["customer_id", "logical_date"]
    sums: list[tuple[Any, ...]] = [
        ("clicks", "min"), ("clicks", "max"), ("clicks", "count"), ("campaign_id", "count_distinct"),
        ("campaign_id", "max"), ("_run_id", "min"), ("_run_id", "max"), ("schema_version", "count_distinct"),
    ]  # fmt: skip
    found = {}
    for row in rows.group_by(keys).aggregate(sums).to_pylist():
        partition = PartitionKey("demo", row["customer_id"], "campaign_daily", row["logical_date"])
        clicks, count = row["clicks_min"], rows_of(row["clicks_min"])
        one = (row["clicks_max"], row["_run_id_min"], row["schema_version_count_distinct"])
        lines = (row["clicks_count"], row["campaign_id_count_distinct"], row["campaign_id_max"])
        if one != (clicks, row["_run_id_max"], 1) or lines != (count, count, count - 1):
            raise Caught(f"{partition} is not whole, or not of one run: {row}")
        found[partition] = (clicks, row["_run_id_min"])
    return found


def read(folder: str, partitions: str = "") -> None:
    """Loop until a file `stop` exists; writes violations to a file, and the number of reads to another."""
    house = Harness(Path(folder))
    witness = UniformWitness(house, int(partitions)) if partitions else SteadyWitness(house)
    place = Path(folder) / "witnesses"
    try:
        while not (place / "stop").exists():
            try:
                witness.look()
            except TransientError:  # the database was busy
                time.sleep(0.05)
            (place / f"reads-{os.getpid()}").write_text(str(witness.reads))
    except Exception as error:
        (place / f"caught-{os.getpid()}").write_text(f"{type(error).__name__}: {error}")
        raise


class Watch:
    """Run readers for the duration of the block."""

    def __init__(self, folder: Path, readers: int, *arguments: object) -> None:
        self._place = folder / "witnesses"
        self._place.mkdir()
        self._readers = [start("read", folder, *arguments) for _ in range(readers)]

    def reads(self) -> list[int]:
        return [int(path.read_text() or 0) for path in sorted(self._place.glob("reads-*"))]

    def caught(self) -> list[str]:
        return [path.read_text() for path in sorted(self._place.glob("caught-*"))]

    def wait_for_a_look(self) -> None:
        """Until each has read at least once more, from the beginning."""
        before = dict(zip(sorted(self._place.glob("reads-*")), self.reads(), strict=True))
        deadline = time.monotonic() + 120
        while True:
            assert not self.caught(), self.caught()
            now = dict(zip(sorted(self._place.glob("reads-*")), self.reads(), strict=True))
            if len(now) == len(self._readers) and all(n >= before.get(path, 0) + 2 for path, n in now.items()):
                return
            assert time.monotonic() < deadline, "the readers do not read"
            time.sleep(0.05)

    def end(self) -> None:
        (self._place / "stop").touch()
        for reader in self._readers:
            reader.wait(120)

    def kill(self) -> None:
        for reader in self._readers:
            reader.kill()
            reader.wait()


ROLES: dict[str, Callable[..., None]] = {
    "recover": recover,
    "rebuild": rebuild,
    "load": load,
    "read": read,
    "publish": publish,
    "compact": compact,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
