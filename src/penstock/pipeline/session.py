"""The Spark session of the process, configured for many small slices."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import interrupts
from penstock.config.settings import SparkSettings
from penstock.errors import ConfigError, TransientError
from penstock.pipeline import daemon
from penstock.pipeline.class_data_sharing import ClassArchive, class_archive
from penstock.pipeline.memory import limit_malloc_arenas

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JVM_SECONDS = 5  # time to exit by itself, so that it deletes its temporary files
JVM_OPTIONS = "spark.driver.extraJavaOptions"
_OURS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",  # for spark.read.format("penstock")
    "spark.sql.ansi.enabled": "false",  # a check that divides by zero must yield null, not fail every other slice
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
    # SQL is checked before it runs (sql_guard); with these two, Spark itself refuses what the check must not let pass
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.variable.substitute": "false",
}
_QUERY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_ON_CONNECT = (
    "spark.sql.session.timeZone",
    "spark.sql.ansi.enabled",
    "spark.sql.runSQLOnFiles",
    "spark.sql.variable.substitute",
)


def start_session(settings: SparkSettings) -> SparkSession:
    """Return the session that the workspace file configures; one session per process."""
    from pyspark.sql import SparkSession

    interrupts.begin_work()
    # PySpark writes errors about SQL and columns to stderr, with their stack; we print one line.
    for name in _QUERY_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    limit_malloc_arenas()
    if settings.remote:
        return _connect(settings)
    require_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable  # otherwise the workers may run another environment
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName("penstock").master(settings.master)
    for name, value in {**_OURS, **_for_master(settings.master), **settings.config, **_for_jvm(settings)}.items():
        builder = builder.config(name, value)
    with _quiet_start() as read_output, interrupts.restored_handler(), _track_jvm():
        try:
            return builder.getOrCreate()
        except Exception as error:
            output = read_output().strip()[-2000:]
            raise TransientError(f"Spark did not start on {settings.master}: {error}\n{output}") from error


_JVM: list[subprocess.Popen[bytes]] = []  # the one that this process started


@contextmanager
def _track_jvm() -> Iterator[None]:
    """Record the process that PySpark starts, from the moment it exists, and end it if Spark fails to start: a JVM that
    is interrupted while it starts would never exit."""
    from pyspark import SparkContext, java_gateway

    class Known(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            with interrupts.delayed():
                super().__init__(*arguments, **options)
                _JVM.append(self)

    starts: Any = java_gateway
    original, starts.Popen = starts.Popen, Known
    try:
        yield
    except BaseException:
        end_jvm()
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        raise
    finally:
        starts.Popen = original


def end_jvm() -> None:
    """End the JVM that this process started, and its child processes. Does nothing without a JVM."""
    while _JVM:
        jvm = _JVM.pop()
        family = [jvm.pid, *_descendants(jvm.pid)] if jvm.poll() is None else []
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in family:
                with suppress(OSError):
                    os.kill(pid, number)
            with suppress(subprocess.TimeoutExpired):
                jvm.wait(_JVM_SECONDS)
                break


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
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    output = "".join(line for line in output.splitlines(keepends=True) if not line.startswith("Picked up"))
    line = output.partition("\n")[0]
    major = line.partition('"')[2].partition(".")[0].rstrip('"')
    if major.isdigit() and int(major) < 17:
        raise ConfigError(f"Spark needs Java 17 or newer, found {line}: install a newer one or set JAVA_HOME to it")
    return f"{output}{java}"


def _connect(settings: SparkSettings) -> SparkSession:
    from pyspark.sql import SparkSession

    try:
        session: SparkSession = SparkSession.builder.remote(str(settings.remote)).getOrCreate()
    except ImportError as error:
        raise ConfigError(f"Spark Connect needs more packages: install `penstock[connect]` ({error})") from error
    session.addArtifacts(_package_zip(), pyfile=True)
    for name in _ON_CONNECT:
        session.conf.set(name, _OURS[name])
    return session


def _for_master(master: str) -> dict[str, str]:
    if master.startswith("local"):
        # Forking after the import of native libraries was tested on Linux only.
        return {"spark.python.daemon.module": daemon.MODULE} if sys.platform == "linux" else {}
    # On a cluster the workers get our package from the driver, so that both sides run the same code.
    return {"spark.submit.pyFiles": _package_zip()}


def _for_jvm(settings: SparkSettings) -> dict[str, str]:
    if not settings.master.startswith("local"):  # the cluster's own defaults apply
        return {}
    # In our jobs the JVM passes work items to Python and results back. That code does not need full optimisation: the
    # second compiler would cost more than it saves, and the first run would pay for it.
    options = settings.config.get(JVM_OPTIONS, "-XX:TieredStopAtLevel=1")
    if "Archive" not in options and (archive := archive_of_classes()):
        options = f"{options} {archive.use_options()}"
    return {JVM_OPTIONS: options.strip()}


def _package_zip() -> str:
    package = Path(__file__).parents[1]
    target = Path(tempfile.mkdtemp(prefix="penstock-")) / "penstock.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(package.rglob("*.py")):
            archive.write(path, path.relative_to(package.parent))
    return str(target)


@contextmanager
def _quiet_start() -> Iterator[Callable[[], str]]:
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
