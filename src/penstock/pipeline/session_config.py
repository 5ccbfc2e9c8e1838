"""The configuration of a Spark session: what results depend on everywhere, what suits one host on a local master only.

On every other master the configuration of the cluster applies, with `spark.config` of the workspace file.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.config.settings import SparkSettings
from penstock.errors import ConfigError, TransientError
from penstock.pipeline import daemon
from penstock.pipeline.worker_code import package_zip

JVM_OPTIONS = "spark.driver.extraJavaOptions"
PY_FILES = "spark.submit.pyFiles"
ARCHIVES = "spark.archives"
FILES = "spark.files"
_ENVIRONMENT = "environment"  # the folder in which an executor unpacks the shipped environment
EXECUTOR_TIMEOUT = "spark.penstock.executorTimeout"  # in seconds; ours, read back from the context
_PYTHON = "spark.pyspark.python"
_CONNECT_PYTHON = "spark.sql.execution.pyspark.python"
_CONNECT_SECONDS = 5.0

# Session settings that results depend on: the same on every master and on Spark Connect.
RESULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "false",  # a check that divides by zero must yield null, not fail every other slice
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.python.filterPushdown.enabled": "true",  # for spark.read.format("penstock")
    # SQL is checked before it runs (sql_guard); with these two, Spark itself refuses what the check must not let pass
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.variable.substitute": "false",
}
_DRIVER = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}  # the terminal is ours
# Work items are a few bytes: a task must not wait three seconds for the host that has them, while other hosts are idle.
_CLUSTER = {"spark.shuffle.reduceLocality.enabled": "false"}
_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
}


def session_config(settings: SparkSettings, class_archive_options: str = "") -> dict[str, str]:
    """Return the configuration of a session on a master. `class_archive_options` are the JVM's options for the class
    archive of a local master."""
    if settings.is_local:
        return {**RESULTS, **_DRIVER, **_LOCAL, **_forked_workers(), **settings.config} | {
            JVM_OPTIONS: _local_jvm_options(settings, class_archive_options)
        }
    shipped = {
        PY_FILES: listed(settings.config.get(PY_FILES), package_zip()),
        EXECUTOR_TIMEOUT: str(settings.executor_timeout.total_seconds()),
    }
    if archives := environment_archive(settings):
        shipped[ARCHIVES] = listed(settings.config.get(ARCHIVES), *archives)
    return {**RESULTS, **_DRIVER, **_CLUSTER, **settings.config, **shipped}


def executor_python(settings: SparkSettings, environ: Mapping[str, str]) -> str:
    """Return the interpreter of the Python workers. PySpark takes it from the driver's environment, not from
    `spark.pyspark.python`."""
    if settings.is_local:
        return sys.executable  # otherwise the workers may run another environment
    if settings.environment:
        return f"./{_ENVIRONMENT}/bin/python"
    return settings.python or settings.config.get(_PYTHON) or environ.get("PYSPARK_PYTHON") or "python3"


def driver_address(settings: SparkSettings) -> str | None:
    """Return the address that the driver offers to executors; None if Spark chooses it. For a Standalone master it is
    the address of the interface that leads to the master, because a host may have several."""
    if settings.is_local:
        return "127.0.0.1"
    for host, port in masters(settings.master):
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((host, port))  # sends nothing
                found: str = probe.getsockname()[0]
        except OSError:
            continue
        if not found.startswith("127."):  # the master's name may stand for this host only here
            return found
    return None


def require_master(settings: SparkSettings) -> None:
    """Raise TransientError if no Standalone master accepts a connection: Spark itself tries for a minute."""
    failures = []
    for host, port in masters(settings.master):
        try:
            socket.create_connection((host, port), _CONNECT_SECONDS).close()
            return
        except OSError as error:
            failures.append(f"{host}:{port}: {error.strerror or error}")
    if failures:
        raise TransientError(
            f"no Spark master answers at {settings.master} ({'; '.join(failures)}): start it, or correct spark.master"
        )


def masters(url: str) -> list[tuple[str, int]]:
    """Return host and port of each Standalone master in a URL such as spark://one:7077,two:7077; else an empty list."""
    if not url.startswith("spark://"):
        return []
    found = []
    for place in url.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError(f"spark.master: {url!r} is not the address of a master: write spark://host:7077")
        found.append((host.strip("[]"), int(port)))
    return found


def connect_python(settings: SparkSettings) -> dict[str, str]:
    """Return the session setting of a Connect server that names the interpreter of its Python workers, if one is
    configured."""
    chosen = f"{_ENVIRONMENT}/bin/python" if settings.environment else settings.python
    return {_CONNECT_PYTHON: chosen} if chosen else {}


def environment_archive(settings: SparkSettings) -> list[str]:
    """Return the packed environment as an entry of a list of archives, if one is configured. Raises ConfigError if
    there is no such file."""
    archive = settings.environment
    if archive is None:
        return []
    if "://" not in archive and not Path(archive).is_file():
        raise ConfigError(f"spark.environment: there is no file {archive}: pack it with `venv-pack -o {archive}`")
    return [f"{archive}#{_ENVIRONMENT}"]


def listed(*values: str | None) -> str:
    """Join comma-separated lists of Spark's configuration."""
    return ",".join(value for value in values if value)


def split_list(value: str | None) -> Sequence[str]:
    """Split a comma-separated list of Spark's configuration."""
    return [part.strip() for part in (value or "").split(",") if part.strip()]


def _forked_workers() -> dict[str, str]:
    # Forking after the import of native libraries was tested on Linux only.
    return {"spark.python.daemon.module": daemon.MODULE} if sys.platform == "linux" else {}


def _local_jvm_options(settings: SparkSettings, class_archive_options: str) -> str:
    # In our jobs the JVM passes work items to Python and results back. That code does not need full optimisation: the
    # second compiler would cost more than it saves, and the first run would pay for it.
    options = settings.config.get(JVM_OPTIONS, "-XX:TieredStopAtLevel=1")
    if "Archive" not in options:
        options = f"{options} {class_archive_options}"
    return options.strip()
