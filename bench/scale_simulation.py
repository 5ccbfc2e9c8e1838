"""All partitions of a workspace through planner, state, ledger, publications and projections, without work on data.

Measures how each part grows: partitions per second, bytes in each table and file, the driver's memory, and the time of
`plan`, `status` and `ready` afterwards. Raises SystemExit if a partition is missing at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import sqlalchemy as sa
import yaml
from rich.console import Console
from rich.table import Table

from bench.databases import Place, settle
from bench.measure import Stopwatch, timed
from bench.scale_sizes import database_sizes, lake_sizes
from bench.simulated_run import PARTS, SimulatedRuns
from bench.workload import ASSET, CONTRACT, QUERY, SOURCE
from penstock.app import Workspace
from penstock.app.workspace import load_workspace
from penstock.control.select import Selection
from penstock.db import schema
from penstock.flow.heartbeat import Heartbeat
from penstock.partition import new_ulid
from penstock.pipeline.memory import limit_malloc_arenas, reduced_gc

MOST_DAYS = 1000  # about as many days as an advertising service keeps
SMALLEST = 10_000
_EDGE = 5  # runs at the start and at the end whose rates are compared

Fact = dict[str, Any]


@dataclass(slots=True)
class _Progress:
    """Reports each run on stderr."""

    console: Console
    expected: int
    done: int = 0
    started: float = field(default_factory=perf_counter)

    def add(self, partitions: int) -> None:
        self.done += partitions
        rate = self.done / (perf_counter() - self.started)
        left = (self.expected - self.done) / rate / 60
        self.console.print(
            f"{self.done:,} of {self.expected:,} partitions, {rate:,.0f} per second, {left:.0f} minutes left,"
            f" {_memory('VmRSS'):,.0f} MB",
            highlight=False,
        )


def sizes_up_to(partitions: int) -> list[int]:
    """The powers of ten from 10,000, and the size itself."""
    found = []
    size = SMALLEST
    while size < partitions:
        found.append(size)
        size *= 10
    return [*found, partitions]


def simulate(place: Place, partitions: int, console: Console) -> Iterator[Fact]:
    """The measurements of one new workspace that is filled with so many partitions."""
    limit_malloc_arenas()
    days = days_of(partitions)
    last = datetime.now(UTC).date() - timedelta(days=1)
    workspace = new_workspace(place, partitions // days, days)
    try:
        yield from _measure(workspace, partitions, last, console)
    finally:
        workspace.context.database.close()


def days_of(partitions: int) -> int:
    """The most days, up to 1,000, that divide the partitions evenly, with at least as many customers."""
    return max(n for n in range(1, MOST_DAYS + 1) if partitions % n == 0 and n * n <= max(partitions, 1))


def _measure(workspace: Workspace, partitions: int, last: date, console: Console) -> Iterator[Fact]:
    known = {"backend": workspace.context.database.dialect, "partitions": partitions}
    _reset_peak()
    yield known | {"what": "plan, nothing stored", "seconds": _seconds(_plan, workspace)}
    by_run = _run_all(workspace, partitions, _Progress(console, partitions))
    yield from (known | fact for fact in _rates(by_run, partitions))
    yield known | {"what": "peak memory of runs", "megabytes": round(_memory("VmHWM"))}
    settle(workspace.context.database)
    for name, question in _QUESTIONS.items():
        _reset_peak()
        before = _memory("VmRSS")
        began = process_time()
        seconds = _seconds(question, workspace)
        yield known | {
            "what": name,
            "seconds": seconds,
            "cpu_seconds": round(process_time() - began, 3),
            "megabytes": round(_memory("VmHWM")),
            "more_megabytes": round(_memory("VmHWM") - before),
        }
    events = _count(workspace, schema.event)
    yield known | {"what": "events", "rows": events, "per_partition": round(events / partitions, 3)}
    for size in (*database_sizes(workspace.context.database), *lake_sizes(workspace)):
        yield known | size.as_dict(partitions)
    _refuse_missing(workspace, partitions, last)


@dataclass(frozen=True, slots=True)
class _RunTimes:
    """The partitions of one run, and its seconds by part."""

    partitions: int
    seconds: Mapping[str, float]
    cpu_seconds: Mapping[str, float]


@reduced_gc()
def _run_all(workspace: Workspace, partitions: int, progress: _Progress) -> list[_RunTimes]:
    """Execute the plans of one `penstock run`."""
    found: list[_RunTimes] = []
    watch = Stopwatch()
    with Heartbeat(workspace.context.workers) as heart:
        runs = SimulatedRuns(workspace, heart.token, watch)
        watch.begin("plan")
        _, plans = workspace.plans.split(Selection(), reprocess=False, may_continue=lambda _source: True)
        while (plan := next(plans, None)) is not None:
            runs.run(plan.items)
            found.append(_RunTimes(len(plan.items), dict(watch.seconds), dict(watch.cpu_seconds)))
            watch.seconds.clear()
            watch.cpu_seconds.clear()
            progress.add(len(plan.items))
            del plan
            watch.begin("plan")
        watch.end()
    if progress.done != partitions:
        raise SystemExit(f"{partitions} partitions are expected, but the plans held {progress.done}")
    return found


def _rates(runs: Sequence[_RunTimes], partitions: int) -> Iterator[Fact]:
    """The time of each part in all runs, and the processor time of a partition in the first and in the last runs."""
    edges = {"first": runs[:_EDGE], "last": runs[-_EDGE:]} if len(runs) > 2 * _EDGE else {}
    for part in (*PARTS, "all parts"):
        seconds = sum(_of(run.seconds, part) for run in runs)
        cpu = {f"{name}_cpu_microseconds": _cpu_microseconds(some, part) for name, some in edges.items()}
        yield {
            "what": part,
            "seconds": round(seconds, 3),
            "per_second": round(partitions / seconds) if seconds else None,
            "cpu_microseconds": _cpu_microseconds(runs, part),
            **cpu,
        }


def _of(seconds: Mapping[str, float], part: str) -> float:
    return sum(seconds.values()) if part == "all parts" else seconds.get(part, 0.0)


def _cpu_microseconds(runs: Sequence[_RunTimes], part: str) -> float:
    """Processor time of this process for one partition; a PostgreSQL server is another process."""
    return round(1e6 * sum(_of(run.cpu_seconds, part) for run in runs) / sum(run.partitions for run in runs), 1)


def _plan(workspace: Workspace) -> None:
    workspace.plans.preview(Selection(), limit=100)


def _status(workspace: Workspace) -> None:
    board = workspace.status.board(Selection())
    board.counts(["query"])
    board.flags()


def _one_customer(workspace: Workspace) -> None:
    customer = workspace.settings.customers[len(workspace.settings.customers) // 2].id
    workspace.status.board(Selection(customers=(customer,))).counts(["query"])


def _ready(workspace: Workspace) -> None:
    if workspace.ready(ASSET):
        raise SystemExit("one partition in a hundred was rejected, but the table is ready")


def _ready_day(workspace: Workspace) -> None:
    workspace.ready(ASSET, date=workspace.context.now().date() - timedelta(days=2), require="95%")


_QUESTIONS: Mapping[str, Callable[[Workspace], None]] = {
    "plan, all stored": _plan,
    "status": _status,
    "status of one customer": _one_customer,
    "ready": _ready,
    "ready of one day": _ready_day,
    "load workspace file": lambda workspace: load_workspace(workspace.settings.root).context.database.close(),
}


def new_workspace(place: Place, customers: int, days: int) -> Workspace:
    """A workspace with the clock of this machine: the last expected day is yesterday."""
    name = f"w_{new_ulid().lower()}"
    folder = place.folder / name
    folder.mkdir(parents=True)
    state = {"state": place.server, "schema": name} if place.server else {"state": "sqlite:///state.db"}
    first = datetime.now(UTC).date() - timedelta(days=days)
    document = {
        "tenant": "bench",
        "workspace": "bench",
        **state,
        "lake": "./lake",
        "customers": [{"id": str(1_000_000_001 + n), "time_zone": "UTC"} for n in range(customers)],
        "sources": {SOURCE: {"kind": "demo", "seed": 7, "rows": 1}},
        "queries": {QUERY: {**CONTRACT, "start_date": first, "restate": {"days": 30}}},
    }
    (folder / "penstock.yaml").write_text(yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False))
    workspace = load_workspace(folder)
    workspace.maintenance.migrate()
    return workspace


def _refuse_missing(workspace: Workspace, partitions: int, last: date) -> None:
    """End if a partition is missing. Days after `last` became due while the simulation ran."""
    counts = {
        table.name: _count(workspace, table)
        for table in (schema.partition_attempt, schema.partition_state, schema.warehouse_pointer)
    }
    accepted = counts["warehouse_pointer"]
    if counts["partition_attempt"] != partitions or counts["partition_state"] != partitions:
        raise SystemExit(f"{partitions} partitions were issued, but the state database holds {counts}")
    if (missing := workspace.status.board(Selection(until=last)).missing()) != partitions - accepted:
        raise SystemExit(
            f"{accepted} of {partitions} partitions have pointers, but {missing} are missing in projections"
        )
    if not 0 < partitions - accepted <= partitions // 50:
        raise SystemExit(f"one partition in a hundred was rejected, but {accepted} of {partitions} have pointers")


def _count(workspace: Workspace, table: sa.Table) -> int:
    with workspace.context.database.snapshot() as connection:
        return connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0


def _seconds(work: Callable[[Workspace], None], workspace: Workspace) -> float:
    return round(timed(work, workspace), 3)


def _memory(name: str) -> float:
    """Megabytes of this process: VmRSS now, VmHWM at the peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _reset_peak() -> None:
    """Let the peak begin at the memory of this moment."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # the kernel does not allow it: peaks then include earlier work


def show(console: Console, facts: Sequence[Fact]) -> None:
    """One line for each measurement, one column for each size. Microseconds are processor time of a partition; in
    parentheses of the first and of the last runs."""
    sizes = list(dict.fromkeys((fact["backend"], fact["partitions"]) for fact in facts))
    found = Table(title="simulation without work on data", title_justify="left")
    found.add_column("measured")
    for backend, partitions in sizes:
        found.add_column(f"{backend}, {partitions:,}", justify="right")
    by_name: dict[str, dict[tuple[str, int], Fact]] = {}
    for fact in facts:
        by_name.setdefault(fact["what"], {})[fact["backend"], fact["partitions"]] = fact
    for name, cells in by_name.items():
        found.add_row(name, *(_cell(cells.get(size)) for size in sizes))
    console.print(found)


def _cell(fact: Fact | None) -> str:
    if fact is None:
        return ""
    if fact.get("per_second") is not None:
        first, last = fact.get("first_cpu_microseconds"), fact.get("last_cpu_microseconds")
        edges = "" if first is None else f" ({first:,.0f} to {last:,.0f})"
        return f"{fact['per_second']:,} / s, {fact['cpu_microseconds']:,.0f} us{edges}"
    if "bytes" in fact:
        return f"{fact['bytes'] / 1e6:,.1f} MB, {fact['bytes_per_partition']:,.1f} B each"
    if "seconds" in fact:
        more = f", +{fact['more_megabytes']:,} MB" if "more_megabytes" in fact else ""
        cpu = f", {fact['cpu_seconds']:,.3f} s of processor" if "cpu_seconds" in fact else ""
        return f"{fact['seconds']:,.3f} s{cpu}{more}"
    if "megabytes" in fact:
        return f"{fact['megabytes']:,} MB"
    return f"{fact['per_partition']:.3f} each"
