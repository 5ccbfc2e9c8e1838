"""Measures commands whose cost must not explode with the number of partitions: each case at each size.

A case is one entry of a registry (`CASES`): a function that fills a new workspace, and the measured act. A module
`bench/scale_<noun>.py` defines the cases of one part of the system; `CASES` lists all of them.

With `--simulate N` it instead takes N partitions through a whole workspace without work on data, at each power of ten
from 10,000 to N (`bench/scale_simulation.py`).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.databases import BACKENDS, Place, place, settle
from bench.measure import timed
from bench.options import positive
from bench.report import circumstances
from bench.scale_case import Case
from bench.scale_lateness import LATENESS
from bench.scale_marks import MARKS
from bench.scale_projection import PROJECTION
from bench.scale_readiness import READINESS
from bench.scale_simulation import show, simulate, sizes_up_to
from bench.workload import Workload

SIZES = (10_000, 100_000, 1_000_000)
CASES: tuple[Case, ...] = (*READINESS, *LATENESS, *PROJECTION, *MARKS)


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    console, known = Console(stderr=True), circumstances()
    facts: list[dict[str, object]] = []
    cases = [case for case in CASES if not options.case or case.name in options.case]
    simulated = () if options.simulate is None else options.partitions or sizes_up_to(options.simulate)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=options.folder) as name:
        for backend in options.backend or BACKENDS[:1]:
            with place(backend, Path(name)) as here:
                for fact in (
                    chain.from_iterable(simulate(here, size, console) for size in simulated)
                    if simulated
                    else measure_scale(here, cases, options.partitions or SIZES)
                ):
                    facts.append(fact)
                    print(json.dumps({**fact, **known}, default=str), flush=True)
    if simulated:
        show(console, facts)
    else:
        console.print(table(facts))


def measure_scale(place: Place, cases: Sequence[Case], sizes: Sequence[int]) -> Iterator[dict[str, object]]:
    """Seconds of each case at each size. Cases with the same fill share a workspace, in the order of the registry."""
    for partitions in sizes:
        for fill in dict.fromkeys(case.fill for case in cases):
            workload = Workload(partitions, rows=1)
            with place.workspace(workload) as workspace:
                fill(workspace, workload)
                settle(workspace.context.database)
                for case in (case for case in cases if case.fill is fill):
                    seconds = timed(case.act, workspace)
                    yield {
                        "what": case.name,
                        "backend": place.backend,
                        "partitions": partitions,
                        "seconds": round(seconds, 4),
                    }


def table(facts: Sequence[dict[str, object]]) -> Table:
    """One line per case and database: seconds at each size."""
    sizes = sorted({int(str(fact["partitions"])) for fact in facts})
    found = Table(title="seconds by number of partitions", title_justify="left")
    for name in ("case", "database", *(f"{size:,}" for size in sizes)):
        found.add_column(name, justify="left" if name in ("case", "database") else "right")
    seconds = {(fact["what"], fact["backend"], fact["partitions"]): fact["seconds"] for fact in facts}
    for what, backend in dict.fromkeys((fact["what"], fact["backend"]) for fact in facts):
        cells = (seconds.get((what, backend, size)) for size in sizes)
        found.add_row(str(what), str(backend), *("" if cell is None else f"{cell:.3f}" for cell in cells))
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="repeatable; all")
    parser.add_argument(
        "--partitions", type=positive, action="append", metavar="N", help="repeatable; 10000, 100000 and 1000000"
    )
    parser.add_argument(
        "--simulate", type=positive, metavar="N", help="fill a workspace with N partitions, without work on data"
    )
    parser.add_argument("--folder", type=Path, help="where the workspaces are created; a temporary folder")
    parser.add_argument("--backend", action="append", choices=BACKENDS, help="repeatable; sqlite if not given")
    return parser


if __name__ == "__main__":
    main()
