"""Runs a side in a fresh process, so that neither caches nor memory of the sides mix."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from bench.measure import Measured
from bench.workload import Workload

_SIDES = ("yardstick", "penstock")


def run_side(side: str, workload: Workload, folder: Path) -> Measured:
    """What the fresh process does."""
    from bench import penstock_side, yardstick

    measure = {"penstock": penstock_side.measure, "yardstick": yardstick.measure}[side]
    load = os.getloadavg()[0]
    return replace(measure(workload, folder), load_before=round(load, 2))


def repeated(workload: Workload, repeat: int, folder: Path, say: Callable[[str], None]) -> list[Measured]:
    """Every side `repeat` times; who comes first alternates.

    Nothing is deleted in between: ext4 is several times slower at making files just after it lost many, and the side
    that comes second would pay for it.
    """
    runs = []
    for number in range(repeat):
        for side in _SIDES if number % 2 == 0 else reversed(_SIDES):
            place = folder / f"{side}-{workload.partitions}-{number}"
            os.sync()  # what the side before left to be written is not this side's cost
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                measured = pool.submit(run_side, side, workload, place).result()
            say(f"{side}, {workload.partitions:,} partitions: run {measured.run_seconds:.1f} s")
            runs.append(measured)
    return runs
