"""SQL statements of the console: each in a process with limits, and few at the same time."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from penstock.errors import TerminalError, TransientError, UsageError
from penstock.http.sql_process import NO_MEMORY, StatementLimits

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

MOST_STATEMENTS = 2  # at the same time in one server
LIMITS = StatementLimits()
_PATIENCE = 25  # seconds that a process may need in addition to the time of its statement
_SLOTS = threading.BoundedSemaphore(MOST_STATEMENTS)


class TooManyStatements(TransientError):
    """Other statements are being executed."""

    remedy = "Try again when they have ended: each ends after some seconds."


class LimitReached(UsageError):
    """A statement that reached a limit before it had a result."""

    remedy = "Select fewer days or customers, or run the statement with `penstock sql`, which has no limits."


class StatementFailed(TerminalError):
    """A statement whose process ended without a result."""

    remedy = "Read the log of the server: it has the error of the process."


def execute_sql(folder: Path, statement: str, limits: StatementLimits = LIMITS) -> dict[str, Any]:
    """The document of the result of one SELECT on the workspace in this folder.

    Raises UsageError for a statement that is refused or fails, LimitReached if it takes too long or needs too much
    memory, and TooManyStatements while others are being executed.
    """
    import orjson

    request = orjson.dumps({"folder": str(folder), "statement": statement, "limits": asdict(limits)})
    with _slot():
        code, output, errors = _run(request, limits.seconds + _PATIENCE)
    if code == 0:
        found: dict[str, Any] = orjson.loads(output)
        if "problem" in found:
            raise UsageError(found["problem"])
        return found
    if code in (-signal.SIGALRM, None):
        raise LimitReached(f"the statement was stopped: it may take {limits.seconds:g} seconds")
    if code in (NO_MEMORY, -signal.SIGKILL):  # the kernel kills it if the machine has no memory left
        raise LimitReached(f"the statement was stopped: it may use {limits.memory_mib} MiB of memory")
    log.warning("sql.broken", extra={"facts": {"exit_code": code, "stderr": errors[-4000:]}})
    raise StatementFailed("the statement ended the process that executed it: the log of the server has the details")


@contextmanager
def _slot() -> Iterator[None]:
    if not _SLOTS.acquire(blocking=False):
        raise TooManyStatements(f"{MOST_STATEMENTS} statements are being executed: try again in some seconds")
    try:
        yield
    finally:
        _SLOTS.release()


def _run(request: bytes, patience: float) -> tuple[int | None, bytes, str]:
    """The exit code, the output and the errors of the process; the code is None if it had to be killed."""
    command = [sys.executable, "-P", "-m", "penstock.http.sql_process"]
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)  # the process imports what this one imports
    try:
        done = subprocess.run(
            command,
            input=request,
            capture_output=True,
            timeout=patience,
            check=False,
            env={**os.environ, "PYTHONPATH": paths},
        )
    except subprocess.TimeoutExpired:  # run() has killed it
        return None, b"", ""
    return done.returncode, done.stdout, done.stderr.decode(errors="replace")
