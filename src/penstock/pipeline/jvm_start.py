"""Starts the JVM of a session before the session is needed, so that it starts while this process plans.

PySpark connects to a running JVM if the environment names its port and secret, which the JVM writes into a file when it
is ready. The JVM ends when its standard input is closed: at the latest with this process.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from penstock import interrupts
from penstock.pipeline.jvm import add_jvm, end_jvm

_CONNECTION = "_PYSPARK_DRIVER_CONN_INFO_PATH"  # names the file for port and secret
_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_POLL_SECONDS = 0.02


class StartingJvm:
    """A JVM that starts in the background, with the configuration of one session."""

    def __init__(self, config: Mapping[str, str], environment: Mapping[str, str]) -> None:
        from pyspark.find_spark_home import _find_spark_home

        self._config = dict(config)
        self._folder = tempfile.mkdtemp(prefix="penstock-")
        self._file = Path(self._folder, "connection")
        options = [part for name, value in config.items() for part in ("--conf", f"{name}={value}")]
        try:
            with interrupts.delayed():
                self._process = subprocess.Popen(
                    [f"{_find_spark_home()}/bin/spark-submit", *options, "pyspark-shell"],
                    stdin=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,  # an error reaches PySpark as an exception
                    env={**environment, "SPARK_CONNECT_MODE": "0", _CONNECTION: str(self._file)},
                    preexec_fn=_ignore_interrupts,
                )
                add_jvm(self._process)
        except BaseException:
            self._delete_folder()
            raise

    def has(self, config: Mapping[str, str]) -> bool:
        """Whether it was started with this configuration and still runs."""
        return self._config == config and self._process.poll() is None

    def wait(self) -> dict[str, str]:
        """Wait until the JVM is ready, and return the variables that make PySpark connect to it. They are empty if it
        ended: then PySpark starts a new one, and reports what is wrong."""
        try:
            while not self._file.exists():
                if self._process.poll() is not None:
                    return {}
                time.sleep(_POLL_SECONDS)
            written = self._file.read_bytes()  # the port, the length of the secret, the secret
            port, length = struct.unpack_from("!ii", written)
            return {_PORT: str(port), _SECRET: written[8 : 8 + length].decode()}
        finally:
            self._delete_folder()

    def discard(self) -> None:
        """End the JVM. Without its folder it would never end by itself."""
        end_jvm()
        self._delete_folder()

    def _delete_folder(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


_STARTING: list[StartingJvm] = []  # at most one


def start_early(config: Mapping[str, str], variables: Mapping[str, str]) -> None:
    """Start the JVM of a session with this configuration in the background. Does nothing if PySpark has a JVM or is
    told to use another one, and outside the main thread, which is the only one that may fork safely."""
    from pyspark import SparkContext

    told = {_PORT, "PYSPARK_SUBMIT_ARGS", "SPARK_TESTING"} & os.environ.keys()
    if (
        _STARTING
        or told
        or SparkContext._gateway is not None
        or sys.platform == "win32"
        or threading.current_thread() is not threading.main_thread()
    ):
        return
    _STARTING.append(StartingJvm(config, {**os.environ, **variables}))
    atexit.register(_discard_unused)


def early_jvm(config: Mapping[str, str]) -> dict[str, str]:
    """The variables that make PySpark use the JVM of `start_early`; empty if there is none with this configuration."""
    if _STARTING and _STARTING[0].has(config):
        return _STARTING.pop().wait()
    _discard_unused()
    return {}


def _discard_unused() -> None:
    while _STARTING:
        _STARTING.pop().discard()


def _ignore_interrupts() -> None:
    """Ctrl-C is for this process, which ends the JVM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
