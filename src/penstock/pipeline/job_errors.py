"""Errors of Spark jobs: the innermost cause in one line, with the host of the executor, and the class that decides
whether the work is repeated.

A job that fails because of one partition (its Python worker crashed or ran out of memory) is repeated with halves of
the partitions. A job that fails because the cluster is not set up for it would fail with every partition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from penstock.errors import AuthFailed, ConfigError, PenstockError, SparkFailed, TransientError, VersionRefused
from penstock.lake.protocol import LakeRefused, LakeUnavailable

_LONGEST = 1000
_LOST_TASK = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \((?P<host>\S+) executor (?P<executor>[^)]+)\): ")
_WRAPPERS = re.compile(
    r"(?:\w+(?:Exception|Error): )?(?:An error occurred while calling|Exception thrown in awaitResult"
    r"|An exception was thrown from the Python worker|\[PYTHON_EXCEPTION\])"
)
_TRACEBACK = "Traceback (most recent call last):"
_ABORTED = "SparkException: Job aborted due to stage failure: "
_PACKAGE = re.compile(r"^(?:java|javax|org|pyspark|py4j|scala)(?:\.[a-z][\w$]*)*\.(?=[A-Z]\w*(?:Exception|Error)\b)")
_EXECUTOR_LOST = re.compile(r"^ExecutorLostFailure \(executor \S+ exited (?P<cause>.*?)\) Reason: (?P<reason>.*)")

_NOT_STARTED = re.compile(r"Error from python worker:\n(?P<output>.*?)PYTHONPATH was:", re.DOTALL)
_NO_PYTHON = "its Python does not start"

# Causes that no partition is responsible for, as patterns of the innermost cause, with the fix. An interpreter that
# cannot be started for want of memory or processes may be the fault of a partition.
_INSTALL = "install it on the executors, or ship an environment that has it with spark.environment"
_SAME_VERSIONS = "install the same versions on the executors as on the driver"
_SAME_PYTHON = "give the executors the driver's Python version"
_NOT_SET_UP = tuple(
    (re.compile(pattern), fix)
    for pattern, fix in (
        (
            r"IOException: Cannot run program .*error=(2|8|13)\b",
            "set spark.python to the interpreter on the executors, or ship one with spark.environment",
        ),
        (
            rf"{_NO_PYTHON}: (?!MemoryError|.*Cannot allocate memory)",
            "repair this interpreter, or set spark.python to another one",
        ),
        (r"\w*: \[PYTHON_VERSION_MISMATCH\]", _SAME_PYTHON),
        (r"ModuleNotFoundError: ", _INSTALL),
        (r"ImportError: ", _SAME_VERSIONS),
        (r"AttributeError: Can't get attribute ", _SAME_VERSIONS),
        (r"\w*Error: .*AWS Error ACCESS_DENIED", "give the executors credentials for the lake"),
    )
)
# Our own errors that a worker raises for the whole job, by the names that a traceback shows.
_KINDS: dict[str, type[PenstockError]] = {
    f"{kind.__module__}.{kind.__qualname__}": kind
    for kind in (AuthFailed, ConfigError, LakeRefused, LakeUnavailable, VersionRefused)
}
_GONE = (
    "SparkContext was shut down",
    "SparkContext has been shutdown",
    "stopped SparkContext",
    "Master removed our application",
    "All masters are unresponsive",
    "has been killed",
    "Connection refused",
    "UNAVAILABLE",
    "RETRIES_EXCEEDED",
    "INVALID_HANDLE",
    "SESSION_CHANGED",
    "SESSION_NOT_FOUND",
    "SESSION_CLOSED",
    "OPERATION_NOT_FOUND",
    "NO_ACTIVE_SESSION",
)


class ExecutorsNotSetUp(ConfigError):
    """Python or a package is missing on an executor. No partition is responsible: the work is not repeated."""

    remedy = "Correct what the message names on that host; `penstock doctor --cluster` checks every executor."


class ClusterUnfit(ConfigError):
    """Executors of the cluster cannot do the work. Nothing was issued."""

    remedy = "Correct what the message names on that host; `penstock doctor --cluster` checks every executor again."


class SparkUnavailable(TransientError):
    """The Spark cluster or the Connect server went away. No partition is responsible."""

    remedy = "Run the command again when the cluster is back; `penstock doctor --cluster` checks it."


class NoExecutors(SparkUnavailable):
    """A job waited too long without any executor."""

    remedy = "Start workers or free resources of the cluster, then run the command again."


def job_error(error: BaseException) -> PenstockError:
    """Return our error for the error of a Spark job."""
    text = _whole_text(error)
    cause = innermost(text)
    where = _where(text)
    name, _, message = cause.partition(": ")
    if kind := _KINDS.get(name):
        return kind(f"{where}{message}")
    for pattern, fix in _NOT_SET_UP:
        if pattern.match(cause):
            return ExecutorsNotSetUp(f"{where}{_short(cause)}: {fix}")
    if _is_of_the_connection(error) or (not _is_of_tasks(text) and any(phrase in text for phrase in _GONE)):
        return SparkUnavailable(f"Spark is no longer available: {_short(cause)}")
    return SparkFailed(f"a Spark job broke: {where}{_short(cause)}")


def _is_of_the_connection(error: BaseException) -> bool:
    """Whether the driver's JVM does not answer: py4j has a class of its own for errors that the JVM reports."""
    return isinstance(error, ConnectionError) or type(error).__name__ in ("Py4JError", "Py4JNetworkError")


def _is_of_tasks(text: str) -> bool:
    """Whether tasks failed, so that the job itself was alive."""
    return _LOST_TASK.search(text) is not None or "failed the maximum allowable number of times" in text


def name_hosts(error: PenstockError, hosts: Sequence[str]) -> None:
    """Add the hosts of failed tasks to an error of a job whose message names none of them."""
    if isinstance(error, SparkFailed | ExecutorsNotSetUp) and not any(host in error.args[0] for host in hosts):
        error.args = (f"{', '.join(hosts)}: {error.args[0]}",)


def innermost(text: str) -> str:
    """Return the innermost cause of an error of Spark in one line: the last line of a Python traceback, or else the
    message of the task that failed, or else the first message that is not a wrapper's."""
    text = text.partition("JVM stacktrace")[0]
    lost = list(_LOST_TASK.finditer(text))
    inside = text[lost[-1].end() :].partition("Driver stacktrace")[0] if lost else text
    if found := _NOT_STARTED.search(inside):
        said = [line.strip() for line in found["output"].splitlines() if line.strip()]
        return f"{_NO_PYTHON}: {said[-1] if said else 'it printed nothing'}"[:_LONGEST]
    if _TRACEBACK in inside:
        return _first_of([*_plain_lines(inside.rpartition(_TRACEBACK)[2]), inside.strip()])
    if found := _EXECUTOR_LOST.match(inside):
        return f"the executor was lost: {found['reason'].strip()}"
    return _first_of([*_plain_lines(inside), inside.strip()])


def _first_of(lines: list[str]) -> str:
    for at, line in enumerate(lines):
        found = _PACKAGE.sub("", line.removeprefix(": ").removeprefix("Caused by: ")).strip()
        if found and not _WRAPPERS.match(found):
            return " ".join([found.removeprefix(_ABORTED), *(lines[at + 1 : at + 2] if found[-1] == ":" else ())])[
                :_LONGEST
            ]
    return (lines[-1] if lines else "")[:_LONGEST] or "unknown error"


def _plain_lines(text: str) -> Iterator[str]:
    """The lines that are not frames of a stack: those of Java are indented with `at`, those of Python with spaces."""
    for line in text.splitlines():
        if line[:1].strip() and not line.startswith("at "):
            yield line


def _whole_text(error: BaseException) -> str:
    """The message of an error and of its causes: PySpark's own message does not name the executor."""
    texts: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(texts) < 5:
        texts.append(str(seen))
        seen = seen.__cause__ or seen.__context__
    return "\n".join(texts)


def _where(text: str) -> str:
    lost = list(_LOST_TASK.finditer(text))
    if not lost or lost[-1]["executor"] == "driver":  # on a local master
        return ""
    return f"{lost[-1]['host']} (executor {lost[-1]['executor']}): "


def _short(cause: str) -> str:
    return cause.partition(" SQLSTATE")[0].partition(" Consider setting")[0].rstrip(".")
