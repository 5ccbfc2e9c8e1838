"""The tables that people read, and the lines that scripts read."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

import penstock
from bench.measure import Measured

_PACKAGES = ("penstock", "pyspark", "pyarrow", "deltalake", "duckdb", "orjson", "sqlalchemy")

_STAGES = {
    "plan": "plan",
    "extract": "extract",
    "validate": "validate + state",
    "load": "load",
}
_QUESTIONS = {
    "status": "status counts",
    "read_all": "read everything (Arrow)",
    "read_customer": "read one customer (Arrow)",
    "sql": "SQL aggregate",
}
_STARTING = {"session_start": "session start", "warm_up": "first-job warm-up"}
_MEMORY = {
    "driver": "peak RSS, driver",
    "jvm": "peak RSS, JVM",
    "worker": "peak RSS, largest worker",
    "workers": "peak RSS, all workers",
}


@dataclass(frozen=True, slots=True)
class Pair:
    """Both sides on one workload, as medians of all repetitions."""

    penstock: Measured
    yardstick: Measured

    @property
    def partitions(self) -> int:
        return self.penstock.partitions

    @property
    def rows(self) -> int:
        return self.penstock.rows


def medians(runs: Sequence[Measured]) -> Measured:
    """One side on one workload, each number the median of its repetitions."""
    first = runs[0]
    return replace(
        first,
        seconds={name: median(run.seconds[name] for run in runs) for name in first.seconds},
        memory={name: median(run.memory.get(name, 0.0) for run in runs) for name in first.memory},
        load_before=median(run.load_before for run in runs),
    )


def show(console: Console, pairs: Sequence[Pair]) -> None:
    for pair in pairs:
        console.print(_comparison(pair))
    for smaller, larger in pairwise(pairs):
        console.print(_growth(smaller, larger))


def json_lines(pairs: Iterable[Pair], runs: Iterable[Measured]) -> bytes:
    """One line per side and size: the medians, every repetition, and the machine."""
    every = list(runs)
    lines = []
    for pair in pairs:
        for side in (pair.penstock, pair.yardstick):
            same = [run for run in every if (run.side, run.partitions) == (side.side, side.partitions)]
            repetitions = [
                {"seconds": _rounded(run.seconds), "memory": run.memory, "load_before": run.load_before} for run in same
            ]
            lines.append(
                {**side.as_dict(), "seconds": _rounded(side.seconds), **circumstances(), "repetitions": repetitions}
            )
    return b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines)


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 5) for name, value in seconds.items()}


def circumstances() -> dict[str, Any]:
    """The machine of the measurements."""
    return {
        "date": datetime.now(UTC),
        "commit": _commit(),
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "python": sys.version.partition(" ")[0],
        "versions": {name: version(name) for name in _PACKAGES},
    }


def _commit() -> str | None:
    """The measured version; `-dirty` means uncommitted changes."""
    package = Path(penstock.__file__).parent
    command = ["git", "-C", str(package), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # not a clone
        return None


def _comparison(pair: Pair) -> Table:
    table = Table(title=f"{pair.partitions:,} partitions x {pair.rows:,} rows, seconds", title_justify="left")
    table.add_column("stage")
    for name in ("penstock", "yardstick", "ratio"):
        table.add_column(name, justify="right")
    _rows(table, pair, _STAGES)
    table.add_section()
    table.add_row("run", *_compared(pair, lambda side: side.run_seconds), style="bold")
    table.add_row("run, ms per partition", *_compared(pair, lambda side: 1000 * side.run_seconds / side.partitions))
    _rows(table, pair, _STARTING)
    table.add_row("run with both", *_compared(pair, lambda side: side.total_seconds), style="bold")
    table.add_section()
    _rows(table, pair, _QUESTIONS)
    table.add_section()
    for name, label in _MEMORY.items():
        values = (side.memory.get(name) for side in (pair.penstock, pair.yardstick))
        table.add_row(label, *("-" if value is None else f"{value:,.0f} MB" for value in values), "")
    table.add_section()
    table.add_row("load average before", *(f"{side.load_before:.2f}" for side in (pair.penstock, pair.yardstick)), "")
    return table


def _rows(table: Table, pair: Pair, labels: dict[str, str]) -> None:
    for name, label in labels.items():
        table.add_row(label, *_compared(pair, lambda side, name=name: side.seconds.get(name)))  # type: ignore[misc]


def _compared(pair: Pair, number: Callable[[Measured], float | None]) -> list[str]:
    ours, theirs = number(pair.penstock), number(pair.yardstick)
    ratio = f"{ours / theirs:.2f}" if ours is not None and theirs else ""
    return ["-" if value is None else f"{value:.3f}" for value in (ours, theirs)] + [ratio]


def _growth(smaller: Pair, larger: Pair) -> Table:
    """The growth of the cost per partition with their number; 0 % is linear."""
    title = f"ms per partition, from {smaller.partitions:,} to {larger.partitions:,} partitions"
    table = Table(title=title, title_justify="left")
    table.add_column("stage")
    for side in ("penstock", "yardstick"):
        for name in (f"{side}, small", "large", "growth"):
            table.add_column(name, justify="right")
    numbers: dict[str, Callable[[Measured], float]] = {
        label: (lambda side, name=name: side.seconds.get(name, 0.0))  # type: ignore[misc]
        for name, label in {**_STAGES, **_QUESTIONS}.items()
    }
    numbers |= {"run": lambda side: side.run_seconds, "run with both": lambda side: side.total_seconds}
    for label, number in numbers.items():
        cells: list[str] = []
        for before, after in ((smaller.penstock, larger.penstock), (smaller.yardstick, larger.yardstick)):
            small, large = (1000 * number(side) / side.partitions for side in (before, after))
            growth = f"{100 * (large / small - 1):+.0f} %" if small else ""
            cells += [f"{small:.4f}", f"{large:.4f}", growth]
        table.add_row(label, *cells, style="bold" if label.startswith("run") else None)
    return table
