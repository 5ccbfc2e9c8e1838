"""Extraction: Spark's workers get spans as rows, fetch them, and seal one raw partition per day."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import groupby
from queue import SimpleQueue
from threading import Event
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from penstock.config.assets import Query
from penstock.config.settings import Customer, SourceSettings
from penstock.errors import ErrorClass
from penstock.lake import open_lake
from penstock.partition import AttemptKey, PartitionKey, RunId
from penstock.pipeline.held_rows import HeldRows
from penstock.pipeline.source_requests import Ended, Extraction, Fetcher, SpanRequest
from penstock.pipeline.spark_jobs import (
    Report,
    Work,
    evenly,
    is_local,
    parallelism,
    progress,
    tasks_for,
)
from penstock.pipeline.task_quota import TaskBudget, assign_requests
from penstock.pipeline.worker_jobs import run_in_workers
from penstock.raw.sink import RawSink
from penstock.raw.uploads import UploadPool
from penstock.source.concurrency import RequestSlots
from penstock.source.protocol import RunContext, Source
from penstock.source.registry import hooks_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPAN_DAYS = 31
_PARTITIONS_PER_TASK = 1000
_SPANS_PER_SLOT = 8

_SPANS = pa.schema(
    [
        ("query", pa.string()),
        ("customer", pa.string()),
        ("dates", pa.list_(pa.date32())),
        ("task", pa.int64()),
        ("requests", pa.int64()),  # of the whole task
    ]
)
_OUTCOMES = pa.schema(
    [
        ("query", pa.string()),
        ("customer_id", pa.string()),
        ("logical_date", pa.date32()),
        ("record_count", pa.int64()),
        ("payload_sha256", pa.string()),
        ("payload_bytes", pa.int64()),
        ("error_class", pa.string()),
        ("error_message", pa.string()),
        ("retry_after", pa.float64()),
        ("unsent", pa.bool_()),
        ("requests", pa.int64()),  # of all spans of the batch, in its first row
        ("warnings", pa.list_(pa.string())),  # the same
    ]
)
_OUTCOMES_DDL = (
    "query string, customer_id string, logical_date date, record_count long, payload_sha256 string,"
    " payload_bytes long, error_class string, error_message string, retry_after double, unsent boolean, requests long,"
    " warnings array<string>"
)


@dataclass(frozen=True, slots=True)
class Extracted:
    """The result for one partition: a sealed raw partition, or an error with its class."""

    attempt: AttemptKey
    record_count: int | None
    payload_digest: str | None
    payload_bytes: int | None
    error_class: ErrorClass | None
    error_message: str | None
    retry_after: float | None
    judged: bool = True  # False: the error does not lead to a verdict
    unsent: bool = False  # the claimed requests were used up before its own were sent
    requests: int = 0  # sent for this and other results of the job; their sum counts
    warnings: tuple[str, ...] = ()  # of the source, about this and other results of the job

    @classmethod
    def failed(cls, attempt: AttemptKey, error_class: ErrorClass, message: str, *, judged: bool = True) -> Self:
        return cls(attempt, None, None, None, error_class, message, None, judged)

    @property
    def ok(self) -> bool:
        return self.error_class is None


def extract(
    spark: SparkSession,
    extraction: Extraction,
    customers: Mapping[str, Customer],
    attempts: Sequence[AttemptKey],
    report: Report | None = None,
) -> list[Extracted]:
    """Fetch all attempts, which have one source and run, in one Spark job. Each gets its own result."""
    spans = _spans(attempts, customers, _span_days(extraction, len(attempts)))
    if not spans:
        return []
    tasks = min(len(spans), tasks_for(spark, len(attempts), _PARTITIONS_PER_TASK))
    # On a cluster that grows, tasks that wait would run as well, and exceed the limits.
    waiting = len(spans) if is_local(spark) else 0
    extraction, tasks = _limits_per_task(extraction, tasks, parallelism(spark), waiting)
    numbers = evenly(len(spans), tasks)
    table = pa.Table.from_pylist(assign_requests(spans, numbers, extraction.claim), schema=_SPANS)
    with progress(spark, report):
        found = run_in_workers(spark, table, numbers, _worker(extraction), _OUTCOMES_DDL)
    source = extraction.source.name
    return [_extracted(row, source, extraction.run_id) for batch in found for row in batch.to_pylist()]


def extract_in_driver(
    extraction: Extraction, customers: Mapping[str, Customer], attempts: Sequence[AttemptKey], stopped: Event
) -> list[Extracted]:
    """Fetch a few attempts in this process, as one worker task does. Begins no request after `stopped` is set."""
    spans = _spans(attempts, customers, _span_days(extraction, len(attempts)))
    table = pa.Table.from_pylist(assign_requests(spans, [0] * len(spans), extraction.claim), schema=_SPANS)
    alone, _ = _limits_per_task(extraction, 1, 1)
    found = [row for batch in _worker(alone, stopped)(iter(table.to_batches())) for row in batch.to_pylist()]
    return [_extracted(row, extraction.source.name, extraction.run_id) for row in found]


def extract_locally(
    extraction: Extraction, source: Source, query: Query, customer: Customer, dates: Sequence[date]
) -> list[Extracted]:
    """Fetch one span in this process, without Spark, with the caller's source object; for tests and benchmarks."""
    lake = open_lake(extraction.lake)
    with UploadPool(lake.requests_in_flight) as uploads:
        sink = RawSink(lake, extraction.compression)
        span = SpanRequest(extraction, sink, uploads, source, query, customer, dates)
        span.fetch()
        return [_extracted(row, extraction.source.name, extraction.run_id) for row in span.outcomes()]


def _limits_per_task(extraction: Extraction, tasks: int, slots: int, spans: int = 0) -> tuple[Extraction, int]:
    """Divide the concurrency and the rate limit of the source among worker tasks that run at the same time. With
    `spans` there may be several tasks for each slot, because a finished task is progress, if each has enough spans."""
    together, rate = extraction.in_flight, extraction.rate or extraction.source.pace
    if together is None and rate is None:
        return extraction, tasks
    running = min(tasks, slots, together or slots)
    threads = max(1, (together or running) // running)
    rounds = max(1, min(tasks // running, spans // (running * threads * _SPANS_PER_SLOT)))
    return replace(extraction, threads=threads, rate=None if rate is None else rate / running), running * rounds


def days_per_request(source: SourceSettings, queries: Mapping[str, Query]) -> Mapping[str, int]:
    """The days that one request of the source covers at most, by query."""
    asks_by_day = hooks_of(source.kind).asks_by_day
    if asks_by_day is None:
        return dict.fromkeys(queries, SPAN_DAYS)
    return {name: 1 if asks_by_day(source.options, query) else SPAN_DAYS for name, query in queries.items()}


def _span_days(extraction: Extraction, attempts: int) -> Mapping[str, int]:
    """The largest number of days of a span, by query. Where each day is a request anyway, spans are short enough that
    all requests in flight have work until the end."""
    if extraction.in_flight is None:
        return {}
    short = min(SPAN_DAYS, -(-attempts // (_SPANS_PER_SLOT * extraction.in_flight)))
    days = days_per_request(extraction.source, extraction.queries)
    return {name: short for name, longest in days.items() if longest == 1}


def _spans(
    attempts: Sequence[AttemptKey], customers: Mapping[str, Customer], days: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Combine neighbouring days of one query and customer: sources count requests, not days. `days` bounds the spans of
    some queries."""
    spans = []
    ordered = sorted(attempt.partition for attempt in attempts)
    for (query, customer_id), group in groupby(ordered, key=lambda key: (key.query_name, key.customer_id)):
        dates = [key.logical_date for key in group]
        customer = customers[customer_id].model_dump_json()
        length = days.get(query, SPAN_DAYS)
        spans += [
            {"query": query, "customer": customer, "dates": dates[at : at + length]}
            for at in range(0, len(dates), length)
        ]
    return spans


def _worker(extraction: Extraction, stopped: Event | None = None) -> Work:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        budget = TaskBudget(extraction.rate, extraction.claim, extraction.lake)
        context = RunContext(extraction.run_id, budget)
        lake, slots = open_lake(extraction.lake), RequestSlots(extraction.threads)
        for batch in batches:
            waiting = SimpleQueue[dict[str, Any]]()
            spans = batch.to_pylist()
            budget.begin(spans)
            for span in spans:
                waiting.put(span)
            with UploadPool(lake.requests_in_flight) as uploads:
                ended = Ended(stopped)
                fetcher = Fetcher(extraction, context, lake, uploads, waiting, slots, ended, HeldRows())
                outcomes = [row for span in fetcher.fetch_all() for row in span.outcomes()]
            lake.sync()  # sealed data is durable before it is reported
            if outcomes:
                outcomes[0] |= {"requests": budget.take_spent(), "warnings": sorted(context.warnings)}
            yield pa.RecordBatch.from_pylist(outcomes, schema=_OUTCOMES)

    return work


def _extracted(row: dict[str, Any], source: str, run_id: RunId) -> Extracted:
    key = PartitionKey(source, row["customer_id"], row["query"], row["logical_date"])
    return Extracted(
        AttemptKey(key, run_id),
        row.get("record_count"),
        row.get("payload_sha256"),
        row.get("payload_bytes"),
        ErrorClass(row["error_class"]) if row.get("error_class") else None,
        row.get("error_message"),
        row.get("retry_after"),
        unsent=bool(row.get("unsent")),
        requests=row.get("requests") or 0,
        warnings=tuple(row.get("warnings") or ()),
    )
