"""Loading: Spark's workers convert trusted raw partitions into packed data files, or this process if there are few; the
publisher commits the files."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice

import numpy as np
import pyarrow as pa

from penstock.contract.complaint import summary
from penstock.contract.contract import Contract, Policy
from penstock.errors import DataError, RawError, SparkFailed, WarehouseError
from penstock.lake import Lake, open_lake
from penstock.lake.protocol import LakeUnavailable
from penstock.partition import AttemptKey, PartitionKey
from penstock.pipeline.lazy_session import LazySession
from penstock.pipeline.parsed_cache import BlockRef, CacheReader, Lookup
from penstock.pipeline.payloads import read_in_blocks, read_together
from penstock.pipeline.prefetch import prefetched
from penstock.pipeline.slices import Slice, groups
from penstock.pipeline.spark_jobs import Report, Work, progress
from penstock.pipeline.worker_jobs import run_in_workers
from penstock.raw.reader import RawReader
from penstock.raw.seal import Seal
from penstock.warehouse.diagnosis import explained
from penstock.warehouse.files import PackedWriter, SortedRows, between, in_table_order, read_rows, without
from penstock.warehouse.layout import RUN, file_schema
from penstock.warehouse.packing import NewSlice
from penstock.warehouse.staging import PartStaged, StagePart, Stager

_LOCAL_BYTES = 2 * 1024 * 1024  # of Parquet, if Spark runs
_LOCAL_BYTES_BEFORE_START = 32 * 1024 * 1024  # if it would have to start
_LOCAL_SLICES = 256
_LOCAL_PARTS = 4
_SHARE = pa.schema([("share", pa.binary())])

_RawGroup = Mapping[AttemptKey, tuple[Seal, bytes] | RawError]  # payloads that were read ahead


def spark_stager(
    session: LazySession,
    lake: str,
    contract_of: Callable[[str], Contract],
    report: Report | None = None,
    find: Lookup | None = None,
    diagnose: Callable[[Collection[str]], WarehouseError | None] = lambda tables: None,
) -> Stager:
    """Return a stager that runs one Spark job for all parts, one task per part, or stages small work in this process.
    `find` returns where the parsed rows of partitions are cached. `diagnose` returns the error that names damaged data
    files of these tables, or None if they are intact; it is called when a part fails."""

    def stage(parts: Sequence[StagePart], fingerprints: Mapping[PartitionKey, str]) -> list[PartStaged]:
        contracts = {fingerprint: _lenient(contract_of(fingerprint)) for fingerprint in set(fingerprints.values())}
        used = [[contracts[fingerprints[piece.key]] for piece in part.part.slices] for part in parts]
        places = _places(find, parts)
        with explained(lambda: diagnose({part.table for part in parts}), LakeUnavailable, SparkFailed):
            return stage_all(parts, used, places)

    def stage_all(
        parts: Sequence[StagePart], used: Sequence[Sequence[Contract]], places: Sequence[Sequence[BlockRef | None]]
    ) -> list[PartStaged]:
        if _is_small(parts, _LOCAL_BYTES_BEFORE_START if session.if_started is None else _LOCAL_BYTES):
            return _stage_locally(open_lake(lake), parts, used, places)
        shares = [pickle.dumps(share) for share in zip(range(len(parts)), parts, used, places, strict=True)]
        table = pa.table({"share": shares}, schema=_SHARE)
        spark = session.get()
        with progress(spark, report):
            found = run_in_workers(spark, table, list(range(len(parts))), _worker(lake), "share binary")
        # Tasks end in any order; each result carries the number of its part.
        rows = (row for batch in found for row in batch.column("share").to_pylist())
        answers = dict(pickle.loads(row) for row in rows)  # noqa: S301 - written by our own workers
        return [answers[number] for number in range(len(parts))]

    return stage


def _is_small(parts: Sequence[StagePart], most_bytes: int) -> bool:
    """Whether the work takes no longer than the start of a Spark job, or of Spark itself."""
    slices, weight = sum(len(part.part.slices) for part in parts), sum(part.part.weight for part in parts)
    return len(parts) <= _LOCAL_PARTS and slices <= _LOCAL_SLICES and weight <= most_bytes


def _places(find: Lookup | None, parts: Sequence[StagePart]) -> list[list[BlockRef | None]]:
    """For each part, where the rows of its partitions are cached."""
    if find is None:
        return [[] for _ in parts]
    slices = [piece for part in parts for piece in part.part.slices]
    found = iter(find([(AttemptKey(piece.key, piece.run_id), piece.payload_digest) for piece in slices]))
    return [list(islice(found, len(part.part.slices))) for part in parts]


def _stage_locally(
    lake: Lake,
    parts: Sequence[StagePart],
    contracts: Sequence[Sequence[Contract]],
    places: Sequence[Sequence[BlockRef | None]],
) -> list[PartStaged]:
    try:
        return [stage_part(lake, *share) for share in zip(parts, contracts, places, strict=True)]
    except (OSError, pa.ArrowException) as error:  # Arrow's errors about files; on workers they fail the job
        tables = ", ".join(sorted({part.table for part in parts}))
        raise LakeUnavailable(f"files of {tables} could not be read or written: {error}") from error


def _worker(lake: str) -> Work:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for share in batch.column(0).to_pylist():
                number, part, contracts, places = pickle.loads(share)  # noqa: S301 - written by our own driver
                answer = stage_part(open_lake(lake), part, contracts, places)
                yield pa.record_batch({"share": [pickle.dumps((number, answer))]}, schema=_SHARE)

    return work


def stage_part(
    lake: Lake, part: StagePart, contracts: Sequence[Contract], places: Sequence[BlockRef | None] = ()
) -> PartStaged:
    """Write the files of one part: the kept rows of its old files and the rows of its new slices, in table order.

    `contracts` are the contracts for reading the slices, one for each: those of one table differ in defaults. `places`
    are the locations of cached rows, if any.
    """
    schema = file_schema(part.fields)
    old = SortedRows(_kept_rows(lake, part, schema))
    broken: dict[PartitionKey, str] = {}
    with PackedWriter(lake, part.table_path, part.part.month, schema) as writer:
        reader, cache = RawReader(lake), CacheReader(lake)
        pieces = [_slice(index, piece) for index, piece in enumerate(part.part.slices)]

        def read(share: tuple[list[Slice], Contract]) -> _RawGroup:
            group = share[0]
            cached = {piece.item for piece in group if places and places[piece.item] is not None}
            wanted = [] if group[0].is_large else [piece for piece in group if piece.item not in cached]
            found = reader.read_many([piece.attempt for piece in wanted]) if wanted else []
            return {piece.attempt: raw for piece, raw in zip(wanted, found, strict=True)}

        for (group, contract), raw in prefetched(lake, _groups(pieces, contracts), read):
            new = [part.part.slices[piece.item] for piece in group]
            if group[0].is_large:
                writer.write(old.before(new[0].sort_key))
                _stream_large(reader, contract, new[0], schema, writer, broken)
            else:
                # Old rows up to the end of this group, among them those that lie between its slices.
                earlier = old.through(new[-1].sort_key)
                ready = {
                    at: rows
                    for at, piece in enumerate(group)
                    if places and (rows := cache.rows(places[piece.item], new[at].record_count)) is not None
                }
                rows = _read_group(reader, raw, contract, new, ready, schema, broken)
                writer.write(in_table_order(pa.concat_tables([earlier, rows])) if earlier.num_rows else rows)
        writer.write(old.rest())
        files = writer.close()
    return PartStaged(tuple(files), broken)


def _groups(pieces: Sequence[Slice], contracts: Sequence[Contract]) -> Iterator[tuple[list[Slice], Contract]]:
    """Group neighbouring slices that are read at once: small enough, and under one contract."""
    for group in groups(pieces):
        for contract, some in groupby(group, key=lambda piece: contracts[piece.item]):
            yield list(some), contract


def _lenient(contract: Contract) -> Contract:
    """The contract without the policies that reject: the validator has applied them."""
    unknown: Policy = "keep" if contract.unknown_fields == "keep" else "ignore"
    return replace(contract, unknown_fields=unknown, missing_fields="ignore")


def _slice(index: int, piece: NewSlice) -> Slice:
    return Slice(index, AttemptKey(piece.key, piece.run_id), piece.payload_bytes)


def _kept_rows(lake: Lake, part: StagePart, schema: pa.Schema) -> pa.Table:
    """The rows of the old files that stay, sorted: those in this part's range without the dropped partitions."""
    low, high = part.part.low, part.part.high
    dropped = set(part.dropped)
    kept = [
        between(without(rows, dropped), low, high) for rows in read_rows(lake, part.table_path, part.part.files, schema)
    ]
    return in_table_order(pa.concat_tables(kept)) if kept else schema.empty_table()


def _read_group(
    reader: RawReader,
    raw: _RawGroup,
    contract: Contract,
    slices: Sequence[NewSlice],
    ready: Mapping[int, pa.Table],
    schema: pa.Schema,
    broken: dict[PartitionKey, str],
) -> pa.Table:
    """Return the rows of neighbouring slices in their order; those of some are `ready`, and the payloads of others are
    in `raw`."""
    if not ready:
        return _parse_group(reader, raw, contract, slices, schema, broken)
    runs = groupby(range(len(slices)), key=lambda at: at in ready)
    pieces = [
        _ready_rows([ready[at] for at in some], [slices[at] for at in some], schema)
        if is_ready
        else _parse_group(reader, raw, contract, [slices[at] for at in some], schema, broken)
        for is_ready, some in ((is_ready, list(numbers)) for is_ready, numbers in runs)
    ]
    return pa.concat_tables(pieces)


def _ready_rows(rows: Sequence[pa.Table], slices: Sequence[NewSlice], schema: pa.Schema) -> pa.Table:
    owner = np.repeat(np.arange(len(slices), dtype=np.int32), [piece.num_rows for piece in rows])
    copied = pa.concat_tables(rows).combine_chunks()  # otherwise a few rows keep their whole block in memory
    return _with_keys(copied, owner, slices, schema)


def _parse_group(
    reader: RawReader,
    raw: _RawGroup,
    contract: Contract,
    slices: Sequence[NewSlice],
    schema: pa.Schema,
    broken: dict[PartitionKey, str],
) -> pa.Table:
    """Parse payloads, and check their bytes against the digest of the verdict. Reads those that are not in `raw`: their
    cached rows were lost."""
    attempts = [AttemptKey(piece.key, piece.run_id) for piece in slices]
    lost = [attempt for attempt in attempts if attempt not in raw]
    found = {**raw, **dict(zip(lost, reader.read_many(lost), strict=True))} if lost else raw
    whole: list[tuple[NewSlice, bytes]] = []
    for piece, attempt in zip(slices, attempts, strict=True):
        one = found[attempt]
        problem = str(one) if isinstance(one, RawError) else _not_what_was_accepted(piece, one[0])
        if problem is not None:
            broken[piece.key] = problem
        elif not isinstance(one, RawError):
            whole.append((piece, one[1]))
    if not whole:
        return schema.empty_table()
    counts = [piece.record_count for piece, _ in whole]
    parsed = read_together([payload for _, payload in whole], contract, counts, accepted_before=True)
    for position, complaints in parsed.complaints.items():
        broken[whole[position][0].key] = f"an accepted payload does not parse any more: {summary(complaints)}"
    return _with_keys(parsed.table, parsed.owner, [piece for piece, _ in whole], schema)


def _stream_large(
    reader: RawReader,
    contract: Contract,
    piece: NewSlice,
    schema: pa.Schema,
    writer: PackedWriter,
    broken: dict[PartitionKey, str],
) -> None:
    try:
        seal = reader.seal(AttemptKey(piece.key, piece.run_id))
        problem = "the raw run is not sealed" if seal is None else _not_what_was_accepted(piece, seal)
        if problem is not None or seal is None:
            raise RawError(problem)
        for parsed in read_in_blocks(reader, seal, contract, accepted_before=True):
            if parsed.complaints:
                raise DataError(f"an accepted payload does not parse any more: {summary(parsed.complaints[0])}")
            writer.write(_with_keys(parsed.table, parsed.owner, [piece], schema))
    except DataError as error:  # the part is discarded, and staged again without this slice
        broken[piece.key] = str(error)


def _not_what_was_accepted(piece: NewSlice, seal: Seal) -> str | None:
    if seal.payload_sha256 == piece.payload_digest and seal.record_count == piece.record_count:
        return None
    return f"{piece.key}: the raw run {piece.run_id} is not the one that was accepted: its seal names other content"


def _with_keys(
    rows: pa.Table, owner: np.ndarray[tuple[int], np.dtype[np.int32]], slices: Sequence[NewSlice], schema: pa.Schema
) -> pa.Table:
    owners = pa.array(owner)
    columns = {
        "customer_id": pa.array([piece.key.customer_id for piece in slices]).take(owners),
        "logical_date": pa.array([piece.key.logical_date for piece in slices], pa.date32()).take(owners),
        RUN: pa.array([piece.run_id for piece in slices]).take(owners),
    }
    columns |= {name: rows.column(name) for name in rows.column_names}
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)
