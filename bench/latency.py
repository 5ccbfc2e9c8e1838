"""Measures runs on object storage and a web service that answer late.

One process with one Spark session runs the same work on an S3-compatible server in memory that delays every answer, for
each delay. It counts the requests for each partition, and the other requests that followed each other (`in turn`). Then
it fetches from a web service that answers after 0.3 seconds, and measures how many requests were in flight.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import Request, urlopen

from rich.console import Console
from rich.table import Table

from bench.counting_s3 import CONTROL
from bench.measure import Memory, child_processes
from bench.memory_s3 import DELAY, IN_FLIGHT, TIMELINE
from bench.options import positive
from bench.penstock_side import StageTimer
from bench.report import circumstances
from bench.round_trips import round_trips
from bench.soak.tests_path import add_tests_to_path
from bench.workload import ASSET, CONTRACT, Workload
from penstock.control.select import Selection

_BUCKET = "bench"
_WARM_UP = Workload(partitions=300, rows=100)
_UP_TO_THE_VERDICT = ("seals", "payloads")
_WEB_MILLISECONDS = 300


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    add_tests_to_path()
    from support.servers import s3, s3_environment

    known, say = circumstances(), Console(stderr=True)
    lines: list[dict[str, Any]] = []

    def record(fact: dict[str, Any]) -> None:
        lines.append(fact)
        print(json.dumps({**fact, **known}, default=str), flush=True)

    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, s3("-m", "bench.memory_s3") as endpoint:
        os.environ.update(s3_environment(endpoint))
        bench = _Bench(Path(name), endpoint)
        try:
            for partitions in options.partitions or [2000, 10_000]:
                for delay in [milliseconds for _ in range(options.repeat) for milliseconds in options.delay or _DELAYS]:
                    say.print(f"{partitions:,} partitions, {delay} ms for each request")
                    record(bench.storage(Workload(partitions, options.rows), delay))
            if options.web_partitions:
                say.print(f"{options.web_partitions:,} requests to a web service, {_WEB_MILLISECONDS} ms each")
                record(bench.web(Workload(options.web_partitions, options.rows)))
        finally:
            bench.spark.stop()
    say.print(_storage_table([line for line in lines if line["what"] == "latency"]))
    for line in (line for line in lines if line["what"] == "web service"):
        say.print(
            f"web service: {line['mean_in_flight']} requests in flight on average, {line['peak_in_flight']} at most,"
            f" {line['allowed']} allowed; {line['seconds']} s"
        )


_DELAYS = (0, 10, 30, 100)


class _Bench:
    """One Spark session and one server for all runs; each run has a workspace and a prefix of its own."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        from penstock.pipeline.session import start_session

        self._folder = folder
        self._endpoint = endpoint
        self._runs = 0
        self._servers = child_processes()
        first = _WARM_UP.workspace(folder / "warm-up", lake=f"s3://{_BUCKET}/warm-up")
        self.spark = start_session(first.settings.spark)
        first.runs.start(Selection(), listener=StageTimer(), spark=self.spark)

    def storage(self, workload: Workload, delay: int) -> dict[str, Any]:
        """A run on storage with this delay, and a read of all rows."""
        self._runs += 1
        workspace = workload.workspace(self._folder / f"run-{self._runs}", lake=f"s3://{_BUCKET}/run-{self._runs}")
        self._post(f"{DELAY}?milliseconds={delay}")
        self._post(CONTROL)
        self._post(TIMELINE)
        timer = StageTimer()
        with Memory(self._servers) as memory:
            began = time.perf_counter()
            done = workspace.runs.start(Selection(), listener=timer, spark=self.spark)
            seconds = time.perf_counter() - began
            peaks = memory.peaks()
        counts = Counter(self._post(CONTROL))
        others = [request for request in self._post(TIMELINE) if not request[2].endswith(_UP_TO_THE_VERDICT)]
        if done.loaded != workload.partitions or done.failures:
            raise SystemExit(f"the run is not clean: {done.counts()}, {done.failures[:3]}")
        began = time.perf_counter()
        rows = workspace.read(ASSET).arrow().num_rows
        read_seconds = time.perf_counter() - began
        reads = sum(Counter(self._post(CONTROL)).values())
        if rows != workload.partitions * workload.rows:
            raise SystemExit(f"{rows} rows were read, {workload.partitions * workload.rows} were loaded")
        self._post(f"{DELAY}?milliseconds=0")
        return {
            "what": "latency",
            "partitions": workload.partitions,
            "milliseconds": delay,
            "seconds": round(seconds, 2),
            "stages": {name: round(value, 2) for name, value in timer.seconds.items()},
            "puts": _per_partition(counts, "PUT", workload.partitions),
            "gets": _per_partition(counts, "GET", workload.partitions),
            "other": sum(counts.values()) - sum(counts[f"{m} {k}"] for m in ("PUT", "GET") for k in _UP_TO_THE_VERDICT),
            "round_trips": round_trips(others) if delay else None,
            "requests": dict(counts),
            "read_seconds": round(read_seconds, 2),
            "read_requests": reads,
            "memory": peaks,
        }

    def web(self, workload: Workload) -> dict[str, Any]:
        """A run on a local lake that fetches one day with each request from a web service."""
        from penstock.source.concurrency import requests_in_flight

        self._runs += 1
        url = f"{self._endpoint}/report/{{customer_id}}/{{date}}?milliseconds={_WEB_MILLISECONDS}&rows=10"
        query = {**CONTRACT, "source": "web", "checks": []}
        changes = {"sources": {"web": {"kind": "http", "url": url}}, "queries": {"campaign_daily": query}}
        workspace = workload.workspace(self._folder / f"web-{self._runs}", **changes)
        self._post(IN_FLIGHT)
        began = time.perf_counter()
        done = workspace.runs.start(Selection(), listener=StageTimer(), spark=self.spark)
        seconds = time.perf_counter() - began
        if done.loaded != workload.partitions or done.failures:
            raise SystemExit(f"the run is not clean: {done.counts()}, {done.failures[:3]}")
        found = self._post(IN_FLIGHT)
        return {
            "what": "web service",
            "partitions": workload.partitions,
            "milliseconds": _WEB_MILLISECONDS,
            "seconds": round(seconds, 2),
            "allowed": requests_in_flight(workspace.settings.sources["web"]),
            "mean_in_flight": round(found["mean"], 2),
            "peak_in_flight": found["peak"],
        }

    def _post(self, path: str) -> Any:
        with urlopen(Request(f"{self._endpoint}{path}", data=b"", method="POST"), timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else {}


def _per_partition(counts: Counter[str], method: str, partitions: int) -> float:
    """The requests for seals and payloads, for each partition."""
    return round(sum(counts[f"{method} {kind}"] for kind in _UP_TO_THE_VERDICT) / partitions, 3)


def _storage_table(lines: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="runs on object storage with latency", title_justify="left")
    names = ("partitions", "ms", "seconds", "of 0 ms", "PUT", "GET", "other", "in turn", "read", "MB")
    for name in names:
        table.add_column(name, justify="right")
    sizes = sorted({(line["partitions"], line["milliseconds"]) for line in lines})
    for partitions, delay in sizes:
        same = [line for line in lines if (line["partitions"], line["milliseconds"]) == (partitions, delay)]
        base = [line["seconds"] for line in lines if (line["partitions"], line["milliseconds"]) == (partitions, 0)]
        seconds = median(line["seconds"] for line in same)
        last = same[-1]
        table.add_row(
            f"{partitions:,}",
            str(delay),
            f"{seconds:.1f}",
            f"{seconds / median(base):.2f}" if base else "",
            f"{last['puts']:.2f}",
            f"{last['gets']:.2f}",
            f"{last['other']:,}",
            str(last["round_trips"] or ""),
            f"{median(line['read_seconds'] for line in same):.1f}",
            f"{sum(value for name, value in last['memory'].items() if name != 'worker'):,.0f}",
        )
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.latency", description=__doc__)
    parser.add_argument("--partitions", type=positive, action="append", metavar="N", help="repeatable (2000, 10000)")
    parser.add_argument("--rows", type=positive, default=100, metavar="R", help="rows per partition (100)")
    parser.add_argument("--delay", type=int, action="append", metavar="MS", help="repeatable (0, 10, 30, 100)")
    parser.add_argument("--repeat", type=positive, default=1, metavar="K", help="medians of K runs (1)")
    parser.add_argument("--web-partitions", type=int, default=1000, metavar="N", help="0: no web service (1000)")
    return parser


if __name__ == "__main__":
    main()
