"""Measures whole commands that only read, from the start of the process to its end, on workspaces of two sizes."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from bench.command_workspace import filled_workspace
from bench.options import positive
from bench.report import circumstances
from bench.workload import QUERY, SOURCE, Workload, days_of

SIZES = (10_000, 1_000_000)
_CACHE = "PENSTOCK_CACHE"

# `{key}` is a partition whose last attempt failed.
COMMANDS = (
    "status",
    "why {key}",
    "failed",
    "missing",
    "state inspect",
    "stale",
    "runs list",
    "ready demo.campaign_daily",
    "state history {key}",
    "audit list",
    "run --plan",
)


@dataclass(frozen=True, slots=True)
class Cost:
    """The seconds of one call, and its processor time (user and system)."""

    seconds: float
    cpu_seconds: float


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    console, known = Console(stderr=True), circumstances()
    facts: list[dict[str, object]] = []
    folder = Path(options.folder or tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        for size in options.partitions or SIZES:
            workload = _workload(size)
            place = folder / str(size)
            if not place.exists():
                filled_workspace(workload, place)
            for fact in _measured(workload, place, options.command or COMMANDS, options.repeat):
                facts.append(fact)
                print(json.dumps({**fact, **known}, default=str), flush=True)
    finally:
        if options.folder is None:
            shutil.rmtree(folder)
    console.print(table(facts))


def _workload(partitions: int) -> Workload:
    """The days before today, so that a command that reads the clock expects exactly these partitions."""
    days = days_of(partitions)
    return Workload(partitions, 1, datetime.now(UTC).date() - timedelta(days=days))


def _measured(workload: Workload, folder: Path, commands: Sequence[str], repeat: int) -> Iterator[dict[str, object]]:
    """The commands in turn, so that a busy moment does not fall on one of them alone. The first call fills the caches;
    it is reported beside the medians of the others."""
    key = f"{SOURCE}/{workload.customers[0]}/{QUERY}/{workload.dates[7]}"
    with tempfile.TemporaryDirectory(prefix="penstock-cache-") as cache:
        environ = {**os.environ, _CACHE: f"{cache}/penstock", "PYTHONPYCACHEPREFIX": f"{cache}/compiled"}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
        costs: dict[str, list[Cost]] = {command: [] for command in commands}
        for _ in range(repeat + 1):
            for command in commands:
                costs[command].append(_cost(command.format(key=key).split(), folder, environ))
    for command, found in costs.items():
        first, *others = found
        yield {
            "what": f"penstock {command.replace('{key}', 'KEY')}",
            "partitions": workload.partitions,
            "seconds": round(median(cost.seconds for cost in others), 3),
            "cpu_seconds": round(median(cost.cpu_seconds for cost in others), 3),
            "least_cpu_seconds": round(min(cost.cpu_seconds for cost in others), 3),
            "first_seconds": round(first.seconds, 3),
            "first_cpu_seconds": round(first.cpu_seconds, 3),
        }


def _cost(arguments: Sequence[str], folder: Path, environ: dict[str, str]) -> Cost:
    line = [sys.executable, "-m", "penstock", *arguments, "--json", "--workspace", str(folder)]
    started = time.perf_counter()
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environ)
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):  # `ready` ends with 1: one partition in a hundred is missing
        raise SystemExit(errors.decode())
    return Cost(seconds, usage.ru_utime + usage.ru_stime)


def table(facts: Sequence[dict[str, object]]) -> Table:
    """One line per command and size."""
    columns = ("seconds", "cpu_seconds", "first_seconds", "first_cpu_seconds")
    found = Table(title="whole commands, seconds; the first call fills the caches", title_justify="left")
    for name in ("command", "partitions", *columns):
        found.add_column(name, justify="left" if name == "command" else "right")
    for fact in facts:
        found.add_row(str(fact["what"]), f"{fact['partitions']:,}", *(f"{fact[name]:.2f}" for name in columns))
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.commands", description=__doc__)
    parser.add_argument("--partitions", type=positive, action="append", metavar="N", help="repeatable; 10000, 1000000")
    parser.add_argument("--repeat", type=positive, default=5, metavar="K", help="medians of K calls (5)")
    parser.add_argument("--command", action="append", choices=COMMANDS, help="repeatable; all")
    parser.add_argument(
        "--folder", type=Path, help="keeps the workspaces here, and uses those of an earlier call on the same day"
    )
    return parser


if __name__ == "__main__":
    main()
