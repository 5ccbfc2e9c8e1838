"""Measures loading, replacing, reading and committing, each compared with the tools one uses without Penstock."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from bench.committing import measure_committing
from bench.loading import Compared, measure_loading, measure_replacing
from bench.options import positive
from bench.report import circumstances
from bench.scanning import measure_scanning
from bench.workload import Workload
from penstock.pipeline.session import start_session

_PARTS = ("load", "replace", "read", "commit")


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    console, known = Console(stderr=True), circumstances()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        for fact in _measured(options, Path(name)):
            console.print(fact)
            print(json.dumps({**fact, **known}, default=str), flush=True)


def _measured(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, object]]:
    parts = options.part or _PARTS
    if "commit" in parts:
        yield from measure_committing(folder, [100, 1_000, 10_000])
    if not {"load", "replace", "read"} & set(parts):
        return
    sizes = sorted(options.partitions or [10_000, 50_000])
    for partitions in [100, *sizes]:  # the first one compiles code for all others
        workload, place = Workload(partitions, options.rows), folder / str(partitions)
        workspace = workload.workspace(place / "workspace")
        spark = start_session(workspace.settings.spark)
        compared = Compared(workspace, spark, place, options.rows)
        loaded = list(measure_loading(compared, workload))
        if partitions == 100:
            list(measure_replacing(compared, workload))
            continue
        yield from loaded
        if partitions == sizes[-1]:
            yield from measure_scanning(workspace, spark, workload.customers[0]) if "read" in parts else ()
            yield from measure_replacing(compared, workload) if "replace" in parts else ()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.warehouse", description=__doc__)
    parser.add_argument("--part", action="append", choices=_PARTS, help="repeatable; all if none is named")
    parser.add_argument("--partitions", type=positive, action="append", metavar="N", help="repeatable; 10000 and 50000")
    parser.add_argument("--rows", type=positive, default=20, metavar="R", help="rows per partition (20)")
    return parser


if __name__ == "__main__":
    main()
