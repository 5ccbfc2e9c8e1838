"""Runs tests against mutated copies of the source: one process for each mutant, forked from one that has imported the
large libraries, a few at a time."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_LARGE = ("pytest", "hypothesis", "hypothesis.stateful", "numpy", "pandas", "pyarrow.parquet", "pyarrow.dataset",
          "pyarrow.compute", "pyarrow.json", "duckdb", "deltalake", "sqlalchemy.dialects.sqlite", "alembic.command",
          "pydantic", "orjson", "yaml", "rich.console", "rich.table", "typer", "sqlglot", "boto3", "ulid")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Job:
    """One mutant in progress: the file in a copy of the source, its changed text, and the tests to run."""

    number: int
    path: str
    text: str
    tests: Sequence[str]
    patience: float  # seconds


@dataclass(frozen=True, slots=True)
class Ended:
    number: int
    outcome: str  # killed, survived, timeout (counts as killed), or broken (pytest itself failed)
    seconds: float
    output: str


def warm_up() -> None:
    for name in _LARGE:
        importlib.import_module(name)


@contextmanager
def copies(src: Path, count: int) -> Iterator[list[Path]]:
    """Copies of the source, one for each process that runs at a time."""
    place = Path(tempfile.mkdtemp(prefix="penstock-mutate-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        made = []
        for number in range(count):
            shutil.copytree(src, place / str(number) / "src", ignore=shutil.ignore_patterns("__pycache__"))
            made.append(place / str(number) / "src")
        yield made
    finally:
        shutil.rmtree(place, ignore_errors=True)


def run(jobs: Sequence[Job], root: Path, slots: Sequence[Path]) -> Iterator[Ended]:
    """Run all jobs, and yield each when it has ended."""
    waiting, free = list(reversed(jobs)), list(slots)
    working: dict[int, tuple[Job, Path, str, float]] = {}
    try:
        while waiting or working:
            while waiting and free:
                job, slot = waiting.pop(), free.pop()
                original = (slot / job.path).read_text()
                _write(slot / job.path, job.text, job.number)
                working[_start(job, root, slot)] = (job, slot, original, time.monotonic())
            for pid, (job, slot, original, began) in list(working.items()):
                seconds = time.monotonic() - began
                ended, status = os.waitpid(pid, os.WNOHANG)
                if not ended and seconds > job.patience:
                    os.killpg(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    outcome = "timeout"
                elif ended:
                    outcome = _outcome(os.waitstatus_to_exitcode(status))
                else:
                    continue
                del working[pid]
                _write(slot / job.path, original, 0)
                free.append(slot)
                log = slot.parent / "log"
                yield Ended(job.number, outcome, seconds, log.read_text(errors="replace")[-2000:])
            time.sleep(0.02)
    finally:
        for pid in working:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _outcome(code: int) -> str:
    """Return the outcome by the exit code of pytest: 1 tests failed, 2 or 4 the changed module cannot be
    imported, so that its tests are not found; below 0 a signal."""
    if code == 0:
        return "survived"
    return "killed" if code < 0 or code in (1, 2, 4) else "broken"


def _write(path: Path, text: str, number: int) -> None:
    """Write the text with a modification time of its own, so that stale byte code is never used."""
    path.write_text(text)
    moment = 1_000_000_000 + number
    os.utime(path, (moment, moment))


def _start(job: Job, root: Path, slot: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        log = os.open(slot.parent / "log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = pytest_in(root, slot, ["-x", "--tb=line", *job.tests])
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001 - nothing may leave the forked process
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def pytest_in(root: Path, src: Path, arguments: Sequence[str], plugins: Sequence[object] = ()) -> int:
    """Run pytest in this process against a copy of the source."""
    import pytest

    sys.dont_write_bytecode = True
    paths = [str(src), str(root / "tests"), str(root)]
    sys.path[:0] = paths
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    os.chdir(root)
    # Hypothesis is imported before pytest could rewrite it, and warnings are errors here.
    options = [
        "-q",
        "--no-header",
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
        "--hypothesis-seed=0",
        "-p",
        "no:xdist",
        f"--rootdir={root}",
    ]
    return int(pytest.main([*options, *arguments], plugins=list(plugins)))
