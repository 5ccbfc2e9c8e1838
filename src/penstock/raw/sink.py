"""Writes raw partitions: the payload first, then the seal. A sealed raw partition cannot be changed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from hashlib import sha256
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from penstock import __version__
from penstock.errors import AlreadySealed, DataError, RawError
from penstock.failpoint import reach
from penstock.lake import Lake
from penstock.lake.arrow_sink import ArrowSink
from penstock.lake.protocol import HELD_BYTES
from penstock.partition import AttemptKey, new_ulid
from penstock.raw.compression import compress
from penstock.raw.layout import SEAL, payload_name, run_folder
from penstock.raw.seal import Seal

Compression = Literal["zstd", "none"]

BLOCK_BYTES = 1024 * 1024  # approximate size of the blocks that are hashed and written to the lake
_GROUP_ROWS = 64 * 1024  # rows in a Parquet row group


def payload_compression(chosen: Literal["auto", "zstd", "none"], lake: Lake) -> Compression:
    """The compression of new payloads. By default, payloads are compressed where they travel over a network: on a local
    disk the time for it exceeds the time that it saves."""
    if chosen != "auto":
        return chosen
    return "none" if lake.requests_in_flight == 1 else "zstd"


class RawSink:
    """Opens writers for attempts. `compression` applies to the lines of sources; rows of models are Parquet."""

    def __init__(self, lake: Lake, compression: Compression = "none") -> None:
        self._lake = lake
        self._compression = compression

    def writer(
        self, attempt: AttemptKey, block_bytes: int = BLOCK_BYTES, flushed: Callable[[], None] | None = None
    ) -> RawWriter:
        """A writer of lines. It passes blocks of about `block_bytes` to the lake, and calls `flushed` after each."""
        kind = RawWriter if self._compression == "none" else CompressedWriter
        return kind(self._lake, attempt, block_bytes, flushed)

    def rows_writer(self, attempt: AttemptKey, columns: pa.Schema) -> RowsWriter:
        return RowsWriter(self._lake, attempt, columns)


class _Payload:
    """One writer of one attempt. The raw partition does not exist before `seal`; leaving the block without it discards
    the payload."""

    kind: ClassVar[str]

    def __init__(self, lake: Lake, attempt: AttemptKey) -> None:
        self._lake = lake
        self._attempt = attempt
        self._folder = run_folder(attempt)
        self._name = payload_name(new_ulid(), self.kind)
        self._payload = lake.writer(f"{self._folder}/{self._name}")
        self._digest = sha256()
        self._records = 0
        self._bytes = 0
        self._open = True

    def _flush(self) -> None:
        """Write all buffered rows to the payload."""
        raise NotImplementedError

    def _refuse_when_closed(self) -> None:
        if not self._open:
            raise AlreadySealed(f"{self._attempt}: this writer is closed; a new attempt needs a new run")

    def _put(self, block: bytes) -> None:
        self._refuse_when_closed()
        self._digest.update(block)
        self._bytes += len(block)
        self._payload.write(self._stored(block))

    def _stored(self, block: bytes) -> bytes:
        """The bytes that represent a block in the lake."""
        return block

    def seal(
        self, extracted_at: datetime, schema_version: str, api_version: str, query_hash: str, time_zone: str
    ) -> Seal:
        """Close the raw partition and return its seal. A sealed partition never changes.

        If another writer of the same attempt was first, deletes this payload and returns the existing seal: a task
        that Spark runs twice reports the same outcome twice. Raises AlreadySealed if this writer is closed.
        """
        self._refuse_when_closed()
        self._flush()
        key = self._attempt.partition
        seal = Seal(
            payload=self._name,
            source=key.source,
            customer_id=key.customer_id,
            query_name=key.query_name,
            logical_date=key.logical_date,
            run_id=self._attempt.run_id,
            extracted_at=extracted_at,
            schema_version=schema_version,
            record_count=self._records,
            payload_sha256=self._digest.hexdigest(),
            payload_bytes=self._bytes,
            api_version=api_version,
            query_hash=query_hash,
            time_zone=time_zone,
            penstock_version=__version__,
        )
        self._payload.commit()
        self._open = False
        reach("raw.payload_written")
        if not self._lake.create(f"{self._folder}/{SEAL}", seal.to_bytes()):
            seal = self._existing_seal()
        reach("raw.sealed")
        return seal

    def _existing_seal(self) -> Seal:
        path = f"{self._folder}/{SEAL}"
        try:
            existing = Seal.from_bytes(self._lake.read(path))
        except RawError as error:
            raise RawError(f"{self._attempt}: {path} is broken: {error}") from error
        # A request that is repeated after a lost response finds our own seal: then this payload is the sealed one.
        if existing.payload != self._name:
            self._lake.delete([f"{self._folder}/{self._name}"])
        return existing

    def discard(self) -> None:
        """Delete the unsealed payload. Does nothing after `seal`."""
        if self._open:
            self._open = False
            self._payload.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.discard()


class RawWriter(_Payload):
    """Writes JSON lines as they were received."""

    kind = "jsonl"

    def __init__(
        self,
        lake: Lake,
        attempt: AttemptKey,
        block_bytes: int = BLOCK_BYTES,
        flushed: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(lake, attempt)
        self._block_bytes = block_bytes
        self._flushed = flushed
        self._lines: list[bytes] = []
        self._held = 0

    @property
    def buffered(self) -> int:
        """The bytes that this writer holds in memory."""
        return min(self._bytes, HELD_BYTES) + self._held

    def write(self, line: bytes) -> None:
        """Append one JSON line, without its line break. Raises DataError if it is empty or has a line break inside."""
        if not line or b"\n" in line:
            raise DataError(
                f"{self._attempt}, line {self._records + len(self._lines) + 1}: "
                f"expected one JSON document on one line, found {'nothing' if not line else 'a line break inside'}"
            )
        self._lines.append(line)
        self._held += len(line)
        if self._held >= self._block_bytes:
            self._pass_block()

    def write_row(self, row: dict[str, Any]) -> None:
        """Append one row. Raises TypeError for a value that JSON cannot represent."""
        line = orjson.dumps(row)  # never empty, and never with a line break inside
        self._lines.append(line)
        self._held += len(line)
        if self._held >= self._block_bytes:
            self._pass_block()

    def _pass_block(self) -> None:
        self._flush()
        if self._flushed is not None:
            self._flushed()

    def _flush(self) -> None:
        if not self._lines:
            return
        self._records += len(self._lines)
        self._lines.append(b"")  # so that the last line ends with a line break, too
        block = b"\n".join(self._lines)
        self._lines.clear()
        self._held = 0
        self._put(block)


class CompressedWriter(RawWriter):
    """Writes JSON lines as zstd. Each block is a frame, so memory is one block. The seal has the digest and the size of
    the lines."""

    kind = "jsonl.zst"

    def _stored(self, block: bytes) -> bytes:
        return compress(block)


class RowsWriter(_Payload):
    """Writes the typed rows of a model as Parquet."""

    kind = "parquet"

    def __init__(self, lake: Lake, attempt: AttemptKey, columns: pa.Schema) -> None:
        super().__init__(lake, attempt)
        self._columns = columns
        self._sink = ArrowSink(self._put)
        self._parquet = pq.ParquetWriter(self._sink, columns, compression="zstd")
        self._batches: list[pa.RecordBatch] = []
        self._held = 0

    def write(self, rows: pa.RecordBatch) -> None:
        self._batches.append(rows)
        self._held += rows.num_rows
        if self._held >= _GROUP_ROWS:
            self._write_group()

    def _write_group(self) -> None:
        if self._batches:
            self._parquet.write_table(pa.Table.from_batches(self._batches, self._columns))
            self._records += self._held
            self._batches.clear()
            self._held = 0

    def _flush(self) -> None:
        self._write_group()
        self._parquet.close()

    def discard(self) -> None:
        if self._open:
            self._sink.put = lambda _block: None  # closing writes a footer, which is not needed any more
            self._parquet.close()
        super().discard()
