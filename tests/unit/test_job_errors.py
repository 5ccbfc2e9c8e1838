"""Errors of Spark jobs: one line with the innermost cause, and no repetition where no partition is responsible."""

from __future__ import annotations

import pytest

from penstock.errors import AuthFailed, ConfigError, ExitCode, PenstockError, SparkFailed
from penstock.flow.stages import split_on_failure
from penstock.lake.protocol import LakeObjectMissing, LakeRefused, LakeUnavailable
from penstock.pipeline.job_errors import (
    ClusterUnfit,
    ExecutorsNotSetUp,
    NoExecutors,
    SparkUnavailable,
    innermost,
    job_error,
    name_hosts,
)

# The texts are those of PySpark 4.3, with most lines of their stacks removed.
_LAUNCHED = """An error occurred while calling o70.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:70)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 2.0 failed 4 times, most \
recent failure: Lost task 1.3 in stage 2.0 (TID 11) (10.0.0.3 executor 0): {cause}
\tat org.apache.spark.api.python.PythonWorkerFactory.startDaemon(PythonWorkerFactory.scala:371)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2888)
Caused by: java.io.IOException: error=2, No such file or directory
\t... 24 more
"""
_TRACEBACK = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", line 1993, in main
    process()
{cause}
"""


def failed(cause: str) -> PenstockError:
    return job_error(RuntimeError(_LAUNCHED.format(cause=cause)))


def raised(cause: str) -> PenstockError:
    return failed(_TRACEBACK.format(cause=cause))


def test_an_interpreter_that_does_not_exist_is_named_with_its_host_and_the_fix() -> None:
    error = failed('java.io.IOException: Cannot run program "/nowhere/python": error=2, No such file or directory')
    assert isinstance(error, ExecutorsNotSetUp)
    assert str(error) == (
        '10.0.0.3 (executor 0): IOException: Cannot run program "/nowhere/python": error=2, No such file or directory:'
        " set spark.python to the interpreter on the executors, or ship one with spark.environment"
    )
    assert error.exit_code is ExitCode.FAILED


@pytest.mark.parametrize(
    "cause",
    [
        "ModuleNotFoundError: No module named 'orjson'",
        "ImportError: cannot import name 'Nope' from 'penstock.errors' (./penstock.zip/penstock/errors.py)",
        "AttributeError: Can't get attribute 'Slice' on <module 'penstock.pipeline.slices'>",
        "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different"
        " version: 3.9 than that in driver: 3.11, PySpark cannot run with different minor versions.",
        "OSError: When reading information for key 'x': AWS Error ACCESS_DENIED during HeadObject operation",
    ],
)
def test_what_is_missing_on_an_executor_is_a_configuration_error(cause: str) -> None:
    error = raised(cause)
    assert isinstance(error, ExecutorsNotSetUp)
    shown = cause.removeprefix("pyspark.errors.exceptions.base.").rstrip(".")
    assert str(error).startswith(f"10.0.0.3 (executor 0): {shown}: ")
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    "cause",
    [
        'java.io.IOException: Cannot run program "python3": error=12, Cannot allocate memory',
        'java.io.IOException: Cannot run program "python3": error=11, Resource temporarily unavailable',
        _TRACEBACK.format(cause="ValueError: the row says: No module named x"),
        _TRACEBACK.format(cause="SyntaxError: invalid syntax"),
        "org.apache.spark.SparkException: \nError from python worker:\n  MemoryError\nPYTHONPATH was:\n  /a\n",
    ],
)
def test_want_of_memory_and_data_that_looks_like_an_error_may_be_of_one_partition(cause: str) -> None:
    assert type(failed(cause)) is SparkFailed


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        ("penstock.lake.protocol.LakeRefused: no credentials", LakeRefused),
        ("penstock.lake.protocol.LakeUnavailable: timed out", LakeUnavailable),
        ("penstock.errors.ConfigError: sources.x: kind 'm:C' cannot be loaded", ConfigError),
        ("penstock.errors.AuthFailed: refused", AuthFailed),
    ],
)
def test_an_error_of_ours_keeps_its_class_and_gets_its_host(cause: str, kind: type[PenstockError]) -> None:
    error = raised(cause)
    assert type(error) is kind
    assert str(error) == f"10.0.0.3 (executor 0): {cause.partition(': ')[2]}"


@pytest.mark.parametrize(
    ("cause", "line"),
    [
        ("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting 'spark...'",
         "SparkException: Python worker exited unexpectedly (crashed)"),
        ("ExecutorLostFailure (executor 0 exited caused by one of the running tasks) Reason: Command exited with 137",
         "the executor was lost: Command exited with 137"),
        ("java.lang.OutOfMemoryError: Java heap space", "OutOfMemoryError: Java heap space"),
    ],
)  # fmt: skip
def test_what_a_partition_can_cause_is_tried_again_without_it(cause: str, line: str) -> None:
    error = failed(cause)
    assert type(error) is SparkFailed
    assert str(error) == f"a Spark job broke: 10.0.0.3 (executor 0): {line}"


def test_an_exception_of_a_worker_may_be_of_one_partition() -> None:
    assert str(raised("MemoryError")) == "a Spark job broke: 10.0.0.3 (executor 0): MemoryError"
    assert type(raised("KeyError: 'x'")) is SparkFailed


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (
            "  Traceback (most recent call last):\n    File 'x', line 1\n  AttributeError: no major\n",
            "AttributeError: no major",
        ),
        ("", "it printed nothing"),
    ],
)
def test_an_interpreter_that_does_not_start_is_a_configuration_error(output: str, shown: str) -> None:
    error = failed(
        f"org.apache.spark.SparkException: \nError from python worker:\n{output}PYTHONPATH was:\n  /a:/b\n"
        "org.apache.spark.SparkException: EOFException occurred while reading the port number from pyspark.daemon"
    )
    assert isinstance(error, ExecutorsNotSetUp)
    assert str(error) == (
        f"10.0.0.3 (executor 0): its Python does not start: {shown}: repair this interpreter, or set spark.python to"
        " another one"
    )


def test_a_task_that_could_not_connect_somewhere_is_not_a_cluster_that_is_gone() -> None:
    assert type(raised("ConnectionRefusedError: [Errno 111] Connection refused")) is SparkFailed


def test_an_executor_that_was_lost_again_and_again_is_a_failed_job() -> None:
    text = _LAUNCHED.partition("Task 1 in")[0] + (
        "ResultStage 20 (toArrow at x.py:10) has failed the maximum allowable number of times: 4. Most recent failure"
        " reason:\norg.apache.spark.shuffle.FetchFailedException: Connection refused: /10.0.0.3:1\n\tat x"
    )
    error = job_error(RuntimeError(text))
    assert type(error) is SparkFailed
    assert str(error).startswith("a Spark job broke: ResultStage 20 (toArrow at x.py:10) has failed the maximum")
    assert str(error).endswith("reason: org.apache.spark.shuffle.FetchFailedException: Connection refused: /10.0.0.3:1")


@pytest.mark.parametrize(
    "text",
    [
        "Job 3 cancelled because SparkContext was shut down",
        "[INVALID_HANDLE.SESSION_CHANGED] The handle x is invalid. SQLSTATE: HY000",
        "[RETRIES_EXCEEDED] The maximum number of retries has been exceeded.",
        "An error occurred while trying to connect to the Java server (127.0.0.1:1): [Errno 111] Connection refused",
    ],
)
def test_a_cluster_that_went_away_is_no_failure_of_partitions(text: str) -> None:
    error = job_error(RuntimeError(text))
    assert type(error) is SparkUnavailable
    assert error.exit_code is ExitCode.TRY_AGAIN


def test_a_jvm_that_is_gone_is_no_failure_of_partitions() -> None:
    assert type(job_error(ConnectionRefusedError(111, "Connection refused"))) is SparkUnavailable


def test_the_host_is_found_in_the_cause_of_the_error_of_pyspark() -> None:
    error = RuntimeError(
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File\nX: y"
    )
    error.__cause__ = RuntimeError(_LAUNCHED.format(cause=_TRACEBACK.format(cause="KeyError: 'x'")))
    assert str(job_error(error)) == "a Spark job broke: 10.0.0.3 (executor 0): KeyError: 'x'"


def test_a_message_without_a_known_shape_is_its_first_line() -> None:
    assert innermost("something\nelse") == "something"
    assert innermost("") == "unknown error"


@pytest.mark.parametrize(
    "kind", [ClusterUnfit, ExecutorsNotSetUp, SparkUnavailable, NoExecutors, LakeRefused, ConfigError]
)
def test_such_errors_are_never_divided_among_partitions(kind: type[PenstockError]) -> None:
    tried: list[int] = []

    def work(items: object) -> list[int]:
        tried.append(1)
        raise kind("x")

    with pytest.raises(kind):
        split_on_failure(range(100), work, 60)
    assert tried == [1]


def test_hosts_are_added_to_an_error_that_names_none() -> None:
    without, named = SparkFailed("a Spark job broke: KeyError: 'x'"), SparkFailed("10.0.0.3 (executor 0): lost")
    for error in (without, named):
        name_hosts(error, ["10.0.0.2", "10.0.0.3"])
    assert str(without) == "10.0.0.2, 10.0.0.3: a Spark job broke: KeyError: 'x'"
    assert str(named) == "10.0.0.3 (executor 0): lost"
    missing = LakeObjectMissing("s3://lake", "path")
    name_hosts(missing, ["10.0.0.2"])
    assert missing.path == "path"
    assert "10.0.0.2" not in str(missing)
