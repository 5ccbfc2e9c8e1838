"""Measures planning, issuing, judging and requeueing on both databases, without any data: no Spark, no lake."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from bench.acting import measure_acts
from bench.databases import BACKENDS, place
from bench.facts import Fact, json_lines, show
from bench.options import positive, share
from bench.planning import measure_planning
from bench.workload import Workload


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the server and the folder go in any case
    say = Console(stderr=True)
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    facts: list[Fact] = []
    try:
        for fact in _measured(options, folder):
            stored = "" if fact.stored is None else f", {fact.stored:,} with state"
            say.print(f"{fact.backend}, {fact.partitions:,} partitions{stored}: {fact.what} {fact.seconds:.3f} s")
            facts.append(fact)
    finally:
        shutil.rmtree(folder)
    show(Console(), facts)
    lines = json_lines(facts)
    if options.output:
        options.output.write_bytes(lines)
    else:
        sys.stdout.buffer.write(lines)


def _measured(options: argparse.Namespace, folder: Path) -> Iterator[Fact]:
    for backend in options.backend or BACKENDS:
        with place(backend, folder) as here:
            for partitions in options.partitions or [10_000, 100_000, 1_000_000]:
                yield from measure_planning(here, Workload(partitions, rows=1), options.share, options.batch)
            yield from measure_acts(here, Workload(options.acts, rows=1), options.batch)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.control_plane", description=__doc__)
    parser.add_argument(
        "--partitions",
        type=positive,
        action="append",
        metavar="N",
        help="how many are planned; repeatable; 10000, 100000 and 1000000 if not given",
    )
    parser.add_argument("--share", type=share, default=0.1, metavar="S", help="how many of them get state (0.1)")
    parser.add_argument(
        "--acts", type=positive, default=100_000, metavar="N", help="how many are issued, judged and requeued (100000)"
    )
    parser.add_argument(
        "--batch", type=positive, default=10_000, metavar="B", help="partitions per transaction (10000)"
    )
    parser.add_argument("--backend", choices=BACKENDS, action="append", help="repeatable; both if not given")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where the JSON lines go (standard output)")
    return parser


if __name__ == "__main__":
    main()
