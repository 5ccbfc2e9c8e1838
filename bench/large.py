"""One partition of 2 GB through validation and load, and through its replacement: peak memory, and time compared with a
plain read of the same file."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow.compute as pc
from rich.console import Console

from bench.measure import Memory, Stopwatch
from bench.options import positive
from bench.report import circumstances
from bench.simulated_worker import SimulatedWorker
from bench.workload import ASSET, CONTRACT, QUERY, Workload
from penstock.app import Workspace
from penstock.control.select import Selection
from penstock.partition import AttemptKey
from penstock.pipeline.session import start_session
from penstock.pipeline.validate import ToValidate, validate
from penstock.raw.seal import Seal
from penstock.raw.sink import RawSink
from penstock.state.records import Accepted

_MEGABYTE = 1024 * 1024
# A unique check is left out: it keeps the keys of a slice in memory by design.
_CHECKS = [{"expression": "clicks <= impressions"}, {"rows": {"min": 1}}]
_LINE = {"campaign_name": "Brand search, all markets", "impressions": 1900, "clicks": 7, "conversions": 0.25}


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    say, known = Console(stderr=True).print, circumstances()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        queries = {QUERY: {**CONTRACT, "checks": _CHECKS}}
        workspace = Workload(1, 1).workspace(Path(name) / "workspace", queries=queries)
        with Memory() as memory:
            spark = start_session(workspace.settings.spark)
            try:
                for size in (
                    8,
                    options.megabytes,
                    options.megabytes,
                ):  # the first is the baseline, the last a replacement
                    fact = _measured(workspace, spark, size) | {"peak_mb": memory.peaks()}
                    say(fact)
                    print(json.dumps({**fact, **known}, default=str), flush=True)
            finally:
                spark.stop()


def _measured(workspace: Workspace, spark: Any, megabytes: int) -> dict[str, Any]:
    worker, watch = SimulatedWorker(workspace), Stopwatch()
    [attempt] = worker.issue(workspace.plans.preview(Selection(), reprocess=True).items)
    watch.begin("write")
    seal = _written(workspace, attempt, megabytes * _MEGABYTE)
    watch.begin("plain")
    clicks = _plainly_read(workspace, seal)
    watch.begin("validate")
    item = ToValidate(attempt, seal.payload_bytes, None)
    [found] = validate(spark, workspace.settings.lake, workspace.context.contracts[QUERY], [item])
    watch.end()
    if found.complaints or found.payload_digest is None:
        raise SystemExit(f"the slice was not accepted: {found.complaints}")
    facts = (found.record_count, found.payload_digest, seal.payload_bytes, found.content_digest)
    worker.judge([Accepted(attempt, worker.token, "v1", *facts)])
    watch.begin("load")
    published = workspace.maintenance.reconcile(spark=spark)
    watch.end()
    if published.loaded != 1 or _clicks(workspace) != clicks:
        raise SystemExit("what can be read is not what was written")
    seconds = {name: round(value, 1) for name, value in watch.seconds.items()}
    ratio = (watch.seconds["validate"] + watch.seconds["load"]) / watch.seconds["plain"]
    return {"megabytes": megabytes, "rows": seal.record_count, "seconds": seconds, "in_plain_reads": round(ratio, 2)}


def _written(workspace: Workspace, attempt: AttemptKey, size: int) -> Seal:
    with RawSink(workspace.context.lake).writer(attempt) as writer:
        written, number = 0, 0
        while written < size:
            line = orjson.dumps({"campaign_id": number, "cost_micros": 37 * number, **_LINE})
            writer.write(line)
            written, number = written + len(line) + 1, number + 1
        return writer.seal(workspace.context.now(), "v1", "bench", "bench", "UTC")


def _plainly_read(workspace: Workspace, seal: Seal) -> int:
    """A plain reader of such a file, line by line."""
    [path] = [
        entry.path
        for entry in workspace.context.lake.list("raw")
        if entry.path.endswith(f"{seal.run_id}/{seal.payload}")
    ]
    with workspace.context.lake.open(path) as file:
        return sum(orjson.loads(line)["clicks"] for line in file)


def _clicks(workspace: Workspace) -> int:
    vouched = workspace.data.vouched(ASSET, columns=["clicks"])
    return sum(int(pc.sum(batch.column(0)).as_py() or 0) for batch in vouched.batches())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.large", description=__doc__)
    parser.add_argument("--megabytes", type=positive, default=2048, metavar="N")
    return parser


if __name__ == "__main__":
    main()
