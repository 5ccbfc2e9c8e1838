"""The Spark session of the process, configured for many small slices."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from penstock import interrupts
from penstock.arrow_pandas import allow_pandas
from penstock.config.settings import SparkSettings
from penstock.errors import PenstockError, TransientError
from penstock.pipeline.connect import connect_session
from penstock.pipeline.job_errors import innermost
from penstock.pipeline.jvm import archive_of_classes, forget_jvm, quiet_start, require_java, track_jvm
from penstock.pipeline.jvm_start import early_jvm, start_early
from penstock.pipeline.memory import limit_malloc_arenas
from penstock.pipeline.session_config import driver_address, executor_python, require_master, session_config
from penstock.pipeline.spark_versions import installed, require_supported_home, require_supported_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STARTED: WeakSet[SparkSession] = WeakSet()
_QUERY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def start_session(settings: SparkSettings) -> SparkSession:
    """Return the session that the workspace file configures; one session per process. A session whose cluster or
    Connect server is gone is replaced by a new one. Raises ConfigError if pyspark or the Spark of the session is too
    old."""
    installed()
    allow_pandas()
    interrupts.begin_work()
    # PySpark writes errors about SQL and columns to stderr, with their stack; we print one line.
    for name in _QUERY_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    limit_malloc_arenas()
    session = connect_session(settings) if settings.remote else _master_session(settings)
    _STARTED.add(session)
    return session


def is_started_here(session: SparkSession) -> bool:
    """Whether `start_session` returned this session."""
    return session in _STARTED


def _master_session(settings: SparkSettings) -> SparkSession:
    from pyspark.sql import SparkSession

    require_java()
    require_supported_home()
    if not _is_running():
        require_master(settings)
    config, variables = _configuration(settings)
    builder = SparkSession.builder
    for name, value in config.items():
        builder = builder.config(name, value)
    with quiet_start() as read_output, interrupts.restored_handler(), track_jvm(), _environment(variables):
        try:
            with _environment(early_jvm(config)):
                session = builder.getOrCreate()
        except Exception as error:
            output = read_output().strip()[-2000:]
            message = f"Spark did not start on {settings.master}: {innermost(str(error))}"
            raise TransientError(f"{message}\n{output}" if output else message) from error
    require_supported_session(session)
    _expect_end(session)
    return session


def _expect_end(session: SparkSession) -> None:
    """Print nothing when the JVM ends before PySpark's server of accumulators: an interrupted run ends it so."""
    server = getattr(session.sparkContext, "_accumulatorServer", None)
    if server is None or "handle_error" in vars(server):
        return
    report = server.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exc_info()[1], (EOFError, ConnectionError)):
            report(request, address)

    server.handle_error = handle_error


def _configuration(settings: SparkSettings) -> tuple[dict[str, str], dict[str, str]]:
    """The configuration of a session on a master, and the variables of the environment in which it starts."""
    archive = archive_of_classes() if settings.is_local else None
    config = {"spark.app.name": "penstock", "spark.master": settings.master}
    config |= session_config(settings, archive.use_options() if archive else "")
    variables = {"PYSPARK_PYTHON": executor_python(settings, os.environ)}
    if (address := driver_address(settings)) and "SPARK_LOCAL_IP" not in os.environ:
        variables["SPARK_LOCAL_IP"] = address
    return config, variables


def begin_session(settings: SparkSettings) -> None:
    """Start the JVM of a local master in the background: `start_session` will be called soon. Does nothing if it
    cannot; `start_session` reports why."""
    if not settings.is_local or _is_running():
        return
    interrupts.begin_work()
    with suppress(PenstockError, OSError):
        installed()
        require_java()
        require_supported_home()
        start_early(*_configuration(settings))


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process while Spark starts. Processes that it starts later do not inherit them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _is_running() -> bool:
    """Whether this process has a session. Closes one whose context Spark stopped because its cluster went away, and
    forgets one whose JVM is gone."""
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession

    session = SparkSession._instantiatedSession
    if session is None or session._sc._jsc is None:
        return False
    try:
        if not session._sc._jsc.sc().isStopped():
            return True
        session.stop()
    except (Py4JError, OSError):  # the JVM is gone
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        forget_jvm()
    return False
