"""Runs a side in a new process, so that the sides share neither caches nor memory."""

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
    """The main function of the new process."""
    from bench import penstock_side, yardstick

    measure = {"penstock": penstock_side.measure, "yardstick": yardstick.measure}[side]
    load = os.getloadavg()[0]
    return replace(measure(workload, folder), load_before=round(load, 2))


def repeated(workload: Workload, repeat: int, folder: Path, say: Callable[[str], None]) -> list[Measured]:
    """Run every side `repeat` times in alternating order.

    Nothing is deleted in between: ext4 creates files several times slower just after many were deleted, and the second
    side would pay for it.
    """
    runs = []
    for number in range(repeat):
        for side in _SIDES if number % 2 == 0 else reversed(_SIDES):
            place = folder / f"{side}-{workload.partitions}-{number}"
            os.sync()  # pending writes of the other side are not this side's cost
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                measured = pool.submit(run_side, side, workload, place).result()
            say(f"{side}, {workload.partitions:,} partitions: run {measured.run_seconds:.1f} s")
            runs.append(measured)
    return runs
