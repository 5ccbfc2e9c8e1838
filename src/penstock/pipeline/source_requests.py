"""Requests to a source: the rows of a span are received, divided by day, and sealed as raw partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any

import orjson

from penstock.clock import Clock, last_day_over, utc_now
from penstock.config.assets import Query
from penstock.config.settings import Customer, SourceSettings
from penstock.config.values import Keeps
from penstock.errors import DataError, PenstockError, QuotaExceeded, QuotaUsedUp
from penstock.lake import Lake
from penstock.lake.protocol import LakeRefused, LakeUnavailable
from penstock.partition import AttemptKey, PartitionKey, RunId
from penstock.pipeline.held_rows import HeldRows
from penstock.raw.seal import Seal
from penstock.raw.sink import BLOCK_BYTES, Compression, RawSink, RawWriter
from penstock.raw.uploads import UploadPool
from penstock.source.budget import RequestClaim
from penstock.source.concurrency import RequestSlots
from penstock.source.horizon import horizon, keeps
from penstock.source.protocol import COMPLETE, RunContext, Source
from penstock.source.registry import make_source

_SMALLEST_BLOCK = 64 * 1024


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


class Ended:
    """Whether the threads of a task begin no further request: the run was stopped, or one of them failed."""

    def __init__(self, stopped: Event | None) -> None:
        self._stopped = stopped
        self.error: BaseException | None = None

    def __bool__(self) -> bool:
        return self.error is not None or (self._stopped is not None and self._stopped.is_set())


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Fetches the spans of one worker task: some requests at a time, while days that are complete are uploaded."""

    extraction: Extraction
    context: RunContext
    lake: Lake
    uploads: UploadPool
    waiting: SimpleQueue[dict[str, Any]]
    slots: RequestSlots
    ended: Ended
    held: HeldRows

    def fetch_all(self) -> list[SpanRequest]:
        """Fetch every waiting span. Their uploads may still be in flight. An error of one thread ends all of them."""
        threads = min(self.extraction.threads, self.waiting.qsize())
        if threads <= 1:
            return self._fetch_in_turn(0)
        done: list[SpanRequest] = []
        # Daemons: a process that is interrupted does not wait for a source that does not respond.
        fetchers = [Thread(target=self._fetch_in_thread, args=(n, done), daemon=True) for n in range(threads)]
        for fetcher in fetchers:
            fetcher.start()
        for fetcher in fetchers:
            fetcher.join()
        if self.ended.error is not None:
            raise self.ended.error
        return done

    def _fetch_in_thread(self, number: int, done: list[SpanRequest]) -> None:
        try:
            done += self._fetch_in_turn(number)
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            self.ended.error = self.ended.error or error

    def _fetch_in_turn(self, number: int) -> list[SpanRequest]:
        """Fetch spans one after the other, until none is left or this thread is beyond the limit of requests in
        flight. The first thread is never beyond it."""
        sink = RawSink(self.lake, self.extraction.compression)
        source: Source | None = None
        done: list[SpanRequest] = []
        while number < self.slots.limit and not self.ended:
            try:
                item = self.waiting.get_nowait()
            except Empty:
                break
            source = source or make_source(self.extraction.source, self.context)
            query = self.extraction.queries[item["query"]]
            customer = Customer.model_validate_json(item["customer"], strict=False)
            span = SpanRequest(self.extraction, sink, self.uploads, source, query, customer, item["dates"], self.held)
            began = self.slots.begin()
            span.fetch()
            if span.met_quota:
                self.slots.quota_exceeded(began)
            done.append(span)
        return done


class SpanRequest:
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
        held: HeldRows | None = None,
    ) -> None:
        self._extraction = extraction
        self._sink = sink
        self._uploads = uploads
        self._source = source
        self._query = query
        self._customer = customer
        self._dates = dates
        self._held = held or HeldRows()
        self._request = 0
        # A request without date order has a block of rows in memory for each of its days.
        self._block_bytes = (
            BLOCK_BYTES if source.in_date_order else max(_SMALLEST_BLOCK, BLOCK_BYTES // extraction.threads)
        )
        self._forgets = keeps(extraction.source) != Keeps()
        self._writers: dict[date, RawWriter] = {}
        self._sealing: dict[date, Future[Seal]] = {}
        self._failed: dict[date, dict[str, Any]] = {}
        self.met_quota = False

    def fetch(self) -> None:
        """Send the request, and start the upload of every day that is complete. Raises errors of the lake."""
        self._request = self._held.begin()
        try:
            if dates := self._leave_out_frozen():
                self._receive(dates)
        except (LakeUnavailable, LakeRefused):
            raise  # an error of our own storage must not count against a partition
        except PenstockError as error:
            self._fail_the_rest(error)
        except Exception as error:  # noqa: BLE001 - a bug in one source must not fail the other customers' slices
            self._fail_the_rest(PenstockError(f"{type(error).__name__}: {error}"))
        finally:
            self._held.end(self._request)
        for day in self._dates:
            if not self._is_settled(day):
                self._seal(day)

    def _wait_for_memory(self) -> None:
        self._held.hold(self._request, sum(writer.buffered for writer in self._writers.values()))

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
            self._writers[day] = self._sink.writer(self._attempt(day), self._block_bytes, self._wait_for_memory)
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
