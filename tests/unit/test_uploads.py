"""The uploads of a worker task: how many are in flight, how many bytes wait, and what an error of one means."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.errors import RawError
from penstock.lake.protocol import LakeUnavailable
from penstock.raw.uploads import UploadPool


def test_uploads_overlap_up_to_the_limit() -> None:
    together = threading.Barrier(4, timeout=10)  # passes only if four uploads are in flight at the same time
    with UploadPool(4) as pool:
        found = [pool.submit(together.wait, 1) for _ in range(8)]
    assert sorted(future.result() for future in found) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_no_more_uploads_than_the_limit_are_in_flight() -> None:
    lock, now, peak = threading.Lock(), 0, 0
    third = threading.Event()

    def upload() -> None:
        nonlocal now, peak
        with lock:
            now += 1
            peak = max(peak, now)
        third.wait(0.05)
        with lock:
            now -= 1

    with UploadPool(3) as pool:
        for _ in range(12):
            pool.submit(upload, 1)
    assert peak == 3


def test_with_one_request_in_flight_an_upload_runs_in_the_calling_thread() -> None:
    with UploadPool(1) as pool:
        assert pool.submit(threading.get_ident, 1).result() == threading.get_ident()


def test_submitting_waits_while_too_many_bytes_are_held() -> None:
    answer, submitted = threading.Event(), threading.Event()

    def submit_another(pool: UploadPool) -> None:
        pool.submit(lambda: None, 60)
        submitted.set()

    with ThreadPoolExecutor(1) as other, UploadPool(8, most_bytes=100) as pool:
        pool.submit(lambda: answer.wait(10), 60)
        other.submit(submit_another, pool)
        assert not submitted.wait(0.1)
        answer.set()
        assert submitted.wait(10)


def test_an_upload_larger_than_the_limit_is_not_held_up_forever() -> None:
    with UploadPool(2, most_bytes=10) as pool:
        assert [pool.submit(lambda: "done", 1000).result() for _ in range(3)] == ["done"] * 3


@pytest.mark.parametrize("in_flight", [1, 4])
def test_a_damaged_seal_concerns_its_own_partition_only(in_flight: int) -> None:
    def damaged() -> None:
        raise RawError("its seal is broken")

    with UploadPool(in_flight) as pool:
        first = pool.submit(damaged, 1)
        assert isinstance(first.exception(timeout=10), RawError)
        assert pool.submit(lambda: "sealed", 1).result() == "sealed"


def test_a_storage_error_refuses_later_uploads() -> None:
    def unavailable() -> None:
        raise LakeUnavailable("no answer")

    sent: list[int] = []
    with UploadPool(2) as pool:
        assert isinstance(pool.submit(unavailable, 1).exception(timeout=10), LakeUnavailable)
        with pytest.raises(LakeUnavailable, match="no answer"):
            pool.submit(lambda: sent.append(1), 1)
    assert sent == []


def test_a_storage_error_in_the_calling_thread_is_raised_at_once() -> None:
    def unavailable() -> None:
        raise LakeUnavailable("no answer")

    with UploadPool(1) as pool, pytest.raises(LakeUnavailable):
        pool.submit(unavailable, 1)


def test_a_full_pool_whose_storage_fails_does_not_wait_forever() -> None:
    failing = threading.Event()

    def unavailable() -> None:
        failing.wait(10)
        raise LakeUnavailable("no answer")

    with ThreadPoolExecutor(1) as other, UploadPool(2, most_bytes=10) as pool:
        pool.submit(unavailable, 10)
        blocked = other.submit(pool.submit, lambda: None, 10)
        failing.set()
        assert isinstance(blocked.exception(timeout=10), LakeUnavailable)
