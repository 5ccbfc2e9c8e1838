"""Caches the rows that validation has parsed for the load that follows, to save time. Nothing depends on the cache.

A worker writes the rows that it has parsed block by block, and returns the location of each slice to the driver. A load
reads the rows from there if their bytes match the digest; otherwise it reads the payloads again. The workers of a local
master share a disk: a task appends its blocks to one file. The executors of a cluster share only the lake: each block
is an object there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self

import pyarrow as pa
import pyarrow.ipc

from penstock.config.settings import is_local_master
from penstock.errors import PenstockError
from penstock.lake import Lake, open_lake
from penstock.partition import AttemptKey, new_ulid, ulid_time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST_BYTES = 1024**3  # on disk at a time; beyond that nothing is cached
_SHARE_OF_FREE = 4  # and at most this fraction (1/n) of the free space
_HELD_BYTES = 32 * 1024 * 1024  # of blocks that a load keeps in memory
_NAME = "penstock-rows-"
_LAKE_FOLDER = "cache/parsed"
_LEFT_OVER = timedelta(days=1)
_LOCK = ".lock"  # held while the process that created the folder lives
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


class CacheBudget(NamedTuple):
    """A folder, and how many bytes may be cached in it."""

    folder: str
    left: int
    lake: str | None = None  # the lake that the folder is in; None for a folder on the disk


class BlockRef(NamedTuple):
    """The location of the rows of one slice: a range of a block in a file."""

    file: str  # an absolute path on the disk, or a path in the lake
    offset: int
    length: int
    sha256: str  # of the block
    first: int  # row of the block
    rows: int


Wanted = tuple[AttemptKey, str]  # with the digest of the payload that was accepted
Lookup = Callable[[Sequence[Wanted]], Sequence[BlockRef | None]]


class CacheWriter:
    """Writes the parsed rows of one task. Without a budget it writes nothing."""

    def __init__(self, budget: CacheBudget | None) -> None:
        self._room = budget
        self._path = ""
        self._file: BinaryIO | None = None
        self._size = 0

    def write(self, rows: pa.Table, firsts: Sequence[int]) -> list[BlockRef | None]:
        """Write a block, and return the location of each slice; `firsts` are the first rows of the slices."""
        nothing: list[BlockRef | None] = [None] * len(firsts)
        if self._room is None or not rows.num_rows:
            return nothing
        try:
            block = _packed(rows)
            if self._size + len(block) > self._room.left:
                self._room = None
                return nothing
            if self._room.lake is None:
                offset = self._append(self._room.folder, block)
            else:
                offset = self._create(self._room.lake, self._room.folder, block)
        # The disk is full, the folder is gone, or the lake does not answer: payloads are read again.
        except (OSError, pa.ArrowException, PenstockError):
            self._room = None
            return nothing
        digest, ends = sha256(block).hexdigest(), [*firsts[1:], rows.num_rows]
        return [
            BlockRef(self._path, offset, len(block), digest, first, end - first)
            for first, end in zip(firsts, ends, strict=True)
        ]

    def _append(self, folder: str, block: bytes) -> int:
        if self._file is None:
            self._path = f"{folder}/{new_ulid()}.arrow"
            self._file = open(self._path, "xb", buffering=0)  # noqa: SIM115 - closed with the writer
        left = memoryview(block)
        try:
            while left:
                left = left[self._file.write(left) or 0 :]
        except OSError:
            self._file.truncate(self._size)  # a partial block is only a waste of space
            raise
        offset, self._size = self._size, self._size + len(block)
        return offset

    def _create(self, lake: str, folder: str, block: bytes) -> int:
        self._path = f"{folder}/{new_ulid()}.arrow"
        open_lake(lake).create(self._path, block)
        self._size += len(block)
        return 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._file is not None:
            self._file.close()


class CacheReader:
    """Reads rows from blocks. Slices come in the order in which a batch wrote them, so few blocks are in use."""

    def __init__(self, lake: Lake | None = None) -> None:
        self._lake = lake
        self._blocks: dict[tuple[str, int], pa.Table | None] = {}  # most recently used last
        self.held_bytes = 0

    def rows(self, place: BlockRef | None, count: int) -> pa.Table | None:
        """Return the rows of a slice; None if they are missing or do not match the digest. They are a view of their
        block: copy them to keep them."""
        if place is None or place.rows != count:
            return None
        block = self._block(place)
        return None if block is None else block.slice(place.first, count)

    def _block(self, place: BlockRef) -> pa.Table | None:
        name = (place.file, place.offset)
        if name in self._blocks:
            found = self._blocks.pop(name)
        else:
            found = _read(place, self._lake)
            self.held_bytes += _size(found)
        self._blocks[name] = found
        while len(self._blocks) > 1 and self.held_bytes > _HELD_BYTES:
            self.held_bytes -= _size(self._blocks.pop(next(iter(self._blocks))))
        return found


class ParsedCache:
    """The cached rows of one run, by attempt. Validation adds entries while a load removes them. Its folder is in the
    lake, or on the disk without `lake`."""

    def __init__(self, folder: str, lake: Lake | None = None) -> None:
        self._folder = folder
        self._lake = lake
        self._lock = Lock()
        self._places: dict[AttemptKey, tuple[str, BlockRef]] = {}
        self._taken: set[AttemptKey] = set()
        self._slices: dict[str, int] = {}  # number of slices by file

    def budget(self) -> CacheBudget | None:
        """The budget of the next job; None if the cache is full or the disk has too little free space."""
        try:
            with self._lock:
                left = self._left_in_lake() if self._lake else self._left_on_disk()
        except (OSError, PenstockError):  # the folder was deleted, or the lake does not answer
            return None
        return CacheBudget(self._folder, left, self._lake.url if self._lake else None) if left > 0 else None

    def _left_on_disk(self) -> int:
        used = sum(entry.stat().st_size for entry in os.scandir(self._folder))
        return min(_MOST_BYTES - used, shutil.disk_usage(self._folder).free // _SHARE_OF_FREE)

    def _left_in_lake(self) -> int:
        assert self._lake is not None
        return _MOST_BYTES - sum(entry.size for entry in self._lake.list(self._folder))

    def sweep(self) -> None:
        """Delete the rows of rejected attempts, and the files of failed or repeated tasks. Call it between validations,
        when every file is either registered or unneeded."""
        with self._lock, suppress(PenstockError):  # what stays is deleted at the end of the run
            self._delete([file for file in self._files() if file not in self._slices])

    def _files(self) -> list[str]:
        if self._lake is None:
            return [str(file) for file in Path(self._folder).glob("*.arrow")]
        return [entry.path for entry in self._lake.list(self._folder)]

    def keep(self, attempt: AttemptKey, payload_digest: str, place: BlockRef) -> None:
        """Register a location. Call it before the verdict: a load may follow at once."""
        with self._lock:
            self._places[attempt] = (payload_digest, place)
            self._slices[place.file] = self._slices.get(place.file, 0) + 1

    def take(self, wanted: Sequence[Wanted]) -> list[BlockRef | None]:
        """Return the locations of these. Entries that were returned before and are not requested again are deleted."""
        with self._lock, suppress(PenstockError):
            now = {attempt for attempt, _ in wanted if attempt in self._places}
            unused = [file for attempt in self._taken - now if (file := self._forget(attempt))]
            self._taken = now
            self._delete(unused)
        found = [self._places.get(attempt, ("", None)) for attempt, _ in wanted]
        return [place if digest == asked else None for (digest, place), (_, asked) in zip(found, wanted, strict=True)]

    def _forget(self, attempt: AttemptKey) -> str | None:
        """Remove an entry. Returns its file if it has no other entry."""
        file = self._places.pop(attempt)[1].file
        self._slices[file] -= 1
        if self._slices[file]:
            return None
        del self._slices[file]
        return file

    def _delete(self, files: Sequence[str]) -> None:
        if self._lake is not None:
            self._lake.delete(files)
            return
        for file in files:
            Path(file).unlink(missing_ok=True)


@contextmanager
def open_cache(spark: SparkSession, lake: str) -> Iterator[ParsedCache | None]:
    """Open the cache of one run: on the disk that the workers of a local master share, otherwise in the lake. It is
    deleted at the end of the run."""
    context = getattr(spark, "_sc", None)
    with ExitStack() as stack:
        cache = None
        if context is None or not is_local_master(context.master):
            cache = stack.enter_context(cache_in_lake(open_lake(lake)))
        else:
            try:
                cache = ParsedCache(stack.enter_context(_folder(_scratch(context.getConf().get("spark.local.dir")))))
            except OSError:  # no folder for it: payloads are read again
                pass
        yield cache


@contextmanager
def cache_in_lake(lake: Lake) -> Iterator[ParsedCache]:
    """A folder of the lake. The folders of killed runs are deleted a day later: a run that still uses one reads the
    payloads again."""
    folder = f"{_LAKE_FOLDER}/{new_ulid()}"
    oldest = ulid_time(datetime.now(UTC) - _LEFT_OVER)
    with suppress(PenstockError):
        lake.delete([entry.path for entry in lake.list(_LAKE_FOLDER) if entry.path.split("/")[2] < oldest])
    try:
        yield ParsedCache(folder, lake)
    finally:
        with suppress(PenstockError):
            lake.delete([entry.path for entry in lake.list(folder)])


def _scratch(configured: str | None) -> str:
    """The first of Spark's local folders; as in Spark, the environment comes before the configuration."""
    listed = os.environ.get("SPARK_LOCAL_DIRS") or configured or tempfile.gettempdir()
    return os.path.abspath(listed.split(",")[0].strip())


@contextmanager
def _folder(scratch: str) -> Iterator[str]:
    os.makedirs(scratch, exist_ok=True)
    _tidy(scratch)
    with (
        tempfile.TemporaryDirectory(prefix=_NAME, dir=scratch, ignore_cleanup_errors=True) as folder,
        open(f"{folder}/{_LOCK}-new", "xb") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.rename(lock.name, f"{folder}/{_LOCK}")  # visible to others only now that it is held
        yield folder


def _tidy(scratch: str) -> None:
    """Remove the folders of killed runs: their lock is free, because the process is gone."""
    for lock in Path(scratch).glob(f"{_NAME}*/{_LOCK}"):
        try:
            with lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
        except OSError:  # held, or owned by another user
            continue


def _size(block: pa.Table | None) -> int:
    return 0 if block is None else int(block.nbytes)


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_OPTIONS) as stream:
        stream.write_table(rows)
    return memoryview(sink.getvalue()).tobytes()


def _read(place: BlockRef, lake: Lake | None) -> pa.Table | None:
    try:
        block = _bytes(place, lake)
        if sha256(block).hexdigest() != place.sha256:
            return None
        with pa.ipc.open_stream(pa.BufferReader(block)) as stream:
            return stream.read_all().combine_chunks()
    except (OSError, pa.ArrowException, PenstockError):
        return None


def _bytes(place: BlockRef, lake: Lake | None) -> bytes:
    if lake is not None and not os.path.isabs(place.file):
        return lake.read(place.file)
    with open(place.file, "rb", buffering=0) as file:
        return os.pread(file.fileno(), place.length, place.offset)
