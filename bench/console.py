"""Measures the HTTP API on a workspace that is filled without rows: pages of partitions with many clients at once,
status, the grid, polls without changes, and the memory of the server. With --writer another process records verdicts
meanwhile, so that the ledger moves. With --browser it measures the grid page in Chromium instead: the first paint, and
the frames per second while the grid is panned."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median, quantiles
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from bench.command_workspace import filled_workspace
from bench.console_browser import WideWorkload, measure_page
from bench.options import positive
from bench.report import circumstances
from bench.workload import QUERY, Workload, days_of

_API = "/api/v1"
_PAGE_LIMIT, _STATUS_LIMIT = 300, 200  # milliseconds at the median


@dataclass(slots=True)
class Requests:
    """The latencies of one kind of request, in milliseconds, and the bytes of its last response."""

    name: str
    clients: int
    milliseconds: list[float] = field(default_factory=list)
    content: int = 0
    limit: int | None = None  # of the median

    def facts(self) -> dict[str, object]:
        """What was measured, for the report."""
        ninety_fifth = quantiles(self.milliseconds, n=20)[-1] if len(self.milliseconds) > 1 else self.milliseconds[0]
        return {
            "request": self.name,
            "clients": self.clients,
            "requests": len(self.milliseconds),
            "median_ms": round(median(self.milliseconds), 1),
            "p95_ms": round(ninety_fifth, 1),
            "bytes": self.content,
            **({} if self.limit is None else {"limit_ms": self.limit}),
        }


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    known = circumstances()
    folder = Path(options.folder or tempfile.mkdtemp(prefix="penstock-bench-"))
    facts: list[dict[str, object]] = []
    try:
        for workload in _workloads(options.partitions or (1_000_000,), options.browser):
            customers, days = len(workload.customers), workload.days
            place = folder / f"{customers}x{days}"
            if not place.exists():
                filled_workspace(workload, place)
            measured = (
                _measured_page(place)
                if options.browser
                else _measured(workload, place, options.clients, options.requests, options.writer)
            )
            for fact in measured:
                facts.append({"partitions": workload.partitions, "customers": customers, "days": days, **fact})
                print(json.dumps({**facts[-1], **known}, default=str), flush=True)
    finally:
        if options.folder is None:
            shutil.rmtree(folder)
    Console(stderr=True, width=150).print(_table(facts, _PAGE_COLUMNS if options.browser else _COLUMNS))


def _workloads(sizes: Sequence[int], browser: bool) -> list[Workload]:
    """The workloads whose last day was yesterday. A browser also gets grids with as many days as customers."""
    today = datetime.now(UTC).date()
    found = [Workload(size, 1, today - timedelta(days=days_of(size))) for size in sizes]
    if browser:
        for size in sizes:
            days = WideWorkload(size, 1).days
            if days * days == size and days != days_of(size):
                found.append(WideWorkload(size, 1, today - timedelta(days=days)))
    return found


def _measured_page(folder: Path) -> Iterator[dict[str, object]]:
    with _server(folder) as (host, process):
        yield from measure_page(host)
        yield {"page": "memory of the server", **_memory(process.pid)}


def _measured(
    workload: Workload, folder: Path, clients: int, requests: int, with_writer: bool
) -> Iterator[dict[str, object]]:
    chance = random.Random(7)
    customers = [chance.choice(workload.customers) for _ in range(requests)]
    days = [chance.choice(workload.dates) for _ in range(requests)]
    with _server(folder) as (host, process), _writer(folder) if with_writer else nullcontext():
        began = time.monotonic()
        grid = f"{_API}/grid?query={QUERY}"
        yield _sent(host, "grid, first", 1, [grid]).facts()
        yield _sent(host, "grid", 1, [grid] * 10).facts()
        yield _sent(host, "grid, gzip", 1, [grid] * 10, {"Accept-Encoding": "gzip"}).facts()
        yield _sent(host, "grid, 304", 1, [grid] * 20, {"If-None-Match": _tag(host, grid)}).facts()
        yield _sent(host, "status, first", 1, [f"{_API}/status"]).facts()
        yield _sent(host, "status", 1, [f"{_API}/status"] * 20, limit=_STATUS_LIMIT).facts()
        yield _sent(host, "status", clients, [f"{_API}/status"] * requests, limit=_STATUS_LIMIT).facts()
        since = workload.dates[-7]
        of_customer = [f"customer={customer}" for customer in customers]
        yield _pages(host, "partitions of a customer", 1, of_customer[:20]).facts()
        for name, filters in (
            ("partitions of a customer", of_customer),
            ("failed partitions of a customer", [f"status=failed&{one}" for one in of_customer]),
            ("last days of a customer", [f"since={since}&{one}" for one in of_customer]),
            ("partitions of a day", [f"date={day}" for day in days]),
            ("failed partitions of a day", [f"status=failed&date={day}" for day in days]),
            ("partitions", [f"query={QUERY}"] * requests),
            ("failed partitions", ["status=failed"] * requests),
            ("pending partitions", ["status=pending"] * requests),
            ("failed partitions of the last days", [f"status=failed&since={since}"] * requests),
        ):
            yield _pages(host, name, clients, filters).facts()
        yield {"server": "memory", **_memory(process.pid), "seconds": round(time.monotonic() - began, 1)}


def _pages(host: str, name: str, clients: int, filters: Sequence[str]) -> Requests:
    """First pages of partitions with these filters."""
    return _sent(host, name, clients, [f"{_API}/partitions?{one}" for one in filters], limit=_PAGE_LIMIT)


def _sent(
    host: str,
    name: str,
    clients: int,
    paths: Sequence[str],
    headers: dict[str, str] | None = None,
    limit: int | None = None,
) -> Requests:
    """Send the requests from so many clients at once, each with a connection of its own."""
    found, waiting, lock = Requests(name, clients, limit=limit), list(paths), threading.Lock()

    def client() -> None:
        connection = http.client.HTTPConnection(host, timeout=120)
        while True:
            with lock:
                if not waiting:
                    break
                path = waiting.pop()
            began = time.monotonic()
            connection.request("GET", path, headers=headers or {})
            response = connection.getresponse()
            content = response.read()
            spent = (time.monotonic() - began) * 1000
            if response.status not in (200, 304):
                raise RuntimeError(f"{path}: {response.status} {content[:300]!r}")
            with lock:
                found.milliseconds.append(spent)
                found.content = len(content)
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(found.milliseconds) != len(paths):
        raise RuntimeError(f"{name}: {len(paths) - len(found.milliseconds)} requests failed")
    return found


def _tag(host: str, path: str) -> str:
    connection = http.client.HTTPConnection(host, timeout=120)
    connection.request("GET", path)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.headers["ETag"]


@contextmanager
def _server(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """`penstock serve` on a free port, until the end of the block."""
    log = folder / "serve.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "penstock", "serve", "--port", "0", "--workspace", str(folder)]
        process = subprocess.Popen(command, stdout=output, stderr=output, env=dict(os.environ))
    try:
        deadline = time.monotonic() + 60
        while not (found := re.search(r"at (http://[\w.:-]+)", log.read_text())):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(log.read_text())
            time.sleep(0.05)
        yield urlsplit(found[1]).netloc, process
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def _writer(folder: Path) -> Iterator[None]:
    """A process that records verdicts, until the end of the block."""
    command = [sys.executable, "-m", "bench.console_writer", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        if not process.stdout.readline():  # until it writes
            raise RuntimeError("the writer does not start")
        yield
    finally:
        process.terminate()
        output, _ = process.communicate(timeout=60)
        if process.returncode != 0:
            raise RuntimeError(f"the writer ended with {process.returncode}")
        print(output.strip(), file=sys.stderr)


def _memory(pid: int) -> dict[str, int]:
    """The memory of the server now and at its peak, in megabytes."""
    text = Path(f"/proc/{pid}/status").read_text()
    return {
        name: int(re.findall(rf"{key}:\s+(\d+) kB", text)[0]) // 1024
        for name, key in (("memory_mb", "VmRSS"), ("peak_mb", "VmHWM"))
    }


_COLUMNS = (
    "partitions",
    "request",
    "clients",
    "requests",
    "median_ms",
    "limit_ms",
    "p95_ms",
    "bytes",
    "memory_mb",
    "peak_mb",
)
_PAGE_COLUMNS = (
    "customers",
    "days",
    "page",
    "median_ms",
    "worst_ms",
    "frames_per_second",
    "median_gap_ms",
    "worst_gap_ms",
    "memory_mb",
    "peak_mb",
)


def _table(facts: Sequence[dict[str, object]], columns: Sequence[str]) -> Table:
    made = Table(*columns)
    for fact in facts:
        made.add_row(*(str(fact.get(name, "")) for name in columns))
    return made


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.console", description=__doc__)
    parser.add_argument("--partitions", type=positive, action="append", help="repeatable; default 1,000,000")
    parser.add_argument("--clients", type=positive, default=20, help="clients at once")
    parser.add_argument("--requests", type=positive, default=400, help="requests of each kind with many clients")
    parser.add_argument("--writer", action="store_true", help="record verdicts meanwhile, from another process")
    parser.add_argument("--browser", action="store_true", help="measure the grid page in Chromium instead of the API")
    parser.add_argument("--folder", help="keep the workspaces here, and use those that are there")
    return parser


if __name__ == "__main__":
    main()
