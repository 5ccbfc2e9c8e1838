"""Reads ahead: the next items are fetched from the lake while the current one is parsed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from penstock.lake import Lake

_DEPTH = 2

T = TypeVar("T")
R = TypeVar("R")


def prefetched(lake: Lake, items: Iterable[T], read: Callable[[T], R]) -> Generator[tuple[T, R], None, None]:
    """Yield each item with its `read` result, in order. On storage with latency up to `_DEPTH` items are read ahead in
    threads, so memory is that of three items; elsewhere each is read when it is needed. Raises the errors of `read`
    at their item."""
    if lake.requests_in_flight == 1:
        yield from ((item, read(item)) for item in items)
        return
    pool = ThreadPoolExecutor(_DEPTH, thread_name_prefix="prefetch")
    ahead: deque[tuple[T, Future[R]]] = deque()
    try:
        for item in items:
            ahead.append((item, pool.submit(read, item)))
            if len(ahead) > _DEPTH:
                first, future = ahead.popleft()
                yield first, future.result()
        while ahead:
            first, future = ahead.popleft()
            yield first, future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
