"""Measures the fold, the ledger and the status queries, each compared with a yardstick of the same run."""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from bench.databases import BACKENDS, place
from bench.folding import measure_folding
from bench.options import positive
from bench.recording import measure_recording
from bench.report import circumstances
from bench.standing import measure_standing

_DAGSTER = "dagster==1.13.28"


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    console, known = Console(stderr=True), circumstances()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        for fact in _measured(options, Path(name)):
            console.print(fact)
            print(json.dumps({**fact, **known}, default=str), flush=True)


def _measured(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, object]]:
    parts = options.part or ["fold", "record", "status", "dagster"]
    if "fold" in parts:
        yield from measure_folding([10_000, 100_000])
    if "record" in parts:
        for backend in BACKENDS:
            with place(backend, folder) as here:
                yield from measure_recording(here, options.events)
    if "status" in parts:
        with place("sqlite", folder) as here:
            yield from measure_standing(here, options.partitions or [10_000, 100_000, 1_000_000], commands=True)
    if "dagster" in parts:
        yield from _dagster(folder / "dagster", options.dagster or [1_000, 5_000])


def _dagster(folder: Path, sizes: Sequence[int]) -> Iterator[dict[str, object]]:
    """Dagster in a separate environment, which is deleted with the folder."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", _DAGSTER], check=True)
    for partitions in sizes:
        script = str(Path(__file__).with_name("dagster_side.py"))
        done = subprocess.run([python, script, str(partitions)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
        found = json.loads(done.stdout.splitlines()[-1])
        yield {"what": "dagster", **{n: round(v, 3) if isinstance(v, float) else v for n, v in found.items()}}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.ledger", description=__doc__)
    parser.add_argument("--part", action="append", choices=["fold", "record", "status", "dagster"], help="repeatable")
    parser.add_argument("--events", type=positive, default=300_000, metavar="N", help="appended and folded")
    parser.add_argument("--partitions", type=positive, action="append", metavar="N", help="for the status questions")
    parser.add_argument("--dagster", type=positive, action="append", metavar="N", help="partitions for Dagster")
    return parser


if __name__ == "__main__":
    main()
