"""Kills a publisher in every gap of the protocol while readers run, verifies the state it left, and recovers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass

from support.harness import Harness
from support.loader_processes import TABLE, UniformWitness, Watch, folding_nothing, keys, rows_of, start

COMPACT_GAPS = ("compact.staged", "compact.prepared", "compact.committed")
PUBLISH_GAPS = ("publish.staged", "publish.prepared", "publish.committed", "publish.committed:2", "publish.recorded")


@dataclass(frozen=True, slots=True)
class Survived:
    """One gap: which publication readers saw after the kill, and what the next publisher did with the batch."""

    gap: str
    seen: int
    mended: str


class Walk:
    """Every partition is replaced again and again, half of them moving from one schema version to the other."""

    def __init__(self, house: Harness, partitions: int) -> None:
        self._house = house
        self._newer = house.under("v2")
        days = next(n for n in range(100, 0, -1) if partitions % n == 0 and n * n <= partitions)
        self._keys = keys(range(1, partitions // days + 1), days)
        self._publication = 0

    def prepare(self) -> None:
        """Several small files for each month, so that there is something to compact."""
        self._publication = 1
        with folding_nothing():
            for part in range(4):
                self._house.deliver(dict.fromkeys(self._keys[part::4], 1), rows_of(1))
                self._house.publish()

    def close(self) -> None:
        for house in (self._house, self._newer):
            house.workspace.context.database.close()

    def through(self, watch: Watch) -> Iterator[Survived]:
        for gap in COMPACT_GAPS:
            self._kill(gap, "compact", f"{TABLE}.v1")
            yield self._mended(gap, watch)
        for gap in PUBLISH_GAPS:
            self._deliver()
            self._kill(gap, "publish")
            yield self._mended(gap, watch)

    def _deliver(self) -> None:
        self._publication += 1
        half = self._publication % 2
        for house, some in ((self._house, self._keys[half::2]), (self._newer, self._keys[1 - half :: 2])):
            house.deliver(dict.fromkeys(some, self._publication), rows_of(self._publication))

    def _kill(self, gap: str, role: str, *arguments: str) -> None:
        process = start(role, self._house.folder, *arguments, PENSTOCK_FAILPOINT=gap)
        code = process.wait(300)
        assert code == -signal.SIGKILL, f"the {role} was to die at {gap}, and ended with {code}"

    def _mended(self, gap: str, watch: Watch) -> Survived:
        watch.wait_for_a_look()
        seen = self._seen()
        assert seen == (self._publication if gap in (*COMPACT_GAPS, "publish.recorded") else self._publication - 1), gap
        before = self._house.batches()
        self._house.workers.mark_dead_workers()
        self._house.publish()
        after = self._house.batches()
        left = [batch for batch, status in before.items() if status == "prepared"]
        mended = after[left[0]] if left else "nothing to mend"
        watch.wait_for_a_look()
        assert self._seen() == self._publication, gap
        assert self._house.unfinished() == set()
        return Survived(gap, seen, mended)

    def _seen(self) -> int:
        witness = UniformWitness(self._house, len(self._keys))
        witness.look()
        return witness.last


def expected_mending(gap: str) -> str:
    if gap.endswith(".prepared"):
        return "discarded"
    return "published" if ".committed" in gap else "nothing to mend"
