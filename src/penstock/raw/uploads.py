"""Uploads of one worker task: many raw partitions at the same time, so that the task does not wait for each request."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Condition
from types import TracebackType
from typing import Self, TypeVar

from penstock.errors import DataError

MOST_BYTES = 64 * 1024 * 1024
_QUEUED_PER_THREAD = 2

T = TypeVar("T")


class UploadPool:
    """Runs uploads concurrently, at most `in_flight` at a time, and bounds the bytes that wait for them. With
    `in_flight` 1 an upload runs in the thread that submits it.

    A storage error stops the pool: later uploads are refused with the same error, because they would fail, too. An
    upload that fails with DataError concerns its own partition only. Thread-safe.
    """

    def __init__(self, in_flight: int, most_bytes: int = MOST_BYTES) -> None:
        self._threads = ThreadPoolExecutor(in_flight, thread_name_prefix="upload") if in_flight > 1 else None
        self._most = in_flight * _QUEUED_PER_THREAD
        self._most_bytes = most_bytes
        self._changed = Condition()
        self._waiting = 0
        self._bytes = 0
        self._error: BaseException | None = None

    def submit(self, upload: Callable[[], T], size: int) -> Future[T]:
        """Start an upload that holds `size` bytes in memory. Waits while the pool is full. Raises the storage error
        that stopped the pool."""
        if self._threads is None:
            return _finished(upload)
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self._has_room(size))
            if self._error is not None:
                raise self._error
            self._waiting += 1
            self._bytes += size
        return self._threads.submit(self._run, upload, size)

    def _has_room(self, size: int) -> bool:
        return not self._waiting or (self._waiting < self._most and self._bytes + size <= self._most_bytes)

    def _run(self, upload: Callable[[], T], size: int) -> T:
        try:
            return upload()
        except DataError:
            raise
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
            raise
        finally:
            with self._changed:
                self._waiting -= 1
                self._bytes -= size
                self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Wait for the uploads in flight. After an error, uploads that have not begun are cancelled."""
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=error is not None)


def _finished(upload: Callable[[], T]) -> Future[T]:
    """A future with the result of the upload. A storage error is raised at once, as by a full pool."""
    future: Future[T] = Future()
    try:
        future.set_result(upload())
    except DataError as error:
        future.set_exception(error)
    return future
