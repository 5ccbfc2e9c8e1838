"""Work on a few partitions in the process of the driver, with the guarantees of a Spark job."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Event, Thread
from typing import TypeVar

from penstock.errors import PenstockError, SparkFailed

_POLL_SECONDS = 0.2

T = TypeVar("T")


def work_in_driver(work: Callable[[], T], stopped: Event) -> T:
    """Return the result of `work`, which runs in a thread of its own.

    Raises KeyboardInterrupt when `stopped` is set, without waiting for a source that does not respond: the thread ends
    by itself, and its attempts are closed by then. Raises SparkFailed for an unexpected error, as a job does, so that
    one partition does not fail the others.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            result.set_exception(error)

    Thread(target=run, name="driver-work", daemon=True).start()
    while not wait([result], _POLL_SECONDS).done:
        if stopped.is_set():
            raise KeyboardInterrupt
    try:
        return result.result()
    except PenstockError:
        raise
    except Exception as error:
        raise SparkFailed(f"{type(error).__name__}: {error}") from error
