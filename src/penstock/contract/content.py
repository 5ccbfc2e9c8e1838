"""Row hashes and content digests of partitions. Equal typed rows have equal hashes on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from penstock.digests import versioned

Hashes = np.ndarray[tuple[int], np.dtype[np.uint64]]

_SHIFTS = tuple(np.uint64(bits) for bits in (30, 27, 31))
_FACTORS = tuple(np.uint64(number) for number in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_STEP = np.uint64(0x9E3779B97F4A7C15)
_NULL = np.uint64(0x5851F42D4C957F2D)


def row_hashes(rows: pa.Table) -> Hashes:
    """Return a 64-bit hash of each row over all values in column order. Stored digests depend on this function."""
    return _folded([column.combine_chunks() for column in rows.columns], rows.num_rows)


def content_digest(schema_version: str, rows: int, xor: int, total: int) -> str:
    """Return a digest that is equal for the same typed rows in any order under the same schema version. `xor` is the
    exclusive or of the row hashes as signed numbers, `total` their sum modulo 2**64."""
    parts = (schema_version, rows, xor, total - 2**64 if total >= 2**63 else total)
    return versioned(_sha256(parts))


@dataclass(slots=True)
class FirstContent:
    """Accumulates the content digest of algorithm 1, of earlier releases, from Spark's `xxhash64` of each row."""

    rows: int = 0
    xor: int = 0
    low: int = 0
    high: int = 0

    def add(self, hashes: Hashes) -> None:
        self.rows += len(hashes)
        self.xor ^= int(np.bitwise_xor.reduce(hashes.view(np.int64))) if len(hashes) else 0
        self.low += int((hashes & np.uint64(0xFFFFFFFF)).sum())
        self.high += int((hashes >> np.uint64(32)).sum())

    def digest(self, schema_version: str) -> str:
        return _sha256((schema_version, self.rows, self.xor, self.low, self.high))


def _sha256(parts: Sequence[object]) -> str:
    return sha256("|".join(str(part) for part in parts).encode()).hexdigest()


def _folded(columns: Sequence[pa.Array], rows: int) -> Hashes:
    found = np.zeros(rows, np.uint64)
    for column in columns:
        found = _mixed(found * _STEP + _values(column))
    return found


def _list_numbers(column: pa.Array) -> Hashes:
    """Combine the hashes of the elements, mixed with their positions, and the length of the list."""
    lengths = np.asarray(pc.list_value_length(column).fill_null(0)).astype(np.int64)
    ends = np.cumsum(lengths)
    places = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    mixed = _mixed(_values(column.flatten()) * _STEP + _mixed(places.astype(np.uint64) + _STEP))
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)))  # wraps at 2**64
    found: Hashes = sums[ends] - sums[ends - lengths] + lengths.astype(np.uint64) * _STEP
    return found


def _mixed(numbers: Hashes) -> Hashes:
    """Apply the finalizer of SplitMix64: each input bit changes about half of the output bits."""
    numbers = (numbers ^ (numbers >> _SHIFTS[0])) * _FACTORS[0]
    numbers = (numbers ^ (numbers >> _SHIFTS[1])) * _FACTORS[1]
    return numbers ^ (numbers >> _SHIFTS[2])


def _values(column: pa.Array) -> Hashes:
    """Return a hash for each value, with a fixed one for null."""
    hashes = _mixed(_numbers(column) + _STEP)
    return np.where(np.asarray(column.is_null()), _NULL, hashes) if column.null_count else hashes


def _numbers(column: pa.Array) -> Any:
    kind = column.type
    if kinds.is_struct(kind):
        return _folded(column.flatten(), len(column))
    if kinds.is_list(kind):
        return _list_numbers(column)
    if kinds.is_string(kind) or kinds.is_decimal(kind):
        coded = column.dictionary_encode()
        digests = [_digest(str(value)) for value in coded.dictionary.to_pylist()]
        return np.array([*digests, 0], np.uint64)[np.asarray(coded.indices.fill_null(len(digests)))]
    if kinds.is_floating(kind):
        return _filled(column, 0.0, pa.float64(), np.float64).view(np.uint64)
    width = pa.int32() if kinds.is_date32(kind) else pa.int64()
    return _filled(column.cast(width), 0, width, np.int64).view(np.uint64)


def _filled(column: pa.Array, filler: float, kind: pa.DataType, wanted: Any) -> Any:
    """Return the column as a numpy array with nulls filled; adding zero turns minus zero into zero."""
    return np.asarray(column.fill_null(pa.scalar(filler, kind))).astype(wanted) + wanted(0)


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
