"""A long-lived process of a soak, started as a child and killed at any moment: a runner with a warm Spark session, or a
reader. It appends one JSON line per action to its own file."""

from __future__ import annotations

import json
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from bench.soak.command import keep_fake_clock_to_this_process
from bench.soak.environment import TABLES
from penstock.app import Workspace, load_workspace
from penstock.contract.schema import arrow_schema
from penstock.control.select import Selection
from penstock.db import schema
from penstock.errors import PenstockError, TransientError
from penstock.warehouse.heads import table_heads
from penstock.warehouse.layout import file_schema
from penstock.warehouse.reader import Vouched
from penstock.warehouse.row_filter import Filter


class ViolationSeen(Exception):
    """A read returned rows that it must not return."""


class Progress:
    def __init__(self, path: str) -> None:
        self._file = Path(path).open("a")  # noqa: SIM115 - open for as long as the process lives

    def tell(self, act: str, outcome: str, error: str = "") -> None:
        self._file.write(json.dumps({"act": act, "outcome": outcome, "error": error}) + "\n")
        self._file.flush()

    def attempt(self, act: str, work: Callable[[], Any]) -> bool:
        """Perform an action and record its result. False after an error that only a new process recovers from."""
        try:
            work()
        except TransientError as error:
            self.tell(act, "transient", str(error))
            time.sleep(0.5)
        except ViolationSeen as error:
            self.tell(act, "violation", str(error))
        except PenstockError as error:
            self.tell(act, "refused", str(error))
            if act == "read":
                self.tell(act, "violation", f"a read was refused: {error}")
            time.sleep(0.2)
        except Exception:  # noqa: BLE001 - an untranslated error is a finding
            self.tell(act, "crashed", traceback.format_exc())
            return False
        else:
            self.tell(act, "done")
        return True


# --- runner ---------------------------------------------------------------------------------------------------------


def run_in_a_loop(folder: str, progress: Progress, seed: int) -> None:
    keep_fake_clock_to_this_process()
    from penstock.pipeline.session import start_session

    ws, chance = load_workspace(folder), random.Random(seed)
    spark = start_session(ws.settings.spark)
    while True:
        act = chance.choices(("run", "reprocess", "reconcile", "compact", "recheck"), (4, 5, 1, 2, 1))[0]
        if not progress.attempt(act, lambda act=act: _run(ws, spark, act, chance)):  # type: ignore[misc]
            raise SystemExit(1)
        time.sleep(chance.uniform(0.1, 1.0))


def _run(ws: Workspace, spark: Any, act: str, chance: random.Random) -> None:
    match act:
        case "run":
            ws.runs.start(Selection(), actor="soak", spark=spark)
        case "reprocess":
            views = ws.context.state.views(ws.context.ranges(Selection()))
            keys = tuple(view.key for view in chance.sample(views, min(len(views), chance.randint(1, 8))))
            ws.runs.start(Selection(keys=keys), reprocess=True, actor="soak", spark=spark)
        case "reconcile":
            ws.maintenance.reconcile(spark=spark)
        case "compact":
            ws.maintenance.compact([head.name for _, head in ws.maintenance.tables()], None, spark=spark)
        case "recheck":
            ws.rechecks.run(Selection(), actor="soak", spark=spark)


# --- reader ---------------------------------------------------------------------------------------------------------


def read_in_a_loop(folder: str, progress: Progress, seed: int) -> None:
    ws, chance = load_workspace(folder), random.Random(seed)
    while True:
        table = chance.choice(TABLES)
        if not progress.attempt("read", lambda table=table: read_and_check(ws, table)):  # type: ignore[misc]
            raise SystemExit(1)
        time.sleep(0.05)  # or readers leave no processor to the others


def read_and_check(ws: Workspace, table: str) -> None:
    """Read a table twice, and compare it with the pointers of the same moment."""
    source, _, query = table.partition(".")
    contract = next(c for c in ws.context.contracts.values() if c.asset == table)
    pointer, attempt = schema.warehouse_pointer, schema.partition_attempt
    of_table = (pointer.c.source == source, pointer.c.query_name == query)
    with ws.context.database.snapshot() as connection:
        heads = table_heads(connection, source, query)
        pointers = connection.execute(sa.select(pointer).where(*of_table, pointer.c.available)).all()
        demoted = connection.scalars(
            sa.select(attempt.c.run_id + "/" + attempt.c.customer_id + "/" + sa.cast(attempt.c.logical_date, sa.Text))
            .where(attempt.c.source == source, attempt.c.query_name == query)
            .where(attempt.c.demoted_at.is_not(None))
        ).all()
    vouched = Vouched(ws.context.versions, file_schema(arrow_schema(contract.columns)), heads, Filter())
    rows = vouched.arrow()
    if not rows.equals(vouched.arrow()):
        raise ViolationSeen(f"{table}: the same read gave other rows the second time")
    found: dict[tuple[str, str], dict[str, int]] = {}
    for row in rows.group_by(["customer_id", "logical_date", "_run_id"]).aggregate([([], "count_all")]).to_pylist():
        slice_of = row["customer_id"], row["logical_date"].isoformat()
        found.setdefault(slice_of, {})[row["_run_id"]] = row["count_all"]
    expected = {
        (p.customer_id, p.logical_date.isoformat()): {p.run_id: p.record_count} for p in pointers if p.record_count
    }
    if found != expected:
        differ = {k: (found.get(k), expected.get(k)) for k in {*found, *expected} if found.get(k) != expected.get(k)}
        raise ViolationSeen(f"{table}: a read differs from the pointers of the same moment (read, pointer): {differ}")
    shown = {f"{run}/{customer}/{day}" for (customer, day), runs in found.items() for run in runs}
    if seen := shown & set(demoted):
        raise ViolationSeen(f"{table}: a read shows runs that were demoted: {sorted(seen)}")


ROLES: dict[str, Callable[[str, Progress, int], None]] = {"run": run_in_a_loop, "read": read_in_a_loop}

if __name__ == "__main__":
    role, folder, progress, seed = sys.argv[1:]
    ROLES[role](folder, Progress(progress), int(seed))
