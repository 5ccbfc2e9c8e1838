"""Creates several objects at the same time, on storage with latency."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from penstock.lake.protocol import Lake

_THREADS = 8
_MOST_BYTES = 64 * 1024 * 1024


class ConcurrentWrites:
    """Creates objects of a lake, in threads if its requests wait. All of them exist when the block ends without an
    error; it raises the first error of a write. Holds at most 64 MB and one object in memory."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        threads = min(_THREADS, lake.requests_in_flight)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="write") if threads > 1 else None
        self._waiting: list[Future[bool]] = []
        self._bytes = 0

    def create(self, path: str, data: bytes) -> None:
        """Create the object if it does not exist, now or before the block ends."""
        if self._threads is None:
            self._lake.create(path, data)
            return
        if self._bytes + len(data) > _MOST_BYTES:
            self._finish()
        self._bytes += len(data)
        self._waiting.append(self._threads.submit(self._lake.create, path, data))

    def _finish(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        for write in waiting:
            write.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._threads is None:
            return
        self._threads.shutdown(wait=True, cancel_futures=error is not None)
        if error is None:
            self._finish()
