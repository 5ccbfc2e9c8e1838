"""Reads raw partitions. Returns exactly the bytes that were sealed, or raises RawError with the difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import RawError
from penstock.lake import Lake
from penstock.lake.protocol import LakeObjectMissing, LakeRefused, LakeUnavailable
from penstock.partition import AttemptKey, PartitionKey
from penstock.raw.compression import decompress, open_decompressed
from penstock.raw.layout import SEAL, holds_lines, is_compressed, parse_run_folder, partition_folder, run_folder
from penstock.raw.seal import Seal

_BLOCK_BYTES = 1024 * 1024
_BATCH_ROWS = 64 * 1024


@dataclass(frozen=True, slots=True)
class RawRun:
    """The folder of one run: with a seal, without one (None), or with one that cannot be read."""

    attempt: AttemptKey
    seal: Seal | RawError | None


class RawReader:
    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def seal(self, attempt: AttemptKey) -> Seal | None:
        """The seal of this attempt; None if it is not sealed. Raises RawError if the seal cannot be read."""
        [found] = self._seals([attempt])
        if isinstance(found, RawError):
            raise found
        return found

    def payload(self, seal: Seal) -> bytes:
        """The whole payload. Raises RawError if it differs from its seal."""
        [data] = self._lake.read_many([_payload_path(seal)])
        checked = _checked(seal, data)
        if isinstance(checked, RawError):
            raise checked
        return checked

    def stream(self, seal: Seal) -> Iterator[bytes]:
        """The payload in blocks of whole lines; holds one block in memory.

        Raises RawError after the last block if the payload differs from its seal, because the digest covers all bytes:
        the caller must not use the blocks before the iterator has ended.
        """
        check = _Check(holds_lines(seal.payload))
        rest: list[bytes] = []  # the beginning of an incomplete line
        try:
            with self._lake.open(_payload_path(seal)) as file:
                for block in _blocks(seal, file):
                    check.add(block)
                    cut = block.rfind(b"\n") + 1 if check.lines else len(block)
                    if cut:
                        yield b"".join((*rest, block[:cut]))
                        rest.clear()
                    if cut < len(block):
                        rest.append(block[cut:])
        except LakeObjectMissing as error:
            raise _missing(seal) from error
        if difference := check.difference(seal, ends_in_a_line=not rest):
            raise difference

    def rows(self, seal: Seal) -> Iterator[pa.RecordBatch]:
        """The rows of a Parquet payload in batches. Checks all bytes against the seal before the first batch."""
        for _ in self.stream(seal):
            pass
        with self._lake.open(_payload_path(seal)) as file:
            try:
                yield from pq.ParquetFile(file).iter_batches(_BATCH_ROWS)
            except pa.ArrowException as error:
                raise RawError(f"{seal.attempt}: {_payload_path(seal)} is not Parquet: {error}") from error

    def runs(self, key: PartitionKey) -> list[RawRun]:
        """Every run with files in the raw folder of this partition, sealed or not, oldest first."""
        folders = {path.rpartition("/")[0] for path, _ in self._lake.list(partition_folder(key))}
        attempts = sorted(parse_run_folder(folder) for folder in folders)
        return [RawRun(attempt, seal) for attempt, seal in zip(attempts, self._seals(attempts), strict=True)]

    def delete(self, attempts: Sequence[AttemptKey]) -> int:
        """Delete all files of these attempts; files that are missing are no error. Returns the number of files. Sends
        one listing request for each customer and query, not one for each attempt."""
        wanted = {run_folder(attempt) for attempt in attempts}
        folders = {folder.rsplit("/", 2)[0] for folder in wanted}
        paths = [
            entry.path
            for folder in sorted(folders)
            for entry in self._lake.list(folder)
            if entry.path.rpartition("/")[0] in wanted
        ]
        self._lake.delete(paths)
        return len(paths)

    def sealed(self, source: str, query_name: str) -> Iterator[AttemptKey]:
        """Every run of an asset that has a seal, by listing the raw sink."""
        for entry in self._lake.list(f"raw/{source}"):
            folder, _, name = entry.path.rpartition("/")
            if name == SEAL and f"/query_name={query_name}/" in folder:
                yield parse_run_folder(folder)

    def seals(self, attempts: Sequence[AttemptKey]) -> list[Seal | RawError | None]:
        """The seals of these attempts, in the same order; None for an attempt without a seal."""
        return self._seals(attempts)

    def sizes(self, attempts: Sequence[AttemptKey]) -> dict[PartitionKey, int]:
        """The payload sizes of these attempts; 0 without a readable seal, which validation reports."""
        found = zip(attempts, self._seals(attempts), strict=True)
        return {a.partition: seal.payload_bytes if isinstance(seal, Seal) else 0 for a, seal in found}

    def read_many(self, attempts: Sequence[AttemptKey]) -> list[tuple[Seal, bytes] | RawError]:
        """Seal and payload of each attempt, in the same order; a RawError for each that is missing or damaged."""
        seals = self._seals(attempts)
        payloads = iter(self._read([_payload_path(seal) for seal in seals if isinstance(seal, Seal)]))
        found: list[tuple[Seal, bytes] | RawError] = []
        for attempt, seal in zip(attempts, seals, strict=True):
            if seal is None:
                found.append(RawError(f"{attempt} is not sealed: there is no {run_folder(attempt)}/{SEAL}"))
            elif isinstance(seal, RawError):
                found.append(seal)
            else:
                read = next(payloads)
                data = read if isinstance(read, RawError) else _checked(seal, read)
                found.append(data if isinstance(data, RawError) else (seal, data))
        return found

    def _seals(self, attempts: Sequence[AttemptKey]) -> list[Seal | RawError | None]:
        documents = self._read([f"{run_folder(attempt)}/{SEAL}" for attempt in attempts])
        return [
            document if document is None or isinstance(document, RawError) else _parsed(attempt, document)
            for attempt, document in zip(attempts, documents, strict=True)
        ]

    def _read(self, paths: Sequence[str]) -> list[bytes | RawError | None]:
        """The objects in bulk; a RawError for each that the storage cannot return. If it returns none, the storage
        itself fails, and its own error is raised."""
        try:
            return [*self._lake.read_many(paths)]
        except (LakeUnavailable, LakeRefused):
            found = [self._read_one(path) for path in paths]
            if all(isinstance(item, RawError) for item in found):
                raise
            return found

    def _read_one(self, path: str) -> bytes | RawError | None:
        try:
            return self._lake.read_many([path])[0]
        except (LakeUnavailable, LakeRefused) as error:
            return RawError(f"{path} cannot be read: {error}")


class _Check:
    """Computes digest, size and line count of a payload block by block."""

    def __init__(self, lines: bool) -> None:
        self.lines = lines
        self._digest = sha256()
        self._bytes = 0
        self._records = 0

    def add(self, block: bytes) -> None:
        self._digest.update(block)
        self._bytes += len(block)
        self._records += block.count(b"\n") if self.lines else 0

    def difference(self, seal: Seal, *, ends_in_a_line: bool) -> RawError | None:
        """The first difference from the seal; None if there is none. The size comes first, because a truncated file
        also has a wrong digest."""
        digest = self._digest.hexdigest()
        if self._bytes != seal.payload_bytes:
            return _differs(seal, "bytes", seal.payload_bytes, self._bytes)
        if digest != seal.payload_sha256:
            return _differs(seal, "sha256", seal.payload_sha256, digest)
        if self.lines and self._records != seal.record_count:
            return _differs(seal, "records", seal.record_count, self._records)
        if self.lines and not ends_in_a_line:
            return _differs(seal, "last line", "a line end", "none")
        return None


def _blocks(seal: Seal, file: BinaryIO) -> Iterator[bytes]:
    """The payload in blocks as it was received. Raises RawError if it cannot be decompressed."""
    if not is_compressed(seal.payload):
        while block := file.read(_BLOCK_BYTES):
            yield block
        return
    stream = open_decompressed(file)
    while True:
        try:
            block = stream.read(_BLOCK_BYTES)
        except (OSError, pa.ArrowException) as error:
            raise _damaged(seal, error) from error
        if not block:
            return
        yield block


def _checked(seal: Seal, data: bytes | None) -> bytes | RawError:
    if data is None:
        return _missing(seal)
    if is_compressed(seal.payload):
        try:
            data = decompress(data, seal.payload_bytes)
        except ValueError as error:
            return _damaged(seal, error)
    check = _Check(holds_lines(seal.payload))
    check.add(data)
    return check.difference(seal, ends_in_a_line=not data or data.endswith(b"\n")) or data


def _parsed(attempt: AttemptKey, document: bytes) -> Seal | RawError:
    try:
        seal = Seal.from_bytes(document)
    except RawError as error:
        return RawError(f"{attempt}: {run_folder(attempt)}/{SEAL} is broken: {error}")
    if seal.attempt != attempt:
        return RawError(f"{attempt}: {run_folder(attempt)}/{SEAL} belongs to another attempt, {seal.attempt}")
    return seal


def _payload_path(seal: Seal) -> str:
    return f"{run_folder(seal.attempt)}/{seal.payload}"


def _missing(seal: Seal) -> RawError:
    return RawError(f"{seal.attempt}: {_payload_path(seal)} is missing though the run is sealed; choose another run")


def _damaged(seal: Seal, error: Exception) -> RawError:
    return RawError(
        f"{seal.attempt}: {_payload_path(seal)} is not what was sealed: it cannot be decompressed ({error})"
    )


def _differs(seal: Seal, what: str, expected: object, found: object) -> RawError:
    return RawError(
        f"{seal.attempt}: {_payload_path(seal)} is not what was sealed: expected {what} {expected}, found {found}"
    )
