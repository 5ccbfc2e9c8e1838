"""Verification of the warehouse: counts and hashes all rows and compares them with pointers, verdicts and raw payloads,
and compares each data file with the statistics in the Delta log.

Reads each file once, in table order, and keeps a count and two numbers per partition. Files with partitions
whose digest may be of the first algorithm are read a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa

from penstock.contract.content import FirstContent, content_digest, row_hashes
from penstock.contract.contract import Contract
from penstock.contract.spark_hash import nullable_row_hashes
from penstock.db import schema
from penstock.db.engine import Database
from penstock.digests import comparable, may_be_of_first_algorithm
from penstock.errors import RawError
from penstock.lake import Lake
from penstock.lake.protocol import LakeObjectMissing
from penstock.partition import AttemptKey, PartitionKey, RunId
from penstock.pipeline.prefetch import prefetched
from penstock.plural import counted
from penstock.raw.reader import RawReader
from penstock.raw.seal import Seal
from penstock.warehouse.format import DataFile, Table, table_format
from penstock.warehouse.heads import TableHead
from penstock.warehouse.layout import RUN, SortKey, month_of
from penstock.warehouse.rebuild import TableDamage

_ROWS = 200_000
_RAW_CHUNK = 200
_SMALL_BYTES = 256 * 1024  # three chunks of these fit into memory

# A data file is missing, damaged according to Arrow, or lacks a column of the contract.
UNREADABLE = (LakeObjectMissing, OSError, ValueError, KeyError, pa.ArrowException)

Found = tuple[date, str, str]  # day, customer and run, from the rows


@dataclass(slots=True)
class Content:
    """Row count and hashes of one partition."""

    rows: int = 0
    xor: int = 0
    total: int = 0

    def digest(self, schema_version: str) -> str:
        return content_digest(schema_version, self.rows, self.xor, self.total)

    def add(self, other: Content) -> None:
        self.rows += other.rows
        self.xor ^= other.xor
        self.total = (self.total + other.total) % 2**64


@dataclass(slots=True)
class Verification:
    """The scope of a verification, and the problems it found."""

    partitions: int = 0
    rows: int = 0
    payloads: int = 0
    wrong: dict[PartitionKey, list[str]] = field(default_factory=dict)
    files: dict[tuple[str, str], list[str]] = field(default_factory=dict)  # problems by table and path
    in_files: set[PartitionKey] = field(default_factory=set)  # partitions with rows in those files

    def report(self, key: PartitionKey, problem: str) -> None:
        self.wrong.setdefault(key, []).append(problem)


def verify_table(
    database: Database,
    lake: Lake,
    head: TableHead,
    contract: Contract,
    done: Verification,
    report: Callable[[float], None],
) -> None:
    """Compare the rows of a table with its pointers, their content with the verdicts, and its files with the statistics
    in the log, by which readers skip files."""
    table = table_format(lake).open(head.name, head.location, head.version)
    names = [f.name for f in contract.columns]
    found: dict[Found, Content] = {}
    unreadable: set[str] = set()
    pointers = _pointers(database, head.name)
    files = sorted(table.files(), key=lambda file: (file.month, file.first))
    for number, file in enumerate(files):
        try:
            size, keys, rows = _size(lake, f"{head.location}/{file.path}"), set[SortKey](), 0
            for part in _batches(lake, f"{head.location}/{file.path}", names):
                keys |= _add(part, names, found)
                rows += len(part)
            _compare_with_log(contract, head, file, size, rows, keys, done)
        except UNREADABLE as error:
            done.files[head.name, file.path] = [f"it cannot be read: {error}"]
            unreadable.add(file.path)
            for key in pointers:
                if file.may_hold((key.logical_date, key.customer_id)):
                    done.report(key, f"its file {file.path} cannot be read: {error}")
        report((number + 1) / len(files))
    done.rows += sum(content.rows for content in found.values())
    differing = _compare(contract, found, pointers, done)
    readable = [file for file in files if file.path not in unreadable]
    _compare_by_first_algorithm(lake, head, readable, names, differing, done)


def _compare_with_log(
    contract: Contract, head: TableHead, file: DataFile, size: int, rows: int, keys: set[SortKey], done: Verification
) -> None:
    """Report a file that differs from the log, and the partitions that readers with a filter do not find in it."""
    days, customers = sorted({day for day, _ in keys}), sorted({customer for _, customer in keys})
    pairs: list[tuple[str, object, object]] = [("size", file.size, size), ("numRecords", file.records, rows)]
    if keys:
        pairs += [
            ("minValues.logical_date", file.first[0], days[0]),
            ("maxValues.logical_date", file.last[0], days[-1]),
            ("minValues.customer_id", file.customers[0], customers[0]),
            ("maxValues.customer_id", file.customers[1], customers[-1]),
        ]
    problems = [
        f"the log has {name} {logged}, the file has {there}" for name, logged, there in pairs if logged != there
    ]
    problems += [f"it lies in month {file.month} and holds {day}" for day in days if month_of(day) != file.month][:1]
    if not problems:
        return
    done.files[head.name, file.path] = problems
    done.in_files |= {PartitionKey(contract.source, customer, contract.query_name, day) for day, customer in keys}
    for day, customer in sorted(key for key in keys if not file.may_hold(key)):
        done.report(
            PartitionKey(contract.source, customer, contract.query_name, day),
            f"readers with a filter do not find it: the statistics of its file {file.path} in the log are wrong",
        )


def table_contents(
    lake: Lake, table: Table, contract: Contract, report: Callable[[float], None]
) -> tuple[dict[Found, Content], dict[str, str]]:
    """Return the rows of a table by day, customer and run, and the unreadable files with the reason."""
    names = [f.name for f in contract.columns]
    found: dict[Found, Content] = {}
    damaged: dict[str, str] = {}
    files = table.files()
    for number, file in enumerate(files):
        mine: dict[Found, Content] = {}
        try:
            for part in _batches(lake, f"{table.path}/{file.path}", names):
                _add(part, names, mine)
        except UNREADABLE as error:
            damaged[file.path] = str(error)
        else:
            for key, content in mine.items():
                found.setdefault(key, Content()).add(content)
        report((number + 1) / len(files))
    return found, damaged


def table_damage(
    database: Database, lake: Lake, table: Table, contract: Contract, report: Callable[[float], None]
) -> TableDamage:
    """Read a version of a table completely, and return how it differs from the pointers and the Delta log."""
    done = Verification()
    head = TableHead(table.name, contract.schema_version, table.path, table.version, frozenset())
    verify_table(database, lake, head, contract, done, report)
    again = dict.fromkeys(done.in_files, "its file differs from the Delta log")
    return TableDamage(
        {path: "; ".join(reasons) for (_, path), reasons in done.files.items()},
        {**again, **{key: "; ".join(reasons) for key, reasons in done.wrong.items()}},
    )


def verify_raw(
    database: Database, lake: Lake, heads: Sequence[TableHead], done: Verification, report: Callable[[float], None]
) -> None:
    """Compare all served payloads with their seals and the digests of the verdicts."""
    wanted = [(key, row) for head in heads for key, row in _pointers(database, head.name).items()]
    reader = RawReader(lake)
    chunks = (wanted[at : at + _RAW_CHUNK] for at in range(0, len(wanted), _RAW_CHUNK))

    def read(chunk: Sequence[tuple[PartitionKey, sa.Row[Any]]]) -> dict[AttemptKey, tuple[Seal, bytes] | RawError]:
        small = [AttemptKey(key, RunId(row.run_id)) for key, row in chunk if row.payload_bytes <= _SMALL_BYTES]
        return dict(zip(small, reader.read_many(small), strict=True))

    for chunk, small in prefetched(lake, chunks, read):
        attempts = [AttemptKey(key, RunId(row.run_id)) for key, row in chunk]
        complaints = _payload_complaints(reader, attempts, [row for _, row in chunk], small)
        for (key, row), complaint in zip(chunk, complaints, strict=True):
            done.payloads += 1
            if complaint:
                done.report(key, f"raw run {row.run_id}: {complaint}")
        report(min(1.0, done.payloads / len(wanted)))


def _payload_complaints(
    reader: RawReader,
    attempts: Sequence[AttemptKey],
    rows: Sequence[sa.Row[Any]],
    small: Mapping[AttemptKey, tuple[Seal, bytes] | RawError],
) -> Iterator[str | None]:
    """Yield the problem of each payload, or None. `small` payloads were fetched together, the others are streamed."""
    for attempt, row in zip(attempts, rows, strict=True):
        try:
            found = small.get(attempt) or _streamed(reader, attempt)
        except RawError as error:
            found = error
        if isinstance(found, RawError):
            yield str(found)
        elif found[0].payload_sha256 != row.payload_digest:
            yield "its seal names another payload than the one that was validated"
        else:
            yield None


def _streamed(reader: RawReader, attempt: AttemptKey) -> tuple[Seal, None] | RawError:
    """Read a payload to its end, verify it, and return its seal."""
    seal = reader.seal(attempt)
    if seal is None:
        return RawError(f"{attempt} is not sealed")
    for _ in reader.stream(seal):
        pass
    return seal, None


def _size(lake: Lake, path: str) -> int:
    with lake.open(path) as file:
        return file.seek(0, 2)


def _batches(lake: Lake, path: str, names: Sequence[str]) -> Iterator[Any]:
    with lake.open(path) as file:
        yield from pq.ParquetFile(file).iter_batches(_ROWS, columns=["customer_id", "logical_date", RUN, *names])


def _keys(rows: Any) -> list[Found]:
    return list(zip(*(rows[name].to_pylist() for name in ("logical_date", "customer_id", RUN)), strict=True))


def _add(batch: Any, names: Sequence[str], found: dict[Found, Content]) -> set[SortKey]:
    """Add the rows up by partition and run, and return their partitions."""
    rows = pa.Table.from_batches([batch])
    hashes = row_hashes(rows.select(list(names)))
    keys = _keys(rows)
    starts = np.array([at for at, key in enumerate(keys) if at == 0 or keys[at - 1] != key], np.int64)
    if not len(starts):
        return set()
    xors = np.bitwise_xor.reduceat(hashes.view(np.int64), starts).tolist()
    sums = np.add.reduceat(hashes, starts).tolist()
    sizes = np.diff(np.append(starts, len(keys))).tolist()
    for start, size, xor, total in zip(starts.tolist(), sizes, xors, sums, strict=True):
        content = found.setdefault(keys[start], Content())
        content.rows += size
        content.xor ^= xor
        content.total = (content.total + total) % 2**64
    return {keys[start][:2] for start in starts.tolist()}


def _pointers(database: Database, table: str) -> Mapping[PartitionKey, sa.Row[Any]]:
    """The pointers of the table, with the facts of their verdicts."""
    p, a = schema.warehouse_pointer, schema.partition_attempt
    same = sa.and_(*(a.c[name] == p.c[name] for name in schema.KEY), a.c.run_id == p.c.run_id)
    statement = (
        sa.select(p, a.c.content_digest, a.c.payload_digest, a.c.payload_bytes)
        .join(a, same)
        .where(p.c.table_name == table, p.c.hidden_at.is_(None))
    )
    with database.snapshot() as connection:
        rows: Iterable[sa.Row[Any]] = connection.execute(statement).all()
    return {PartitionKey(r.source, r.customer_id, r.query_name, r.logical_date): r for r in rows}


def _compare(
    contract: Contract, found: Mapping[Found, Content], pointers: Mapping[PartitionKey, sa.Row[Any]], done: Verification
) -> dict[PartitionKey, sa.Row[Any]]:
    """Report rows without a pointer, and pointers without rows. Returns the partitions whose row count matches the
    pointer but whose digest differs; it may be of another algorithm."""
    of_partition: dict[PartitionKey, dict[str, Content]] = {}
    differing: dict[PartitionKey, sa.Row[Any]] = {}
    for (day, customer, run), content in found.items():
        key = PartitionKey(contract.source, customer, contract.query_name, day)
        of_partition.setdefault(key, {})[run] = content
    for key, runs in of_partition.items():
        if key not in pointers:
            done.report(key, f"the table has rows of run {', '.join(runs)}, but no pointer names the partition")
    for key, row in pointers.items():
        done.partitions += 1
        runs = of_partition.get(key, {})
        for run in runs:
            if run != row.run_id:
                done.report(key, f"the table has rows of run {run}, the pointer names {row.run_id}")
        content = runs.get(row.run_id, Content())
        if content.rows != row.record_count:
            done.report(key, f"the table has {counted(content.rows, 'row')}, the pointer has {row.record_count:,}")
        elif comparable(content.digest(row.schema_version)) != comparable(row.content_digest):
            differing[key] = row
    return differing


def _compare_by_first_algorithm(
    lake: Lake,
    head: TableHead,
    files: Sequence[DataFile],
    names: Sequence[str],
    differing: Mapping[PartitionKey, sa.Row[Any]],
    done: Verification,
) -> None:
    """Report the partitions whose digest matches their rows by none of its possible algorithms."""
    contents = {
        (key.logical_date, key.customer_id, str(row.run_id)): FirstContent()
        for key, row in differing.items()
        if may_be_of_first_algorithm(row.content_digest)
    }
    concerned = [file for file in files if any(file.may_hold((day, customer)) for day, customer, _ in contents)]
    for file in concerned:
        for batch in _batches(lake, f"{head.location}/{file.path}", names):
            _add_by_first_algorithm(batch, names, contents)
    for key, row in differing.items():
        content = contents.get((key.logical_date, key.customer_id, str(row.run_id)))
        if content is None or content.digest(row.schema_version) != row.content_digest:
            done.report(key, "the rows are not those that were validated")


def _add_by_first_algorithm(batch: Any, names: Sequence[str], contents: Mapping[Found, FirstContent]) -> None:
    rows = pa.Table.from_batches([batch])
    wanted: dict[Found, list[int]] = {}
    for at, key in enumerate(_keys(rows)):
        if key in contents:
            wanted.setdefault(key, []).append(at)
    for key, places in wanted.items():
        contents[key].add(nullable_row_hashes(rows.select(list(names)).take(pa.array(places))))
