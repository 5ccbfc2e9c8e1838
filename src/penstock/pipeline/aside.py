"""Rows that validation has parsed, set aside for the load that follows: a saving, and nothing else.

The workers of a local master share a disk. There a worker writes the rows that it has parsed into a file of its own,
block by block, and the driver is told where those of each slice lie. A load takes them from there if they are what was
written, byte for byte; otherwise, and on any other master, it reads the payloads again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self

import pyarrow as pa
import pyarrow.ipc

from penstock.partition import AttemptKey, new_ulid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST_BYTES = 2 * 1024**3  # on disk at a time; beyond that nothing more is set aside
_BLOCKS_HELD = 2  # in memory, of those that a load takes rows from
_NAME = "penstock-rows-"
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


class Place(NamedTuple):
    """Where the rows of one slice lie: in a block of a file, from this row on."""

    file: str
    offset: int
    length: int
    sha256: str  # of the block
    first: int


Wanted = tuple[AttemptKey, str]  # with the digest of the payload that was accepted
Finder = Callable[[Sequence[Wanted]], Sequence[Place | None]]


class AsideWriter:
    """What a worker sets aside during one task. Without a folder, or when the disk is full, that is nothing."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._path = ""
        self._file: BinaryIO | None = None
        self._size = 0

    def write(self, rows: pa.Table, firsts: Sequence[int]) -> list[Place | None]:
        """Set a block aside; where each of its slices lies, by the first row of each."""
        if self._folder is None or not rows.num_rows:
            return [None] * len(firsts)
        block = _packed(rows)
        try:
            if self._file is None:
                self._path = f"{self._folder}/{new_ulid()}.arrow"
                self._file = open(self._path, "xb", buffering=0)  # noqa: SIM115 - closed with the writer
            left = memoryview(block)
            while left:
                left = left[self._file.write(left) or 0 :]
        except OSError:  # no room, or no folder any more: then payloads are read again
            self._folder = None
            return [None] * len(firsts)
        offset, self._size = self._size, self._size + len(block)
        digest = sha256(block).hexdigest()
        return [Place(self._path, offset, len(block), digest, first) for first in firsts]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._file is not None:
            self._file.close()


class AsideReader:
    """Takes rows from blocks. Slices come in the order in which they were set aside, so few blocks are held."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[str, int], pa.Table | None] = {}

    def rows(self, place: Place | None, count: int) -> pa.Table | None:
        """The rows of a slice; None if they are not there, or not what was written."""
        if place is None:
            return None
        block = self._block(place)
        if block is None or place.first + count > block.num_rows:
            return None
        return block.slice(place.first, count)

    def _block(self, place: Place) -> pa.Table | None:
        name = (place.file, place.offset)
        if name not in self._blocks:
            while len(self._blocks) >= _BLOCKS_HELD:
                del self._blocks[next(iter(self._blocks))]
            self._blocks[name] = _read(place)
        return self._blocks[name]


class Asides:
    """What one run has set aside, by attempt. Validation adds to it while a load takes from it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = Lock()
        self._places: dict[AttemptKey, tuple[str, Place]] = {}
        self._taken: set[AttemptKey] = set()
        self._slices: dict[str, int] = {}  # how many there are in a file
        self._bytes: dict[str, int] = {}

    def room(self) -> str | None:
        """Where to set more aside; None when there is enough already."""
        with self._lock:
            return self._folder if sum(self._bytes.values()) < _MOST_BYTES else None

    def keep(self, attempt: AttemptKey, payload_digest: str, place: Place) -> None:
        """To be called before the verdict: from then on somebody may load it."""
        with self._lock:
            self._places[attempt] = (payload_digest, place)
            self._slices[place.file] = self._slices.get(place.file, 0) + 1
            self._bytes[place.file] = max(self._bytes.get(place.file, 0), place.offset + place.length)

    def take(self, wanted: Sequence[Wanted]) -> list[Place | None]:
        """Where these lie. What was taken before, and is not wanted again, has been loaded: its files are deleted."""
        with self._lock:
            found = [self._places.get(attempt, ("", None)) for attempt, _ in wanted]
            now = {attempt for attempt, _ in wanted if attempt in self._places}
            for attempt in self._taken - now:
                self._forget(attempt)
            self._taken = now
        return [place if digest == asked else None for (digest, place), (_, asked) in zip(found, wanted, strict=True)]

    def _forget(self, attempt: AttemptKey) -> None:
        file = self._places.pop(attempt)[1].file
        self._slices[file] -= 1
        if not self._slices[file]:
            del self._slices[file], self._bytes[file]
            Path(file).unlink(missing_ok=True)


@contextmanager
def set_aside(spark: SparkSession) -> Iterator[Asides | None]:
    """A place for what one run sets aside, if its workers share our disk. It is gone with the run."""
    context = getattr(spark, "_sc", None)
    if context is None or not context.master.startswith("local"):
        yield None
        return
    scratch = context.getConf().get("spark.local.dir") or tempfile.gettempdir()
    os.makedirs(scratch, exist_ok=True)
    _tidy(scratch)
    prefix = f"{_NAME}{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=scratch, ignore_cleanup_errors=True) as folder:
        yield Asides(folder)


def _tidy(scratch: str) -> None:
    """Remove what runs left here whose process was killed."""
    for folder in Path(scratch).glob(f"{_NAME}*-*"):
        owner = folder.name.removeprefix(_NAME).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and Path("/proc/self").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_OPTIONS) as stream:
        stream.write_table(rows)
    return memoryview(sink.getvalue()).tobytes()


def _read(place: Place) -> pa.Table | None:
    try:
        with open(place.file, "rb", buffering=0) as file:
            block = os.pread(file.fileno(), place.length, place.offset)
        if sha256(block).hexdigest() != place.sha256:
            return None
        with pa.ipc.open_stream(pa.BufferReader(block)) as stream:
            return stream.read_all().combine_chunks()
    except (OSError, pa.ArrowException):
        return None
