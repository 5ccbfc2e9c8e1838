"""How many requests a run keeps in flight to a source: by kind, by the workspace file, and after quota errors."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from threading import Barrier, Event, Lock
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from penstock.config.assets import Query
from penstock.config.checks import Field
from penstock.config.settings import Customer, SourceSettings
from penstock.errors import QuotaExceeded
from penstock.lake.protocol import LakeUnavailable
from penstock.partition import AttemptKey, PartitionKey, new_run_id
from penstock.pipeline.extract import _span_days, _spans, _worker, extract_in_driver
from penstock.pipeline.source_requests import Extraction
from penstock.source.concurrency import RequestSlots, requests_in_flight
from penstock.source.protocol import COMPLETE, Row

FIRST = date(2024, 6, 1)


def query(**options: Any) -> Query:
    return Query(name="q", source="s", start_date=FIRST, fields=(Field(name="n", type="long"),), options=options)


def settings(kind: str, parallelism: int | None = None, **options: Any) -> SourceSettings:
    return SourceSettings(name="s", kind=kind, parallelism=parallelism, options=options)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (settings("google_ads"), 16),
        (settings("http", url="https://api.example.com/{date}"), 16),
        (settings("sql", url="sqlite:///shop.db"), 4),
        (settings("files", folder="s3://bucket/inbox"), 16),
        (settings("files", path="s3://bucket/{date}.jsonl"), 16),
        (settings("files", folder="inbox"), None),
        (settings("demo"), None),
        (settings("http", parallelism=3, url="https://api.example.com/{date}"), 3),
        (settings("demo", parallelism=5), 5),
    ],
)
def test_each_kind_of_source_has_a_default(source: SourceSettings, expected: int | None) -> None:
    assert requests_in_flight(source) == expected


def extraction(folder: Path, source: SourceSettings, asked: Query, **more: Any) -> Extraction:
    return Extraction(str(folder), new_run_id(), source, {"q": asked}, {"q": "hash"}, **more)


@pytest.mark.parametrize(
    ("source", "asked", "longest"),
    [
        (settings("http", url="https://api.example.com/{date}"), query(), 1),
        (settings("http", url="https://api.example.com"), query(params={"day": "{date}"}), 1),
        (settings("http", url="https://api.example.com/{first_date}/{last_date}"), query(), 31),
        (settings("files", folder="s3://bucket"), query(path="{date}.jsonl"), 1),
        (settings("google_ads"), query(), 31),  # one report has all days: dividing it would cost requests
    ],
)
def test_spans_are_divided_only_where_each_day_is_a_request(
    tmp_path: Path, source: SourceSettings, asked: Query, longest: int
) -> None:
    found = extraction(tmp_path, source, asked, in_flight=requests_in_flight(source))
    attempts = [
        AttemptKey(PartitionKey("s", "1", "q", FIRST + timedelta(days=day)), found.run_id) for day in range(100)
    ]
    spans = _spans(attempts, {"1": Customer(id="1")}, _span_days(found, len(attempts)))
    assert max(len(span["dates"]) for span in spans) == longest
    assert [day for span in spans for day in span["dates"]] == [attempt.partition.logical_date for attempt in attempts]


def test_a_quota_error_halves_the_limit_once_for_all_requests_of_its_time() -> None:
    slots = RequestSlots(16)
    sent = [slots.begin() for _ in range(3)]
    for began in sent:
        slots.quota_exceeded(began)
    assert slots.limit == 8
    slots.quota_exceeded(slots.begin())
    assert slots.limit == 4


def test_the_limit_never_falls_below_one() -> None:
    slots = RequestSlots(2)
    for _ in range(5):
        slots.quota_exceeded(slots.begin())
    assert slots.limit == 1


class Counting:
    """A source that records how many of its requests are in flight, and runs out of quota once."""

    in_date_order = True
    api_version = "1"
    lock: ClassVar[Lock] = Lock()
    now: ClassVar[int] = 0
    peaks: ClassVar[list[int]] = []
    refused: ClassVar[set[str]] = set()
    together: ClassVar[Barrier | None] = None

    def __init__(self, options: Any, context: Any) -> None:
        pass

    def extract(self, asked: Query, customer: Customer, dates: Sequence[date]) -> Iterator[tuple[date, Row]]:
        kind = type(self)
        with kind.lock:
            kind.now += 1
            kind.peaks.append(kind.now)
        try:
            if kind.together is not None:
                kind.together.wait(10)
            time.sleep(0.01)
            if customer.id in kind.refused:
                raise QuotaExceeded("slow down", 1)
            for day in dates:
                yield day, {"n": 1}
                yield day, COMPLETE
        finally:
            with kind.lock:
                kind.now -= 1


def outcomes(folder: Path, customers: int, threads: int) -> list[dict[str, Any]]:
    source = settings(f"{__name__}:Counting")
    work = extraction(folder, source, query(), in_flight=threads, threads=threads)
    spans = [
        {"query": "q", "customer": Customer(id=str(number)).model_dump_json(), "dates": [FIRST]}
        for number in range(customers)
    ]
    [found] = _worker(work)(iter(pa.Table.from_pylist(spans).to_batches()))
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Counting.now, Counting.peaks, Counting.refused, Counting.together = 0, [], set(), None


def test_a_worker_keeps_its_requests_in_flight(tmp_path: Path) -> None:
    Counting.together = Barrier(4)
    rows = outcomes(tmp_path, customers=8, threads=4)
    assert Counter(row["record_count"] for row in rows) == {1: 8}
    assert max(Counting.peaks) == 4


def test_after_a_quota_error_a_worker_sends_half_as_many_requests_at_a_time(tmp_path: Path) -> None:
    Counting.refused = {"0"}
    rows = outcomes(tmp_path, customers=21, threads=4)
    assert Counter(row["error_class"] for row in rows) == {"quota": 1, None: 20}
    assert max(Counting.peaks[-10:]) <= 2


def test_an_error_of_one_thread_ends_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise LakeUnavailable("no answer")

    monkeypatch.setattr("penstock.pipeline.source_requests.SpanRequest._writer", refuse)
    with pytest.raises(LakeUnavailable):
        outcomes(tmp_path, customers=100, threads=4)
    assert len(Counting.peaks) < 20


def test_no_request_begins_after_the_run_was_stopped(tmp_path: Path) -> None:
    stopped = Event()
    source = settings(f"{__name__}:Counting")
    work = extraction(tmp_path, source, query(), in_flight=4)
    attempts = [AttemptKey(PartitionKey("s", str(n), "q", FIRST), work.run_id) for n in range(50)]
    customers = {str(n): Customer(id=str(n)) for n in range(50)}
    assert len(extract_in_driver(work, customers, attempts, stopped)) == 50
    sent = len(Counting.peaks)
    stopped.set()
    assert extract_in_driver(work, customers, attempts, stopped) == []
    assert len(Counting.peaks) == sent


def test_a_task_makes_no_more_source_objects_than_it_has_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(Counting, "__init__", lambda self, _options, _context: made.append(self))
    outcomes(tmp_path, customers=2, threads=16)
    assert len(made) == 2
