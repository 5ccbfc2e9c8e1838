"""A state database, a lake, and all readers of the ledger: for tests about projections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa

from penstock.db.engine import Database
from penstock.flow.graph import Graph
from penstock.lake import Lake, open_lake
from penstock.ledger.read import LedgerReader
from penstock.ledger.segments import SegmentReader
from penstock.partition import AttemptKey, RunId, new_run_id
from penstock.projections.current import Current, load_current
from penstock.projections.manifest import ManifestPointer
from penstock.projections.projector import Projector
from penstock.projections.system_tables import system_table
from penstock.state.inputs import InputReader
from support import builders
from support.builders import Actors, key, planned

OWNER = (builders.TENANT, builders.WORKSPACE)


@dataclass
class LedgerHarness:
    """A state database, a lake, and all readers of the ledger."""

    actors: Actors
    lake: Lake
    ledger: LedgerReader
    projector: Projector

    def current(self) -> Current:
        return load_current(self.projector.head, self.lake, self.ledger, self.projector.inputs, OWNER)

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """All projections as rows in a fixed order."""
        current = self.current()
        found = {}
        for name in ("runs", "tasks", "dep_satisfaction", "partition_status"):
            table: pa.Table = system_table(name, current).arrow()
            keys = ("run_id", "task_key", "downstream_task_key", "upstream_task_key", "partition_key")
            found[name] = sorted(table.to_pylist(), key=lambda row: [str(row.get(k)) for k in keys])
        return found

    def another_projector(self) -> Projector:
        return replace(self.projector, _runs={}, _at=None, _verified=None)

    def start(self, *days: int) -> RunId:
        """A run of these days, planned, issued and extracted."""
        run_id, actors = new_run_id(), self.actors
        keys = [key(day) for day in days]
        actors.control.start_run(run_id, actors.token, "ada", {}, len(keys), Graph(keys).event(run_id))
        seen = {k: max((a.attempt_no for a in actors.reader.attempts(k)), default=0) for k in keys}
        actors.control.issue(run_id, actors.token, "one", [planned(k, seen[k], "missing") for k in keys])
        return run_id

    @classmethod
    @contextmanager
    def on(cls, database: Database, folder: str) -> Iterator[LedgerHarness]:
        actors, lake = Actors.on(builders.migrated(database)), open_lake(f"{folder}/lake")
        ledger = LedgerReader(database, SegmentReader(lake))
        inputs = InputReader(database).of
        projector = Projector(
            ManifestPointer(database, lake), lake, ledger, inputs, OWNER, actors.clock, timedelta(days=90)
        )
        yield cls(actors, lake, ledger, projector)
        database.close()


def attempt(run_id: RunId, day: int) -> AttemptKey:
    return AttemptKey(key(day), run_id)
