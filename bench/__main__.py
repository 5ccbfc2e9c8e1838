"""Runs both sides at each size, each in its own process, and shows the comparison."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.measure import Measured
from bench.options import positive
from bench.report import Pair, json_lines, medians, show
from bench.sides import repeated
from bench.workload import Workload


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    say = Console(stderr=True)
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    runs: list[Measured] = []
    pairs: list[Pair] = []
    try:
        for partitions in options.partitions or [10_000]:
            workload = Workload(partitions, options.rows)
            found = repeated(workload, options.repeat, folder, say.print)
            runs += found
            pairs.append(_pair(found))
    finally:
        if options.keep:
            say.print(f"kept: {folder}")
        else:
            shutil.rmtree(folder)
    show(Console(), pairs)
    lines = json_lines(pairs, runs)
    if options.output:
        options.output.write_bytes(lines)
    else:
        sys.stdout.buffer.write(lines)


def _pair(runs: Sequence[Measured]) -> Pair:
    contents = {run.content for run in runs}
    if len(contents) != 1:
        raise SystemExit(f"the sides did not do the same work, so their times mean nothing: {contents}")
    [content] = contents
    if content.partitions != runs[0].partitions or content.rows != runs[0].partitions * runs[0].rows:
        raise SystemExit(f"the sides agree on less than the whole work: {content}")
    penstock, yardstick = ([run for run in runs if run.side == side] for side in ("penstock", "yardstick"))
    return Pair(medians(penstock), medians(yardstick))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--partitions", type=positive, action="append", metavar="N", help="repeatable; 10000 if not given"
    )
    parser.add_argument("--rows", type=positive, default=100, metavar="R", help="rows per partition (100)")
    parser.add_argument("--repeat", type=positive, default=1, metavar="K", help="medians of K runs of each side (1)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where the JSON lines go (standard output)")
    parser.add_argument("--keep", action="store_true", help="leave the temporary folder in place")
    return parser


if __name__ == "__main__":
    main()
