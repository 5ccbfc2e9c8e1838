"""Extraction: Spark's workers get spans as rows, fetch them, and seal one raw partition per day."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import groupby
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Self

import orjson
import pyarrow as pa

from penstock.clock import Clock, last_day_over, utc_now
from penstock.config.assets import Query
from penstock.config.settings import Customer, SourceSettings
from penstock.config.values import Keeps
from penstock.errors import DataError, ErrorClass, PenstockError, QuotaExceeded, QuotaUsedUp
from penstock.lake import Lake, open_lake
from penstock.lake.protocol import LakeRefused, LakeUnavailable
from penstock.partition import AttemptKey, PartitionKey, RunId
from penstock.pipeline.spark_jobs import (
    Report,
    Work,
    collected,
    evenly,
    is_local,
    mapped,
    parallelism,
    progress,
    spread,
    tasks_for,
)
from penstock.pipeline.task_quota import TaskBudget, assign_requests
from penstock.raw.seal import Seal
from penstock.raw.sink import Compression, RawSink, RawWriter
from penstock.raw.uploads import UploadPool
from penstock.source.budget import RequestClaim
from penstock.source.concurrency import RequestSlots
from penstock.source.horizon import horizon, keeps
from penstock.source.protocol import COMPLETE, RunContext, Source
from penstock.source.registry import hooks_of, make_source

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
    ]
)
_OUTCOMES_DDL = (
    "query string, customer_id string, logical_date date, record_count long, payload_sha256 string,"
    " payload_bytes long, error_class string, error_message string, retry_after double, unsent boolean, requests long"
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

    @classmethod
    def failed(cls, attempt: AttemptKey, error_class: ErrorClass, message: str, *, judged: bool = True) -> Self:
        return cls(attempt, None, None, None, error_class, message, None, judged)

    @property
    def ok(self) -> bool:
        return self.error_class is None


@dataclass(frozen=True, slots=True)
class Extraction:
    """The parameters of a worker besides its spans. It is pickled, so it holds plain values only."""

    lake: str
    run_id: RunId
    source: SourceSettings
    queries: Mapping[str, Query]
    hashes: Mapping[str, str]
    in_flight: int | None = None  # requests at a time, over all worker tasks; None: one for each task
    compression: Compression = "none"  # of payloads
    threads: int = 1  # requests at a time in one worker task
    rate: float | None = None  # requests per second: of this process, then of one worker task; None: the source's
    clock: Clock = utc_now
    claim: RequestClaim | None = None  # of a counted quota; None if the source has none


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
        frame = spread(spark, table, numbers)
        found = collected(mapped(frame, _worker(extraction), _OUTCOMES_DDL))
    source = extraction.source.name
    return [_extracted(row, source, extraction.run_id) for row in found.to_pylist()]


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
        span = _Span(extraction, sink, uploads, source, query, customer, dates)
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
                ended = _Ended(stopped)
                fetcher = _Fetcher(extraction, context, lake, uploads, waiting, slots, ended)
                outcomes = [row for span in fetcher.fetch_all() for row in span.outcomes()]
            lake.sync()  # sealed data is durable before it is reported
            if outcomes:
                outcomes[0]["requests"] = budget.take_spent()
            yield pa.RecordBatch.from_pylist(outcomes, schema=_OUTCOMES)

    return work


class _Ended:
    """Whether the threads of a task begin no further request: the run was stopped, or one of them failed."""

    def __init__(self, stopped: Event | None) -> None:
        self._stopped = stopped
        self.error: BaseException | None = None

    def __bool__(self) -> bool:
        return self.error is not None or (self._stopped is not None and self._stopped.is_set())


@dataclass(frozen=True, slots=True)
class _Fetcher:
    """Fetches the spans of one worker task: some requests at a time, while days that are complete are uploaded."""

    extraction: Extraction
    context: RunContext
    lake: Lake
    uploads: UploadPool
    waiting: SimpleQueue[dict[str, Any]]
    slots: RequestSlots
    ended: _Ended

    def fetch_all(self) -> list[_Span]:
        """Fetch every waiting span. Their uploads may still be in flight. An error of one thread ends all of them."""
        threads = min(self.extraction.threads, self.waiting.qsize())
        if threads <= 1:
            return self._fetch_in_turn(0)
        done: list[_Span] = []
        # Daemons: a process that is interrupted does not wait for a source that does not respond.
        fetchers = [Thread(target=self._fetch_in_thread, args=(n, done), daemon=True) for n in range(threads)]
        for fetcher in fetchers:
            fetcher.start()
        for fetcher in fetchers:
            fetcher.join()
        if self.ended.error is not None:
            raise self.ended.error
        return done

    def _fetch_in_thread(self, number: int, done: list[_Span]) -> None:
        try:
            done += self._fetch_in_turn(number)
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            self.ended.error = self.ended.error or error

    def _fetch_in_turn(self, number: int) -> list[_Span]:
        """Fetch spans one after the other, until none is left or this thread is beyond the limit of requests in
        flight. The first thread is never beyond it."""
        sink = RawSink(self.lake, self.extraction.compression)
        source: Source | None = None
        done: list[_Span] = []
        while number < self.slots.limit and not self.ended:
            try:
                item = self.waiting.get_nowait()
            except Empty:
                break
            source = source or make_source(self.extraction.source, self.context)
            query = self.extraction.queries[item["query"]]
            customer = Customer.model_validate_json(item["customer"], strict=False)
            span = _Span(self.extraction, sink, self.uploads, source, query, customer, item["dates"])
            began = self.slots.begin()
            span.fetch()
            if span.met_quota:
                self.slots.quota_exceeded(began)
            done.append(span)
        return done


class _Span:
    """One request: reads rows, and produces one sealed raw partition (or one error) per day. A day that is complete is
    uploaded while the rows of the next are received."""

    def __init__(
        self,
        extraction: Extraction,
        sink: RawSink,
        uploads: UploadPool,
        source: Source,
        query: Query,
        customer: Customer,
        dates: Sequence[date],
    ) -> None:
        self._extraction = extraction
        self._sink = sink
        self._uploads = uploads
        self._source = source
        self._query = query
        self._customer = customer
        self._dates = dates
        self._forgets = keeps(extraction.source) != Keeps()
        self._writers: dict[date, RawWriter] = {}
        self._sealing: dict[date, Future[Seal]] = {}
        self._failed: dict[date, dict[str, Any]] = {}
        self.met_quota = False

    def fetch(self) -> None:
        """Send the request, and start the upload of every day that is complete. Raises errors of the lake."""
        try:
            if dates := self._leave_out_frozen():
                self._receive(dates)
        except (LakeUnavailable, LakeRefused):
            raise  # an error of our own storage must not count against a partition
        except PenstockError as error:
            self._fail_the_rest(error)
        except Exception as error:  # noqa: BLE001 - a bug in one source must not fail the other customers' slices
            self._fail_the_rest(PenstockError(f"{type(error).__name__}: {error}"))
        for day in self._dates:
            if not self._is_settled(day):
                self._seal(day)

    def outcomes(self) -> list[dict[str, Any]]:
        """One row per day. Waits for the uploads: a day is reported only after its seal was confirmed."""
        rows = dict(self._failed)
        for day, sealing in self._sealing.items():
            try:
                found = self._sealed(day, sealing.result())
            except DataError as error:  # a seal that exists and cannot be read
                found = self._failure(day, error)
            rows.setdefault(day, found)
        return [rows[day] for day in self._dates]

    def _leave_out_frozen(self) -> Sequence[date]:
        """Return the days that the source still serves. For the others it would return nothing, and an empty result
        must not replace their data."""
        for day in self._dates:
            self._fail_if_frozen(day)
        return [day for day in self._dates if not self._is_settled(day)]

    def _is_settled(self, day: date) -> bool:
        return day in self._failed or day in self._sealing

    def _fail_if_frozen(self, day: date) -> None:
        if not self._forgets:
            return
        today = last_day_over(self._extraction.clock(), self._customer.time_zone) + timedelta(days=1)
        first = horizon(self._extraction.source, today)
        if first is not None and day < first:
            self._fail(day, DataError(f"the day is frozen: the source serves only {first} and later"))

    def _receive(self, dates: Sequence[date]) -> None:
        """The hot loop of extraction: as few lines as possible for a row that is a plain dict."""
        wanted = set(dates)
        current: date | None = None
        writer: RawWriter | None = None
        for day, row in self._source.extract(self._query, self._customer, dates):
            if day is current and writer is not None and type(row) is dict:
                try:
                    writer.write_row(row)
                except TypeError as error:
                    self._fail(day, _not_json(error))
                    writer = None
                continue
            if day is not current:
                if day not in wanted:
                    raise DataError(f"the source sent a row for {day}, which was not requested")
                if self._source.in_date_order and current is not None and day != current:
                    self._seal(current)
                current = day
                writer = self._writer(day)
            if row is COMPLETE:
                self._seal(day)
                writer = None
            elif writer is None:
                self._refuse_late_row(day)
            if writer is None:
                continue
            if isinstance(row, PenstockError):
                self._fail(day, row)
                writer = None
                continue
            try:
                writer.write(row if isinstance(row, bytes) else orjson.dumps(row))
            except DataError as error:
                self._fail(day, error)
                writer = None
            except TypeError as error:
                self._fail(day, _not_json(error))
                writer = None

    def _refuse_late_row(self, day: date) -> None:
        """Fail a sealed day, which lacks this row, so that it is not accepted. A failed day stays failed."""
        if day not in self._failed:
            self._fail(day, DataError(f"the source sent a row for {day} after that day was complete"))

    def _writer(self, day: date) -> RawWriter | None:
        """The writer for the rows of this day; None once the day is sealed or has failed."""
        if self._is_settled(day):
            return None
        if day not in self._writers:
            self._writers[day] = self._sink.writer(self._attempt(day))
        return self._writers[day]

    def _seal(self, day: date) -> None:
        if not self._is_settled(day):
            self._fail_if_frozen(day)  # it may have become frozen during the request
        if self._is_settled(day):
            return
        writer = self._writers.pop(day, None) or self._sink.writer(self._attempt(day))
        seal = partial(
            writer.seal,
            extracted_at=datetime.now(UTC),
            schema_version=self._query.schema_version,
            api_version=self._source.api_version,
            query_hash=self._extraction.hashes[self._query.name],
            time_zone=self._customer.time_zone,
        )
        self._sealing[day] = self._uploads.submit(seal, writer.buffered)

    def _fail(self, day: date, error: PenstockError) -> None:
        if writer := self._writers.pop(day, None):
            writer.discard()
        self._failed[day] = self._failure(day, error)
        self.met_quota |= isinstance(error, QuotaExceeded) and not isinstance(error, QuotaUsedUp)

    def _failure(self, day: date, error: PenstockError) -> dict[str, Any]:
        return self._row(
            day,
            error_class=str(error.error_class),
            error_message=str(error),
            retry_after=error.retry_after if isinstance(error, QuotaExceeded) else None,
            unsent=isinstance(error, QuotaUsedUp),
        )

    def _fail_the_rest(self, error: PenstockError) -> None:
        for day in self._dates:
            if not self._is_settled(day):
                self._fail(day, error)

    def _sealed(self, day: date, seal: Seal) -> dict[str, Any]:
        return self._row(
            day,
            record_count=seal.record_count,
            payload_sha256=seal.payload_sha256,
            payload_bytes=seal.payload_bytes,
        )

    def _row(self, day: date, **facts: Any) -> dict[str, Any]:
        return {"query": self._query.name, "customer_id": self._customer.id, "logical_date": day, **facts}

    def _attempt(self, day: date) -> AttemptKey:
        key = PartitionKey(self._extraction.source.name, self._customer.id, self._query.name, day)
        return AttemptKey(key, self._extraction.run_id)


def _not_json(error: TypeError) -> DataError:
    return DataError(f"the source sent a row that JSON cannot hold: {error}")


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
    )
