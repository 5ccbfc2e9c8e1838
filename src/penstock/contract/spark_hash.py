"""Computes Spark's `xxhash64` on Arrow columns without Spark, for content digests that the first releases stored."""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

Hashes = np.ndarray[tuple[int], np.dtype[np.uint64]]

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(number)
    for number in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_SEED = 42
_LONG_DIGITS = 18  # Spark hashes a decimal with at most this many digits as a long


def nullable_row_hashes(rows: pa.Table) -> Hashes:
    """Return the hash of each row: for each column, of a null flag and then of its value."""
    found = np.full(rows.num_rows, _SEED, np.uint64)
    for column in rows.columns:
        whole = column.combine_chunks()
        null = np.asarray(whole.is_null())
        found = _hash_int(null.astype(np.uint64), found)
        found = np.where(null, found, _hash_column(whole, found))
    return found


def _hash_column(column: pa.Array, seeds: Hashes) -> Hashes:
    kind = column.type
    if kinds.is_boolean(kind):
        return _hash_int(np.asarray(column.fill_null(False)).astype(np.uint64), seeds)
    if kinds.is_date32(kind):
        days = np.asarray(column.cast(pa.int32()).fill_null(0)).astype(np.int64)
        return _hash_int(days.view(np.uint64) & np.uint64(0xFFFFFFFF), seeds)
    if kinds.is_floating(kind):
        numbers = np.asarray(column.fill_null(0.0)).astype(np.float64) + 0.0  # minus zero is hashed as zero
        return _hash_long(numbers.view(np.uint64), seeds)
    if kinds.is_decimal(kind):
        return _hash_decimals(column, seeds)
    if kinds.is_string(kind):
        return _hash_texts(column, seeds)
    return _hash_long(np.asarray(column.cast(pa.int64()).fill_null(0)).astype(np.int64).view(np.uint64), seeds)


def _hash_decimals(column: pa.Array, seeds: Hashes) -> Hashes:
    scale = column.type.scale
    with decimal.localcontext() as context:
        context.prec = 60
        values = [0 if value is None else int(value.scaleb(scale)) for value in column.to_pylist()]
    if column.type.precision <= _LONG_DIGITS:
        return _hash_long(np.array(values, np.int64).view(np.uint64), seeds)
    texts = [value.to_bytes((8 + (value + (value < 0)).bit_length()) // 8, "big", signed=True) for value in values]
    return _hash_texts(pa.array(texts, pa.binary()), seeds)


def _hash_texts(column: pa.Array, seeds: Hashes) -> Hashes:
    """Hash strings of the same length together."""
    binary = column.cast(pa.binary()).fill_null(b"")
    lengths = np.asarray(pc.binary_length(binary)).astype(np.int64)
    found = seeds.copy()
    for length in np.unique(lengths).tolist():
        at = np.flatnonzero(lengths == length)
        joined = b"".join(binary.take(pa.array(at)).to_pylist())
        found[at] = _hash_bytes(np.frombuffer(joined, np.uint8).reshape(len(at), length), seeds[at])
    return found


def _hash_bytes(texts: Any, seeds: Hashes) -> Hashes:
    """XXH64 of byte strings of one length, one in each row."""
    length, at = texts.shape[1], 0
    if length >= 32:
        lanes = [seeds + _P1 + _P2, seeds + _P2, seeds.copy(), seeds - _P1]
        while at <= length - 32:
            for number in range(4):
                word = _words(texts, at + 8 * number, 8)
                lanes[number] = _rotated(lanes[number] + word * _P2, 31) * _P1
            at += 32
        one, two, three, four = (_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
        found = one + two + three + four
        for lane in lanes:
            found = (found ^ (_rotated(lane * _P2, 31) * _P1)) * _P1 + _P4
    else:
        found = seeds + _P5
    found = found + np.uint64(length)
    while at <= length - 8:
        found = _rotated(found ^ (_rotated(_words(texts, at, 8) * _P2, 31) * _P1), 27) * _P1 + _P4
        at += 8
    if at <= length - 4:
        found = _rotated(found ^ (_words(texts, at, 4) * _P1), 23) * _P2 + _P3
        at += 4
    while at < length:
        found = _rotated(found ^ (texts[:, at].astype(np.uint64) * _P5), 11) * _P1
        at += 1
    return _finalized(found)


def _hash_int(numbers: Hashes, seeds: Hashes) -> Hashes:
    return _finalized(_rotated((seeds + _P5 + np.uint64(4)) ^ (numbers * _P1), 23) * _P2 + _P3)


def _hash_long(numbers: Hashes, seeds: Hashes) -> Hashes:
    word = _rotated(numbers * _P2, 31) * _P1
    return _finalized(_rotated((seeds + _P5 + np.uint64(8)) ^ word, 27) * _P1 + _P4)


def _words(texts: Any, at: int, size: int) -> Hashes:
    """Return the `size` bytes at a position as one little-endian number for each row."""
    found = np.zeros(len(texts), np.uint64)
    for number in range(size):
        found |= texts[:, at + number].astype(np.uint64) << np.uint64(8 * number)
    return found


def _rotated(numbers: Hashes, bits: int) -> Hashes:
    return (numbers << np.uint64(bits)) | (numbers >> np.uint64(64 - bits))


def _finalized(numbers: Hashes) -> Hashes:
    numbers = (numbers ^ (numbers >> np.uint64(33))) * _P2
    numbers = (numbers ^ (numbers >> np.uint64(29))) * _P3
    return numbers ^ (numbers >> np.uint64(32))
