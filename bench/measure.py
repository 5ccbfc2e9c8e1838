"""Seconds per stage and megabytes per process."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Self, TypeVar

QUESTIONS = ("status", "read_all", "read_customer", "sql")
STARTING = ("session_start", "warm_up")

_SAMPLE_SECONDS = 0.5
_REPEATED_READS = 3

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Content:
    """The result of a side. Two sides that differ here did not do the same work."""

    partitions: int
    rows: int
    clicks: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Every number of one side on one workload. Memory is the peak up to the end of the run, in MB."""

    side: str
    partitions: int
    rows: int
    content: Content
    seconds: dict[str, float]
    memory: dict[str, float] = field(default_factory=dict)
    load_before: float = 0.0  # load of other processes: it slows the side that uses all cores more than the other

    @property
    def run_seconds(self) -> float:
        return self.seconds["run"]

    @property
    def total_seconds(self) -> float:
        """Including what a new process pays before its first run."""
        return self.run_seconds + sum(self.seconds.get(stage, 0.0) for stage in STARTING)

    def as_dict(self) -> dict[str, Any]:
        totals = {"run_seconds": self.run_seconds, "total_seconds": self.total_seconds}
        return asdict(self) | {name: round(value, 3) for name, value in totals.items()}


class Stopwatch:
    """Time and processor time of this process by stage, for one thread; a stage may occur several times."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.cpu_seconds: dict[str, float] = defaultdict(float)
        self._stage: str | None = None
        self._since = self._cpu_since = 0.0

    def begin(self, stage: str) -> None:
        self.end()
        self._stage, self._since, self._cpu_since = stage, time.perf_counter(), time.process_time()

    def end(self) -> None:
        if self._stage is not None:
            self.seconds[self._stage] += time.perf_counter() - self._since
            self.cpu_seconds[self._stage] += time.process_time() - self._cpu_since
            self._stage = None

    def ask(self, question: str, answer: Callable[[], T]) -> T:
        """The answer; its time is the median of a few, because one is too short to trust."""
        times = []
        for _ in range(_REPEATED_READS):
            started = time.perf_counter()
            found = answer()
            times.append(time.perf_counter() - started)
        self.seconds[question] = median(times)
        return found


def child_processes() -> frozenset[int]:
    """The processes below this one, now."""
    return frozenset(process.pid for process in _tree(os.getpid())) - {os.getpid()}


class Memory:
    """Watches this process and everything below it but the ignored ones. Only peaks are kept."""

    def __init__(self, ignored: frozenset[int] = frozenset()) -> None:
        self._ignored = ignored
        self._peaks: dict[str, float] = defaultdict(float)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def peaks(self) -> dict[str, float]:
        """Megabytes until now: the driver, the JVM, the largest Python worker, all Python workers at one moment."""
        self._sample()
        return {name: round(value, 1) for name, value in self._peaks.items()}

    def _watch(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        found: dict[str, float] = defaultdict(float)
        for process in _tree(os.getpid()):
            if process.pid in self._ignored:
                continue
            if process.pid == os.getpid():
                found["driver"] = process.peak
            elif process.name == "java":
                found["jvm"] += process.peak
            elif process.name.startswith("python"):
                found["worker"] = max(found["worker"], process.peak)
                found["workers"] += process.resident
        for name, value in found.items():
            self._peaks[name] = max(self._peaks[name], value)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    name: str
    resident: float
    peak: float


def _tree(root: int) -> list[_Process]:
    """The process and its descendants, as the kernel shows them now."""
    found = [process for entry in os.scandir("/proc") if entry.name.isdigit() if (process := _process(entry.name))]
    children: dict[int, list[_Process]] = defaultdict(list)
    for process in found:
        children[process.parent].append(process)
    tree = [process for process in found if process.pid == root]
    for process in tree:  # grows while we walk it
        tree += children[process.pid]
    return tree


def _process(pid: str) -> _Process | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it ended while we were looking
        return None
    facts = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return _Process(int(pid), int(facts["PPid"]), facts["Name"], _megabytes(facts, "VmRSS"), _megabytes(facts, "VmHWM"))


def _megabytes(facts: dict[str, str], name: str) -> float:
    return int(facts.get(name, "0 kB").split()[0]) / 1024


def timed(work: Callable[..., object], *arguments: object) -> float:
    """The seconds that one call takes."""
    started = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - started
