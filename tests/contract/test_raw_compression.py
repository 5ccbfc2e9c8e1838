"""Payloads stored as zstd: the same lines, digests and errors as plain ones, on a local folder and on an S3 server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from penstock.errors import RawError
from penstock.lake import Lake, open_lake
from penstock.partition import AttemptKey, PartitionKey, new_run_id
from penstock.raw.layout import run_folder
from penstock.raw.reader import RawReader
from penstock.raw.seal import Seal
from penstock.raw.sink import Compression, RawSink, payload_compression

KEY = PartitionKey("demo", "1000000001", "campaign_daily", date(2024, 6, 1))
LINES = tuple(b'{"campaign_id":%d}' % number for number in range(100))
DATA = b"\n".join(LINES) + b"\n"


@pytest.fixture(params=["local", "s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "local":
        return open_lake(str(tmp_path / "lake"))
    return open_lake(f"{request.getfixturevalue('s3_url')}/{uuid4().hex}")


def sealed(lake: Lake, lines: Sequence[bytes] = LINES, compression: Compression = "zstd") -> Seal:
    with RawSink(lake, compression).writer(AttemptKey(KEY, new_run_id())) as writer:
        for line in lines:
            writer.write(line)
        return writer.seal(datetime(2024, 6, 2, tzinfo=UTC), "v1", "v23", "query-hash", "UTC")


def path_of(seal: Seal) -> str:
    return f"{run_folder(seal.attempt)}/{seal.payload}"


def test_the_seal_describes_the_lines_and_not_their_compressed_form(lake: Lake) -> None:
    seal, reader = sealed(lake), RawReader(lake)
    assert seal.payload.endswith(".jsonl.zst")
    assert (seal.payload_sha256, seal.payload_bytes) == (sha256(DATA).hexdigest(), len(DATA))
    stored = lake.read(path_of(seal))
    assert len(stored) < len(DATA) / 3
    assert pa.decompress(stored, decompressed_size=len(DATA), codec="zstd", asbytes=True) == DATA
    assert reader.seal(seal.attempt) == seal
    assert reader.payload(seal) == b"".join(reader.stream(seal)) == DATA


def test_plain_and_compressed_payloads_are_read_together(lake: Lake) -> None:
    seals = [sealed(lake, compression=kind) for kind in ("none", "zstd", "none")]
    assert [one.payload.rpartition(".")[2] for one in seals] == ["jsonl", "zst", "jsonl"]
    assert RawReader(lake).read_many([one.attempt for one in seals]) == [(one, DATA) for one in seals]


def test_an_empty_payload_is_read_as_empty(lake: Lake) -> None:
    seal, reader = sealed(lake, []), RawReader(lake)
    assert (seal.record_count, seal.payload_bytes) == (0, 0)
    assert reader.payload(seal) == b""
    assert list(reader.stream(seal)) == []


def test_a_large_payload_is_streamed_in_blocks_of_whole_lines(lake: Lake) -> None:
    lines = [
        b'{"n":%d,"text":"%s"}' % (number, sha256(b"%d" % number).hexdigest().encode()) for number in range(60_000)
    ]
    seal, reader = sealed(lake, lines), RawReader(lake)
    blocks = list(reader.stream(seal))
    assert max(map(len, blocks)) < 3 * 1024 * 1024 < seal.payload_bytes
    assert all(block.endswith(b"\n") for block in blocks)
    assert b"".join(blocks) == b"\n".join(lines) + b"\n" == reader.payload(seal)


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "other lines", "not compressed", "more lines"])
def test_a_damaged_payload_is_never_returned(lake: Lake, damage: str) -> None:
    seal, reader = sealed(lake), RawReader(lake)
    stored = lake.read(path_of(seal))
    middle = len(stored) // 2
    other = lake.read(path_of(sealed(lake, [line.replace(b"campaign", b"customer") for line in LINES])))
    damaged = {
        "cut": stored[:middle],
        "flipped": stored[:middle] + bytes([stored[middle] ^ 255]) + stored[middle + 1 :],
        "emptied": b"",
        "other lines": other,
        "not compressed": DATA,
        "more lines": stored + stored,
    }[damage]
    lake.delete([path_of(seal)])
    assert lake.create(path_of(seal), damaged)
    for read in (reader.payload, lambda one: b"".join(reader.stream(one))):
        with pytest.raises(RawError, match="is not what was sealed"):
            read(seal)
    [found] = reader.read_many([seal.attempt])
    assert isinstance(found, RawError)


def test_a_seal_with_a_wrong_size_is_an_error(lake: Lake) -> None:
    seal, reader = sealed(lake), RawReader(lake)
    for size in (len(DATA) - 1, len(DATA) + 1, 0):
        with pytest.raises(RawError, match="is not what was sealed"):
            reader.payload(replace(seal, payload_bytes=size))


def test_payloads_are_compressed_by_default_where_they_travel(lake: Lake) -> None:
    is_remote = lake.url.startswith("s3://")
    assert payload_compression("auto", lake) == ("zstd" if is_remote else "none")
    assert [payload_compression(chosen, lake) for chosen in ("zstd", "none")] == ["zstd", "none"]
