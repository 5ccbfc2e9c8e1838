"""Counts the requests to object storage for each partition, by stage: a whole run on a local S3 server.

The stages of one batch follow each other, so a stage owns the requests since the previous stage ended. A load reads
rows from the parsed-row cache; `load, payloads read again` is a load without it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

from rich.console import Console
from rich.table import Table

from bench.counting_s3 import CONTROL
from bench.filling import Deliveries, keys_of, publish
from bench.options import positive
from bench.report import circumstances
from bench.soak.tests_path import add_tests_to_path
from bench.workload import Workload
from penstock.app import Workspace
from penstock.config.settings import is_local_master
from penstock.control.select import Selection

LARGEST = 2_500  # a run works on so many partitions in one batch
_BUCKET = "bench"
_STARTS = {"extract": "before the first attempt", "validate": "extract", "judge": "validate", "load": "judge"}

Counts = dict[str, Counter[str]]


class StageCounts:
    """A progress listener that assigns the requests since the last change of stage."""

    def __init__(self, take: Callable[[], Counter[str]]) -> None:
        self.by_stage: Counts = {}
        self._take = take

    def stage(self, name: str, _partitions: int) -> Callable[[float], None]:
        self.add(_STARTS.get(name, "other"))

        def report(share: float) -> None:
            if share >= 1:
                self.add(name)

        return report

    def say(self, _message: str) -> None:
        """Messages for people are not measured."""

    def add(self, stage: str) -> None:
        """Assign the requests since the last call to a stage."""
        if found := self._take():
            self.by_stage.setdefault(stage, Counter()).update(found)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.storage_requests", description=__doc__)
    parser.add_argument("--partitions", type=positive, default=1000, help=f"at most {LARGEST}")
    parser.add_argument("--master", default="local[2]", help="local[2]; local-cluster[2,1,1024] works like a cluster")
    options = parser.parse_args(arguments)
    if options.partitions > LARGEST:
        parser.error(f"--partitions: more than {LARGEST} partitions are several batches, whose stages overlap")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, _server() as take:
        counts = measure_requests(Workload(options.partitions, rows=100), Path(name), take, options.master)
    for stage, found in counts.items():
        fact = {"what": "requests", "stage": stage, "partitions": options.partitions, "requests": dict(found)}
        print(json.dumps({**fact, **circumstances()}, default=str), flush=True)
    Console(stderr=True).print(_table(counts, options.partitions))


def measure_requests(workload: Workload, folder: Path, take: Callable[[], Counter[str]], master: str) -> Counts:
    """The requests by stage of a run, of the same run without anything due, and of a load without the cache."""
    from penstock.pipeline.session import start_session

    session = {"master": master} | ({} if is_local_master(master) else {"python": sys.executable})
    workspace = workload.workspace(folder / "run", spark=session, lake=f"s3://{_BUCKET}/run")
    spark = start_session(workspace.settings.spark)
    try:
        take()
        listener = StageCounts(take)
        done = workspace.runs.start(Selection(), listener=listener, spark=spark)
        if done.loaded != workload.partitions:
            raise SystemExit(f"{done.loaded} of {workload.partitions} partitions were loaded")
        listener.add("project, at the end of a run")
        workspace.runs.start(Selection(), listener=listener, spark=spark)
        listener.add("a run without due partitions")
        listener.by_stage |= _load_without_cache(workload, folder, spark, take)
        return listener.by_stage
    finally:
        spark.stop()


def _load_without_cache(workload: Workload, folder: Path, spark: object, take: Callable[[], Counter[str]]) -> Counts:
    workspace: Workspace = workload.workspace(folder / "load", lake=f"s3://{_BUCKET}/load")
    Deliveries(workspace, workload.rows).deliver(keys_of(workload.customers, workload.dates))
    take()
    publish(workspace, spark)
    return {"load, payloads read again": take()}


@contextmanager
def _server() -> Iterator[Callable[[], Counter[str]]]:
    """An S3 server with a bucket; yields the function that takes the counts since its last call."""
    add_tests_to_path()
    import boto3

    from support.servers import s3, s3_environment

    with s3("-m", "bench.counting_s3") as endpoint:
        os.environ.update(s3_environment(endpoint))
        boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket=_BUCKET)

        def take() -> Counter[str]:
            with urlopen(Request(f"{endpoint}{CONTROL}", data=b"", method="POST"), timeout=30) as answer:
                return Counter(json.load(answer))

        yield take


def _table(counts: Counts, partitions: int) -> Table:
    table = Table(title=f"requests of {partitions:,} partitions, by stage", title_justify="left")
    for name in ("stage", "request"):
        table.add_column(name)
    for name in ("requests", "per partition"):
        table.add_column(name, justify="right")
    for stage, found in counts.items():
        for kind, number in sorted(found.items(), key=lambda item: -item[1]):
            table.add_row(stage, kind, f"{number:,}", f"{number / partitions:.3f}")
        table.add_section()
    return table


if __name__ == "__main__":
    main()
