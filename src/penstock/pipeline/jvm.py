"""The JVM of a driver: its Java, its process, its output."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from penstock import interrupts
from penstock.errors import ConfigError
from penstock.pipeline.class_data_sharing import ClassArchive, class_archive

_JVM_SECONDS = 5  # time to exit by itself, so that it deletes its temporary files
_POLL_SECONDS = 0.02

_JVM: list[subprocess.Popen[bytes]] = []  # the one that this process started


@contextmanager
def track_jvm() -> Iterator[None]:
    """Record the process that PySpark starts, from the moment it exists, and end it if Spark fails to start: a JVM that
    is interrupted while it starts would never exit."""
    from pyspark import java_gateway

    class Known(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            with interrupts.delayed():
                super().__init__(*arguments, **options)
                add_jvm(self)

    starts: Any = java_gateway
    original, starts.Popen = starts.Popen, Known
    try:
        yield
    except BaseException:
        forget_jvm()
        raise
    finally:
        starts.Popen = original


def add_jvm(process: subprocess.Popen[bytes]) -> None:
    """Record a JVM that was started without PySpark."""
    _JVM.append(process)


def forget_jvm() -> None:
    """End the JVM that this process started, and make PySpark start a new one for the next session."""
    from pyspark import SparkContext

    end_jvm()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None


def end_jvm() -> None:
    """End the JVM that this process started, and its child processes. Does nothing without a JVM."""
    while _JVM:
        jvm = _JVM.pop()
        family = _stopped_family(jvm.pid) if jvm.poll() is None else []
        for number in (signal.SIGTERM, signal.SIGKILL):
            _send(family, number)
            _send(family, signal.SIGCONT)
            if _ends(jvm, family):
                break


def _ends(jvm: subprocess.Popen[bytes], family: Sequence[int]) -> bool:
    """Whether the JVM and all processes of its family end in time: the launcher of Spark is a Java of its own."""
    end = time.monotonic() + _JVM_SECONDS
    while jvm.poll() is None or any(_is_running(pid) for pid in family):
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def _stopped_family(pid: int) -> list[int]:
    """A process and its descendants, stopped: Spark's start script must not start another Java meanwhile."""
    family: list[int] = []
    while found := [one for one in (pid, *_descendants(pid)) if one not in family]:
        _send(found, signal.SIGSTOP)
        family += found
    return family


def _send(processes: Iterable[int], number: signal.Signals) -> None:
    for pid in processes:
        with suppress(OSError):
            os.kill(pid, number)


def _descendants(pid: int) -> list[int]:
    """The child processes of a process, recursively; empty without /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError, ValueError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = list(children.get(pid, ()))
    for child in found:
        found += children.get(child, ())
    return found


def require_java() -> str:
    """Return the version line of the Java that Spark will use. Raises ConfigError if it is missing or too old."""
    return _java_version().partition("\n")[0]


def archive_of_classes() -> ClassArchive | None:
    """The class archive of this Java and this Spark; None if this Java does not support it."""
    from pyspark.find_spark_home import _find_spark_home

    return class_archive(_java_version(), Path(_find_spark_home(), "jars"))


def _java_version() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java") if home is None else shutil.which("java", path=f"{home}/bin")
    if java is None:
        raise ConfigError(
            "Spark needs Java 17 or newer and none was found: install it (Debian/Ubuntu: apt-get install"
            " openjdk-17-jre-headless) or set JAVA_HOME"
        )
    output = _version_output(java)
    line = output.partition("\n")[0]
    major = line.partition('"')[2].partition(".")[0].rstrip('"')
    if major.isdigit() and int(major) < 17:
        raise ConfigError(f"Spark needs Java 17 or newer, found {line}: install a newer one or set JAVA_HOME to it")
    return f"{output}{java}"


@cache
def _version_output(java: str) -> str:
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    return "".join(line for line in output.splitlines(keepends=True) if not line.startswith("Picked up"))


@contextmanager
def quiet_start() -> Iterator[Callable[[], str]]:
    """Keep the JVM's start-up output off the terminal; it is shown only if the start fails."""
    sys.stderr.flush()
    keep = os.dup(2)
    with tempfile.TemporaryFile() as output:
        os.dup2(output.fileno(), 2)

        def read_output() -> str:
            output.seek(0)
            return output.read().decode(errors="replace")

        try:
            yield read_output
        finally:
            os.dup2(keep, 2)
            os.close(keep)
