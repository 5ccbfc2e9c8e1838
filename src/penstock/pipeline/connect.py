"""The session of a Spark Connect server."""

from __future__ import annotations

import atexit
import socket
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock.config.settings import SparkSettings
from penstock.errors import ConfigError, TransientError
from penstock.pipeline.job_errors import innermost
from penstock.pipeline.session_config import (
    ARCHIVES,
    EXECUTOR_TIMEOUT,
    FILES,
    PY_FILES,
    RESULTS,
    connect_python,
    environment_archive,
    split_list,
)
from penstock.pipeline.spark_jobs import translated_errors
from penstock.pipeline.spark_versions import require_supported_server
from penstock.pipeline.worker_code import package_zip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DEFAULT_PORT = 15002
_CONNECT_SECONDS = 10.0
_RETRIES = 7  # about two minutes; the client's own default is ten

_SESSIONS: dict[str, SparkSession] = {}  # by the settings


def connect_session(settings: SparkSettings) -> SparkSession:
    """Return the session of this process on a Connect server. After a restart of the server it is a new one, with our
    package and settings. Raises TransientError if no server answers."""
    name = settings.model_dump_json()
    _require_client()
    _require_server(settings)
    if known := _SESSIONS.pop(name, None):
        if _is_alive(known):
            _SESSIONS[name] = known
            return known
        with suppress(Exception):  # the server forgot it already
            known.stop()
    session = _new_session(settings)
    try:
        require_supported_server(session)
        prepare_connect_session(session, settings)
    except BaseException:
        session.stop()
        raise
    _SESSIONS[name] = session
    return session


def _require_client() -> None:
    """Raise ConfigError if the packages of the client are missing."""
    try:
        import pyspark.sql.connect.session  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"Spark Connect needs more packages: install `penstock[connect]` ({error})") from error


def _require_server(settings: SparkSettings) -> None:
    """Raise TransientError if nothing listens at the address: the client itself retries for minutes."""
    address = urlsplit(str(settings.remote))
    if address.scheme != "sc" or not address.hostname:
        return
    try:
        place = (address.hostname, address.port or _DEFAULT_PORT)
        socket.create_connection(place, _CONNECT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or error
        raise TransientError(
            f"no Spark Connect server answers at {settings.where} ({reason}): start it, or correct spark.remote"
        ) from error


def _is_alive(session: SparkSession) -> bool:
    try:
        session.conf.get("spark.sql.session.timeZone")
    except Exception:  # noqa: BLE001 - whatever the reason is, a new session is needed
        return False
    return True


def _new_session(settings: SparkSettings) -> SparkSession:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    builder = SparkSession.builder.remote(str(settings.remote))
    try:
        session = builder.create() if settings.where.startswith("sc:") else builder.getOrCreate()
    except Exception as error:
        raise TransientError(f"no session on {settings.where}: {innermost(str(error))}") from error
    session.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES)])
    # At exit the client sends a request of its own, and waits for minutes if the server is gone.
    if on_exit := getattr(session.client, "_on_exit", None):
        atexit.unregister(on_exit)
    atexit.register(_release, session, settings)
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")  # the error has the same text
    return session


def _release(session: SparkSession, settings: SparkSettings) -> None:
    """Release the resources of a session on its server, if the server still answers."""
    with suppress(Exception):
        _require_server(settings)
        session.stop()


def prepare_connect_session(session: SparkSession, settings: SparkSettings) -> None:
    """Ship our package and the user's files to the server, set the configuration of the session, and register the data
    source `penstock`: a server does not look for it in the files of a session."""
    from pyspark_penstock import DefaultSource

    config = dict(settings.config)
    python_files = [package_zip(), *split_list(config.pop(PY_FILES, None))]
    archives = [*split_list(config.pop(ARCHIVES, None)), *environment_archive(settings)]
    files = split_list(config.pop(FILES, None))
    if remote := [file for file in (*python_files, *archives, *files) if "://" in file]:
        raise ConfigError(f"a Connect session ships local files only, not {', '.join(remote)}: download them first")
    with translated_errors():
        session.addArtifacts(*python_files, pyfile=True)
        if archives:
            session.addArtifacts(*archives, archive=True)
        if files:
            session.addArtifacts(*files, file=True)
        session.dataSource.register(DefaultSource)
    timeout = {EXECUTOR_TIMEOUT: str(settings.executor_timeout.total_seconds())}
    for name, value in {**RESULTS, **timeout, **config, **connect_python(settings)}.items():
        _set(session, name, value)


def _set(session: SparkSession, name: str, value: str) -> None:
    from pyspark.errors import PySparkException

    with translated_errors():
        try:
            session.conf.set(name, value)
        except PySparkException as error:
            if not (error.getCondition() or "").startswith("CANNOT_MODIFY"):
                raise
            reason = innermost(str(error))
            raise ConfigError(
                f"spark.config: {name} cannot be set in a session of a Connect server: {reason}; set it where the"
                " server starts"
            ) from error
