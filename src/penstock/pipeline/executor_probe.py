"""Checks the executors of a cluster before work is given to them: Python, packages, lake, sources, clock.

The worker function is pickled by value and imports nothing of Penstock before it has found its dependencies, so that
an executor without them reports all that is missing.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, requires
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from packaging.requirements import Requirement

import penstock
from penstock.config.settings import Settings, SourceSettings
from penstock.errors import PenstockError
from penstock.lake import Lake, open_lake
from penstock.lake.protocol import LakeUnavailable
from penstock.partition import new_ulid, ulid_time
from penstock.pipeline.executor_checks import DRIVER_OBJECT, ExecutorChecks
from penstock.pipeline.job_errors import ClusterUnfit, NoExecutors
from penstock.pipeline.spark_jobs import Work, collected, present_cores, progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLOCK_SECONDS = 60.0  # the largest difference between the clocks of the driver and an executor
LAKE_SECONDS = 20.0  # for the requests of one executor to the lake
_SPREAD_SECONDS = 0.3  # a task lasts at least this long, so that every free core gets one
_FOLDER = "doctor"
_LEFT_OVER = timedelta(days=1)

# The distributions that workers import, with their modules; `pyproject.toml` has the versions.
NEEDED = {
    "numpy": "numpy",
    "orjson": "orjson",
    "pandas": "pandas",
    "pyarrow": "pyarrow",
    "pydantic": "pydantic",
    "python-ulid": "ulid",
    "sqlalchemy": "sqlalchemy",
}
_S3 = {"obstore": "obstore"}


@dataclass(frozen=True, slots=True)
class ExecutorReport:
    """The findings of one executor on its host."""

    host: str
    python: str
    executable: str
    versions: Mapping[str, str]
    clock_offset: float  # seconds that the clock is ahead of the driver's; 0 within the duration of the probe
    problems: Sequence[str]
    passing_problems: Sequence[str] = ()  # those that may be over soon: the lake did not answer

    @property
    def ok(self) -> bool:
        return not self.problems and not self.passing_problems


@dataclass(frozen=True, slots=True)
class Probe:
    """The checks of a probe: the lake is always read."""

    lake: str
    writes: bool = True
    sources: tuple[SourceSettings, ...] = ()

    @classmethod
    def of(cls, settings: Settings, *, writes: bool = True, sources: bool = False) -> Self:
        return cls(settings.lake, writes, tuple(settings.sources.values()) if sources else ())

    def covers(self, other: Probe) -> bool:
        """Whether every check of `other` is one of this probe."""
        return self.lake == other.lake and self.writes >= other.writes and all(s in self.sources for s in other.sources)


def probe_executors(spark: SparkSession, probe: Probe, most_tasks: int) -> list[ExecutorReport]:
    """Run one task on every core that the cluster has now, but at most `most_tasks`, and return a report for each host.
    Raises ClusterUnfit if no executor registers or Python does not start, and LakeRefused or LakeUnavailable if the
    driver itself cannot use the lake."""
    lake = open_lake(probe.lake)
    folder = f"{_FOLDER}/{new_ulid()}"
    if probe.writes:
        lake.create(f"{folder}/{DRIVER_OBJECT}", b"penstock")
    try:
        began = time.time()
        answers = _ask(spark, probe, folder if probe.writes else None, most_tasks)
        return _reports(answers, began, time.time())
    finally:
        if probe.writes:
            _delete(lake, folder)


def _delete(lake: Lake, folder: str) -> None:
    """Delete the objects of this probe, and those that killed probes left more than a day ago."""
    oldest = ulid_time(datetime.now(UTC) - _LEFT_OVER)
    with suppress(PenstockError):
        found = [entry.path for entry in lake.list(_FOLDER)]
        lake.delete([path for path in found if path.startswith(f"{folder}/") or path.split("/")[1] < oldest])


def require_fit(reports: Sequence[ExecutorReport], where: str) -> None:
    """Raise ClusterUnfit with every problem and its host, or LakeUnavailable if all of them may be over soon."""
    hosts: dict[str, list[str]] = {}
    for report in reports:
        for problem in (*report.problems, *report.passing_problems):
            hosts.setdefault(problem, []).append(report.host)
    if hosts:
        found = "; ".join(f"{', '.join(named)}: {problem}" for problem, named in hosts.items())
        kind = ClusterUnfit if any(report.problems for report in reports) else LakeUnavailable
        raise kind(f"executors of {where} cannot do the work. {found}")


def _ask(spark: SparkSession, probe: Probe, folder: str | None, most_tasks: int) -> list[dict[str, Any]]:
    checks = ExecutorChecks(probe.lake, folder, probe.sources, LAKE_SECONDS)
    needed = NEEDED | (_S3 if probe.lake.startswith("s3://") else {})
    try:
        with progress(spark, None):
            frame = spark.range(0, 1 << 16, 1, min(present_cores(spark), most_tasks))
            found = collected(frame.mapInArrow(_worker(needed, pickle.dumps(checks)), "report string"))
    except NoExecutors as error:
        raise ClusterUnfit(str(error)) from error
    return [json.loads(text) for text in found.column("report").to_pylist()]


def _reports(answers: Sequence[Mapping[str, Any]], began: float, ended: float) -> list[ExecutorReport]:
    """One report for each host and interpreter, with the problems of all its tasks."""
    found: dict[tuple[str, str], ExecutorReport] = {}
    for answer in answers:
        before = found.get((answer["host"], answer["executable"]))
        first, last = answer["clock"]
        offset = max(first - ended, 0.0) or min(last - began, 0.0)
        problems = [*(before.problems if before else ()), *_problems(answer, offset)]
        passing = [*(before.passing_problems if before else ()), *answer["passing_problems"]]
        found[answer["host"], answer["executable"]] = ExecutorReport(
            answer["host"],
            answer["python"],
            answer["executable"],
            answer["versions"],
            round(offset, 3),
            tuple(dict.fromkeys(problems)),
            tuple(dict.fromkeys(passing)),
        )
    return [found[place] for place in sorted(found)]


def _problems(answer: Mapping[str, Any], offset: float) -> Iterator[str]:
    wanted = _requirements()
    fix = "install it there, or ship an environment that has it with spark.environment"
    for name, error in answer["missing"].items():
        needs = f"{name}{wanted[name].specifier}" if name in wanted else name
        yield f"{answer['executable']} cannot import {needs} ({error}): {fix}"
    for name, version in answer["versions"].items():
        if name in wanted and not wanted[name].specifier.contains(version, prereleases=True):
            yield f"{answer['executable']} has {name} {version}, needed is {name}{wanted[name].specifier}: {fix}"
    if answer["penstock"] not in (None, penstock.__version__):
        versions = f"{answer['penstock']} there and {penstock.__version__} on the driver"
        yield f"Penstock is {versions}: install the same version"
    if abs(offset) > CLOCK_SECONDS:
        direction = "ahead of" if offset > 0 else "behind"
        yield f"its clock is {abs(offset):.0f} s {direction} the driver's: synchronise the clocks (NTP)"
    yield from answer["problems"]


def _requirements() -> dict[str, Requirement]:
    """The versions that our package declares, by distribution; empty if it is used without its metadata."""
    try:
        declared = requires("penstock") or []
    except PackageNotFoundError:
        return {}
    return {one.name: one for one in map(Requirement, declared)}


def _worker(needed: Mapping[str, str], checks: bytes) -> Work:
    wait = _SPREAD_SECONDS

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import json
        import os
        import pickle
        import socket
        import sys
        import time
        from importlib import import_module, metadata

        import pyarrow

        began = time.time()
        for _ in batches:
            pass
        address, pid = socket.gethostname(), os.getpid()
        for _ in range(3):  # this process, Spark's daemon, the executor: its command line has the name of its host
            try:
                with open(f"/proc/{pid}/stat", "rb") as stat, open(f"/proc/{pid}/cmdline", "rb") as line:
                    pid = int(stat.read().rpartition(b")")[2].split()[1])
                    words = line.read().decode(errors="replace").split("\0")
            except (OSError, ValueError):
                break
            if "--hostname" in words:
                address = words[words.index("--hostname") + 1]
        versions, missing = {}, {}
        for distribution, module in needed.items():
            try:
                import_module(module)
                versions[distribution] = metadata.version(distribution)
            except Exception as error:  # noqa: BLE001 - a broken package may fail in any way
                missing[distribution] = f"{type(error).__name__}: {error}"
        problems, passing, ours = [], [], None
        if not missing:
            try:
                ours = import_module("penstock").__version__
                problems, passing = pickle.loads(checks)()  # noqa: S301 - written by our own driver
            except ImportError as error:
                problems = [f"our package cannot be imported: {error}"]
        time.sleep(max(0.0, began + wait - time.time()))
        report = {
            "host": address,
            "python": ".".join(map(str, sys.version_info[:3])),
            "executable": sys.executable,
            "versions": versions,
            "missing": missing,
            "penstock": ours,
            "clock": [began, time.time()],
            "problems": problems,
            "passing_problems": passing,
        }
        yield pyarrow.record_batch({"report": [json.dumps(report)]})

    return work
