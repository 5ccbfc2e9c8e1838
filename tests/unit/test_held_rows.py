"""The memory of the requests of a worker task is bounded, also for sources that send days in any order."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from threading import Barrier, Thread
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from penstock.config.assets import Query
from penstock.config.checks import Field
from penstock.config.settings import Customer, SourceSettings
from penstock.partition import new_run_id
from penstock.pipeline import extract
from penstock.pipeline.held_rows import HeldRows
from penstock.pipeline.source_requests import Extraction
from penstock.source.protocol import Row

DAYS = [date(2024, 6, 1) + timedelta(days=day) for day in range(5)]
REQUESTS = 4
ROW = "x" * 20_000
ROUNDS = 60
ONE_REQUEST = len(DAYS) * ROUNDS * (len(ROW) + 20)
BOUND = ONE_REQUEST // 4
BLOCK = 1024 * 1024 // REQUESTS + len(ROW)


def test_a_request_beyond_the_bound_waits_until_an_older_one_ends() -> None:
    held = HeldRows(most_bytes=10)
    older, younger = held.begin(), held.begin()
    held.hold(older, 20)  # the oldest one never waits
    order = []

    def receive() -> None:
        held.hold(younger, 1)
        order.append("continued")

    thread = Thread(target=receive, daemon=True)
    thread.start()
    while not held._changed._waiters and not order:  # type: ignore[attr-defined]
        time.sleep(0.001)
    order.append("older ended")
    held.end(older)
    thread.join(30)
    assert order == ["older ended", "continued"]


def test_a_request_continues_when_days_of_others_are_complete() -> None:
    held = HeldRows(most_bytes=10)
    older, younger = held.begin(), held.begin()
    held.hold(older, 8)
    held.hold(younger, 2)
    held.hold(older, 20)
    held.hold(older, 1)
    held.hold(younger, 9)
    held.end(younger)
    held.end(older)


class Mixed:
    """A source that sends its days in turns, a large row for each."""

    in_date_order = False
    api_version = "1"
    together: ClassVar[Barrier] = Barrier(REQUESTS)

    def __init__(self, options: Any, context: Any) -> None:
        pass

    def extract(self, query: Query, customer: Customer, dates: Sequence[date]) -> Iterator[tuple[date, Row]]:
        self.together.wait(30)
        for _ in range(ROUNDS):
            for day in dates:
                yield day, {"n": ROW}
            time.sleep(0.001)  # the other requests receive rows


@pytest.mark.parametrize(("most_bytes", "is_bounded"), [(BOUND, True), (100 * ONE_REQUEST, False)])
def test_requests_of_a_task_hold_no_more_than_the_bound_and_one_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int, is_bounded: bool
) -> None:
    """A bound that is never reached shows that the requests would hold more."""
    peaks = []

    class Watched(HeldRows):
        def __init__(self) -> None:
            super().__init__(most_bytes)

        def _may_continue(self, request: int) -> bool:
            may = super()._may_continue(request)
            if may:
                peaks.append(sum(self._requests.values()))
            return may

    monkeypatch.setattr(extract, "HeldRows", Watched)
    query = Query(name="q", source="s", start_date=DAYS[0], fields=(Field(name="n", type="string"),))
    source = SourceSettings(name="s", kind=f"{__name__}:Mixed")
    work = Extraction(
        str(tmp_path), new_run_id(), source, {"q": query}, {"q": "hash"}, in_flight=REQUESTS, threads=REQUESTS
    )
    spans = [
        {"query": "q", "customer": Customer(id=str(number)).model_dump_json(), "dates": DAYS}
        for number in range(REQUESTS)
    ]
    [found] = extract._worker(work)(iter(pa.Table.from_pylist(spans).to_batches()))
    assert [row["record_count"] for row in found.to_pylist()] == [ROUNDS] * len(DAYS) * REQUESTS
    # The oldest request goes on, and each request collects a block for each of its days before it can wait.
    assert (max(peaks) <= BOUND + ONE_REQUEST + REQUESTS * len(DAYS) * BLOCK) is is_bounded
