"""Measures the same run on local[2] and on a Standalone cluster of two one-core workers on this machine.

Each side is a process of its own with a fresh workspace: a small run first, which pays for the start, then the measured
run. The sides take turns, so that a busy machine slows both; nothing is deleted before the end, because ext4 slows down
after a deletion. `--cache` compares the ways in which a cluster keeps
parsed rows for the load: in the lake; on the disk, which two workers on one machine share, as if every task were placed
on the host that has its rows; or not at all.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import Request, urlopen

from rich.console import Console
from rich.table import Table

from bench.counting_s3 import CONTROL
from bench.options import positive
from bench.penstock_side import StageTimer
from bench.report import circumstances
from bench.soak.tests_path import add_tests_to_path
from bench.workload import ASSET, Workload
from penstock.app import Workspace
from penstock.control.select import Selection

CACHES = ("lake", "disk", "none")
_WARM_UP = Workload(partitions=300, rows=100)
_BUCKET = "bench"
# The option that a local master gets, for the JVMs of a cluster that also live for a minute.
_JVM_OPTIONS = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    if options.side:
        print(json.dumps(_measure(json.loads(options.side))))
        return
    add_tests_to_path()
    sides = ["local", *(f"cluster, cache: {cache}" for cache in options.cache or CACHES[:1])]
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    known, say = circumstances(), Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, ExitStack() as stack:
        environment = stack.enter_context(_s3()) if options.s3 else {}
        master, python = stack.enter_context(_cluster(environment))
        for turn in range(options.repeat):
            for side in sides:
                folder = Path(name, f"{turn}-{len(os.listdir(name))}")
                say.print(f"{side}: {options.partitions:,} partitions")
                cluster = {"master": master, "python": python, "config": _JVM_OPTIONS}
                order = {
                    "spark": {"master": "local[2]"} if side == "local" else cluster,
                    "cache": side.rpartition(" ")[2],
                    "folder": str(folder),
                    "lake": f"s3://{_BUCKET}/{folder.name}" if options.s3 else None,
                    "partitions": options.partitions,
                    "rows": options.rows,
                }
                fact = _run_side(order, environment)
                found[side].append(fact)
                line = {"what": "cluster", "side": side, "s3": options.s3, "partitions": options.partitions}
                print(json.dumps({**line, **fact, **known}, default=str), flush=True)
    contents = {(fact["rows"], fact["clicks"]) for facts in found.values() for fact in facts}
    if len(contents) != 1:
        raise SystemExit(f"the sides did not do the same work, so their times mean nothing: {contents}")
    say.print(_table(found))


def _run_side(order: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.cluster", "--side", json.dumps(order)]
    done = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True)
    fact: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return fact


def _measure(order: dict[str, Any]) -> dict[str, Any]:
    """The run of one side, in this process."""
    from penstock.flow import runner

    if order["cache"] != "lake" and order["spark"]["master"] != "local[2]":
        runner.open_cache = lambda _spark, _lake: _other_cache(order["cache"])  # type: ignore[assignment,attr-defined]
    warm_up, workload = _WARM_UP, Workload(order["partitions"], order["rows"])
    began = time.perf_counter()
    first = _workspace(warm_up, order, "warm-up")
    spark = first.context.session()
    _run(first, warm_up, StageTimer())
    started = time.perf_counter() - began
    time.sleep(1)  # the JVM finishes its background work
    workspace, timer = _workspace(workload, order, "run"), StageTimer()
    _counts()
    began = time.perf_counter()
    _run(workspace, workload, timer)
    seconds = time.perf_counter() - began
    requests = _counts()
    spark.stop()
    table = workspace.read(ASSET).arrow()
    return {
        "seconds": round(seconds, 2),
        "start_seconds": round(started, 2),
        "stages": {name: round(value, 2) for name, value in timer.seconds.items()},
        "requests": requests,
        "rows": table.num_rows,
        "clicks": sum(table.column("clicks").to_pylist()),
    }


def _workspace(workload: Workload, order: dict[str, Any], name: str) -> Workspace:
    """A workspace with the clock of this machine: executors do not have the modules of the benchmark."""
    changes = {"spark": order["spark"]} | ({"lake": f"{order['lake']}/{name}"} if order["lake"] else {})
    workspace = Workspace(workload.settings(Path(order["folder"], name), **changes))
    workspace.maintenance.migrate()
    return workspace


def _run(workspace: Workspace, workload: Workload, timer: StageTimer) -> None:
    chosen = Selection(since=workload.dates[0], until=workload.dates[-1])
    done = workspace.runs.start(chosen, listener=timer)
    if done.loaded != workload.partitions or done.failures:
        raise SystemExit(f"the run is not clean: {done.counts()}, {done.failures[:3]}")


@contextmanager
def _other_cache(kind: str) -> Iterator[Any]:
    from penstock.pipeline.parsed_cache import ParsedCache

    with nullcontext() if kind == "none" else tempfile.TemporaryDirectory(prefix="penstock-rows-") as folder:
        yield ParsedCache(folder) if folder else None


@contextmanager
def _cluster(environment: dict[str, str]) -> Iterator[tuple[str, str]]:
    from support.cluster import standalone

    with standalone(environment=environment, separated=False) as cluster:
        yield cluster.url, str(cluster.python)


@contextmanager
def _s3() -> Iterator[dict[str, str]]:
    """An S3 server that counts requests; yields the variables by which clients find it."""
    import boto3

    from support import servers

    with servers.s3("-m", "bench.counting_s3") as endpoint:
        environment = servers.s3_environment(endpoint)
        credentials = {
            name.lower(): environment[name.upper()] for name in ("aws_access_key_id", "aws_secret_access_key")
        }
        boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **credentials).create_bucket(Bucket=_BUCKET)
        yield environment


def _counts() -> dict[str, int]:
    """The requests since the last call; empty without an S3 server."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    if not endpoint:
        return {}
    with urlopen(Request(f"{endpoint}{CONTROL}", method="POST"), timeout=60) as answer:
        found: dict[str, int] = json.load(answer)
    return found


def _table(found: dict[str, list[dict[str, Any]]]) -> Table:
    """One line per side: medians, the ratio to the local side, requests per partition."""
    shown = Table(title="the same run on local[2] and on two one-core workers", title_justify="left")
    for name in ("side", "seconds", "of local", "extract", "validate", "load", "requests"):
        shown.add_column(name, justify="left" if name == "side" else "right")
    local = median(fact["seconds"] for fact in found["local"])
    for side, facts in found.items():
        seconds = median(fact["seconds"] for fact in facts)
        stages = [median(fact["stages"].get(name, 0.0) for fact in facts) for name in ("extract", "validate", "load")]
        requests = median(sum(fact["requests"].values()) for fact in facts)
        shown.add_row(
            side, f"{seconds:.1f}", f"{seconds / local:.2f}", *(f"{s:.1f}" for s in stages), f"{requests:,.0f}"
        )
    return shown


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__)
    parser.add_argument("--partitions", type=positive, default=5000, metavar="N", help="partitions of each run (5000)")
    parser.add_argument("--rows", type=positive, default=100, metavar="R", help="rows per partition (100)")
    parser.add_argument("--repeat", type=positive, default=1, metavar="K", help="medians of K runs of each side (1)")
    parser.add_argument("--cache", action="append", choices=CACHES, help="repeatable; lake if not given")
    parser.add_argument("--s3", action="store_true", help="a lake on a local S3 server, with the requests counted")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    main()
