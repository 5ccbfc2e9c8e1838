"""The request budget of a source: divided among workers, and enforced by each of them."""

from __future__ import annotations

from collections import Counter
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.config.assets import Query
from penstock.config.checks import Field
from penstock.config.settings import Customer, SourceSettings
from penstock.partition import new_run_id
from penstock.pipeline.extract import _limits_per_task, _worker
from penstock.pipeline.source_requests import Extraction
from penstock.source.budget import Budget
from penstock.source.concurrency import requests_in_flight

FIRST = date(2024, 6, 1)
QUERY = Query(name="q", source="demo", start_date=FIRST, fields=(Field(name="n", type="long"),))


class FakeTime:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.now += seconds


def test_requests_keep_their_distance_and_idleness_is_not_saved_up() -> None:
    time = FakeTime()
    budget = Budget(4.0, time.clock, time.sleep)
    for _ in range(3):
        budget.spend()
    assert time.slept == [0.25, 0.25]
    time.now += 60
    for _ in range(3):
        budget.spend()
    assert time.slept == [0.25] * 4


def test_a_request_that_counts_for_several_is_paid_for_afterwards() -> None:
    time = FakeTime()
    budget = Budget(2.0, time.clock, time.sleep)
    budget.spend(4)
    budget.spend()
    assert time.slept == [2.0]


def test_without_a_rate_nobody_waits() -> None:
    time = FakeTime()
    budget = Budget(None, time.clock, time.sleep)
    for _ in range(1000):
        budget.spend()
    assert time.slept == []


def extraction(folder: Path, **limits: float) -> Extraction:
    source = SourceSettings.model_validate({"name": "demo", "kind": "demo", "options": {"rows": 2}, **limits})
    return Extraction(
        str(folder), new_run_id(), source, {"q": QUERY}, {"q": "hash"}, in_flight=requests_in_flight(source)
    )


@pytest.mark.parametrize(
    ("limits", "tasks", "threads", "rate"),
    [
        ({}, 50, 1, None),
        ({"parallelism": 1}, 1, 1, None),
        ({"parallelism": 3}, 3, 1, None),
        ({"parallelism": 10}, 4, 2, None),  # never more than was allowed
        ({"rate": 8.0}, 4, 1, 2.0),
        ({"parallelism": 8, "rate": 8.0}, 4, 2, 2.0),
    ],
)
def test_what_is_allowed_is_limits_per_task(
    tmp_path: Path, limits: dict[str, float], tasks: int, threads: int, rate: float | None
) -> None:
    shared, found = _limits_per_task(extraction(tmp_path, **limits), tasks=50, slots=4)
    assert (found, shared.threads, shared.rate) == (tasks, threads, rate)


@pytest.mark.parametrize(("spans", "tasks"), [(0, 2), (100, 2), (256, 4), (100_000, 50)])
def test_many_spans_are_several_tasks_for_each_slot_so_that_progress_shows(
    tmp_path: Path, spans: int, tasks: int
) -> None:
    shared, found = _limits_per_task(extraction(tmp_path, parallelism=16, rate=8.0), tasks=50, slots=2, spans=spans)
    assert (found, shared.threads, shared.rate) == (tasks, 8, 4.0)


def test_threads_of_a_worker_fetch_each_span_once(tmp_path: Path) -> None:
    shared, _ = _limits_per_task(extraction(tmp_path, parallelism=4), tasks=1, slots=1)
    assert shared.threads == 4
    spans = [
        {"query": "q", "customer": Customer(id=str(number)).model_dump_json(), "dates": [FIRST, FIRST + timedelta(1)]}
        for number in range(20)
    ]
    [found] = _worker(shared)(iter(pa.Table.from_pylist(spans).to_batches()))
    rows = found.to_pylist()
    assert Counter((row["customer_id"], row["record_count"]) for row in rows) == {(str(n), 2): 2 for n in range(20)}
