"""Immutable raw data: the raw sink and its reader, on a local folder and on an S3 server."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import pytest

from penstock import __version__
from penstock.errors import AlreadySealed, DataError, RawError
from penstock.lake import Lake, open_lake
from penstock.lake.local import LocalLake
from penstock.partition import AttemptKey, PartitionKey, new_run_id
from penstock.raw.layout import SEAL, run_folder
from penstock.raw.reader import RawReader, RawRun
from penstock.raw.seal import Seal
from penstock.raw.sink import RawSink, RawWriter

KEY = PartitionKey("demo", "1000000001", "campaign_daily", date(2024, 6, 1))
NOW = datetime(2024, 6, 2, 3, 4, 5, 678, tzinfo=UTC)
LINES = (b'{"campaign_id":1}', b'{"campaign_id":2}')


@pytest.fixture(params=["local", "s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "local":
        return open_lake(str(tmp_path / "lake"))
    return open_lake(f"{request.getfixturevalue('s3_url')}/{uuid4().hex}")


@pytest.fixture
def reader(lake: Lake) -> RawReader:
    return RawReader(lake)


def new_attempt(key: PartitionKey = KEY) -> AttemptKey:
    return AttemptKey(key, new_run_id())


def open_writer(lake: Lake, attempt: AttemptKey, lines: Sequence[bytes] = LINES) -> RawWriter:
    writer = RawSink(lake).writer(attempt)
    for line in lines:
        writer.write(line)
    return writer


def close(writer: RawWriter) -> Seal:
    return writer.seal(NOW, "v1", "v23", "query-hash", "Europe/Berlin")


def sealed(lake: Lake, attempt: AttemptKey, lines: Sequence[bytes] = LINES) -> Seal:
    return close(open_writer(lake, attempt, lines))


def payload_path(seal: Seal) -> str:
    return f"{run_folder(seal.attempt)}/{seal.payload}"


def overwrite(lake: Lake, path: str, data: bytes) -> None:
    """Damage, as a broken disk or a careless person does it."""
    lake.delete([path])
    assert lake.create(path, data)


def files(lake: Lake, attempt: AttemptKey) -> list[str]:
    return sorted(entry.path.rpartition("/")[2] for entry in lake.list(run_folder(attempt)))


def test_a_sealed_run_says_everything_about_itself(lake: Lake, reader: RawReader) -> None:
    attempt = new_attempt()
    seal = sealed(lake, attempt)
    data = b'{"campaign_id":1}\n{"campaign_id":2}\n'
    assert seal == Seal(
        payload=seal.payload,
        source="demo",
        customer_id="1000000001",
        query_name="campaign_daily",
        logical_date=date(2024, 6, 1),
        run_id=attempt.run_id,
        extracted_at=NOW,
        schema_version="v1",
        record_count=2,
        payload_sha256=sha256(data).hexdigest(),
        payload_bytes=len(data),
        api_version="v23",
        query_hash="query-hash",
        time_zone="Europe/Berlin",
        penstock_version=__version__,
    )
    assert reader.seal(attempt) == seal
    assert reader.payload(seal) == data
    assert b"".join(reader.stream(seal)) == data
    assert reader.read_many([attempt]) == [(seal, data)]
    assert files(lake, attempt) == sorted([SEAL, seal.payload])


def test_an_empty_run_can_be_sealed(lake: Lake, reader: RawReader) -> None:
    seal = sealed(lake, new_attempt(), [])
    assert (seal.record_count, seal.payload_bytes) == (0, 0)
    assert reader.payload(seal) == b""
    assert list(reader.stream(seal)) == []


@pytest.mark.parametrize("line", [b"", b"\n", b'{"a":1}\n', b'{"a":\n1}'])
def test_a_line_that_is_not_one_line_is_refused_and_named(lake: Lake, line: bytes) -> None:
    writer = open_writer(lake, new_attempt())
    with pytest.raises(DataError, match=r"demo/1000000001/campaign_daily/2024-06-01 .*, line 3"):
        writer.write(line)
    assert close(writer).record_count == 2


def test_a_moment_without_time_zone_is_refused(lake: Lake) -> None:
    writer = open_writer(lake, new_attempt())
    with pytest.raises(DataError, match="time zone"):
        writer.seal(NOW.replace(tzinfo=None), "v1", "v23", "hash", "Europe/Berlin")


def test_what_is_not_sealed_is_never_returned_as_sealed(lake: Lake, reader: RawReader) -> None:
    attempt = new_attempt()
    writer = open_writer(lake, attempt)
    assert reader.seal(attempt) is None
    writer._payload.write(b"x")
    writer._payload.commit()  # the state after a crash between payload and seal
    assert reader.seal(attempt) is None
    assert reader.runs(KEY) == [RawRun(attempt, None)]
    [error] = reader.read_many([attempt])
    assert isinstance(error, RawError)
    assert "is not sealed" in str(error)


def test_a_discarded_writer_leaves_nothing(lake: Lake, reader: RawReader) -> None:
    attempt = new_attempt()
    with open_writer(lake, attempt):
        pass
    open_writer(lake, attempt).discard()
    assert (reader.runs(KEY), files(lake, attempt)) == ([], [])


def test_leaving_a_sealed_writer_discards_nothing(lake: Lake, reader: RawReader) -> None:
    with open_writer(lake, new_attempt()) as writer:
        seal = close(writer)
    writer.discard()
    assert reader.payload(seal)


def test_a_closed_writer_takes_no_more(lake: Lake, reader: RawReader) -> None:
    writer = open_writer(lake, new_attempt())
    seal = close(writer)
    writer.write(b'{"late":1}')
    with pytest.raises(AlreadySealed):
        close(writer)
    assert reader.payload(seal).count(b"\n") == 2


def test_the_second_writer_of_an_attempt_reports_the_first_ones_outcome(lake: Lake, reader: RawReader) -> None:
    attempt = new_attempt()
    late = open_writer(lake, attempt, [b'{"late":1}'])
    first = sealed(lake, attempt)
    assert close(late) == first
    assert reader.read_many([attempt]) == [(first, b"\n".join(LINES) + b"\n")]
    assert files(lake, attempt) == sorted([SEAL, first.payload])


def test_of_two_writers_at_once_one_seals_and_both_report_it(lake: Lake, reader: RawReader) -> None:
    for _ in range(10):
        attempt = new_attempt()
        writers = [open_writer(lake, attempt, [b'{"who":%d}' % who]) for who in range(2)]
        barrier = threading.Barrier(2)

        def race(writer: RawWriter, barrier: threading.Barrier = barrier) -> Seal:
            barrier.wait()
            return close(writer)

        with ThreadPoolExecutor(2) as pool:
            one, other = pool.map(race, writers)
        assert one == other == reader.seal(attempt)
        assert files(lake, attempt) == sorted([SEAL, one.payload])
        assert reader.payload(one) in (b'{"who":0}\n', b'{"who":1}\n')


@dataclass(frozen=True, slots=True)
class LostAnswer(LocalLake):
    """A lake whose create succeeds while the answer is lost, so that the request is sent again."""

    def create(self, path: str, data: bytes) -> bool:
        LocalLake.create(self, path, data)
        return LocalLake.create(self, path, data)


def test_a_lost_answer_does_not_make_us_delete_our_own_sealed_payload(tmp_path: Path) -> None:
    lake = LostAnswer(str(tmp_path))
    attempt = new_attempt()
    seal = sealed(lake, attempt)
    assert RawReader(lake).read_many([attempt]) == [(seal, b"\n".join(LINES) + b"\n")]


def test_a_writer_never_takes_a_broken_seal_for_an_outcome(lake: Lake) -> None:
    attempt = new_attempt()
    lake.create(f"{run_folder(attempt)}/{SEAL}", b"{")
    with pytest.raises(RawError, match=r"metadata\.json is broken"):
        sealed(lake, attempt)


def test_a_flipped_byte_is_found(lake: Lake, reader: RawReader) -> None:
    seal = sealed(lake, new_attempt())
    overwrite(lake, payload_path(seal), reader.payload(seal).replace(b"1", b"7"))
    found = sha256(b'{"campaign_id":7}\n{"campaign_id":2}\n').hexdigest()
    expected = (
        f"{seal.attempt}: {payload_path(seal)} is not what was sealed: "
        f"expected sha256 {seal.payload_sha256}, found {found}"
    )
    assert complaints(reader, seal) == [expected] * 3


def test_a_cut_payload_is_found(lake: Lake, reader: RawReader) -> None:
    seal = sealed(lake, new_attempt())
    overwrite(lake, payload_path(seal), reader.payload(seal)[:-3])
    assert all("expected bytes 36, found 33" in text for text in complaints(reader, seal))


def test_a_missing_payload_is_found(lake: Lake, reader: RawReader) -> None:
    seal = sealed(lake, new_attempt())
    lake.delete([payload_path(seal)])
    assert all(f"{payload_path(seal)} is missing" in text for text in complaints(reader, seal))


def test_a_wrong_count_is_found(lake: Lake, reader: RawReader) -> None:
    seal = sealed(lake, new_attempt())
    lying = replace(seal, record_count=3)
    overwrite(lake, f"{run_folder(seal.attempt)}/{SEAL}", lying.to_bytes())
    assert all("expected records 3, found 2" in text for text in complaints(reader, lying))


def test_a_payload_without_its_last_line_end_is_found(lake: Lake, reader: RawReader) -> None:
    seal = sealed(lake, new_attempt())
    data = b"\n".join((*LINES, b'{"cut":'))
    lying = replace(seal, payload_sha256=sha256(data).hexdigest(), payload_bytes=len(data))
    overwrite(lake, payload_path(seal), data)
    overwrite(lake, f"{run_folder(seal.attempt)}/{SEAL}", lying.to_bytes())
    assert all("expected last line a line end, found none" in text for text in complaints(reader, lying))


def complaints(reader: RawReader, seal: Seal) -> list[str]:
    """The result of each of the three ways to read a payload."""
    with pytest.raises(RawError) as whole:
        reader.payload(seal)
    with pytest.raises(RawError) as streamed:
        list(reader.stream(seal))
    [listed] = reader.read_many([seal.attempt])
    assert isinstance(listed, RawError)
    return [str(whole.value), str(streamed.value), str(listed)]


def test_a_seal_in_the_wrong_folder_is_found(lake: Lake, reader: RawReader) -> None:
    seal = sealed(lake, new_attempt())
    other = new_attempt()
    lake.create(f"{run_folder(other)}/{SEAL}", seal.to_bytes())
    with pytest.raises(RawError, match="belongs to another attempt"):
        reader.seal(other)


def test_one_broken_run_does_not_hide_the_others(lake: Lake, reader: RawReader) -> None:
    good, unsealed, broken, also_good = (new_attempt() for _ in range(4))
    seals = [sealed(lake, good), sealed(lake, also_good)]
    lake.create(f"{run_folder(unsealed)}/payload-{unsealed.run_id}.jsonl", b"")
    lake.create(f"{run_folder(broken)}/{SEAL}", b"{}")
    first, second, third, fourth = reader.read_many([good, unsealed, broken, also_good])
    assert (first, fourth) == ((seals[0], b"\n".join(LINES) + b"\n"), (seals[1], b"\n".join(LINES) + b"\n"))
    assert "is not sealed" in str(second)
    assert "it lacks payload, source" in str(third)
    runs = {run.attempt: run.seal for run in reader.runs(KEY)}
    assert list(runs) == sorted([good, unsealed, broken, also_good])
    assert (runs[good], runs[unsealed], runs[also_good]) == (seals[0], None, seals[1])
    assert isinstance(runs[broken], RawError)


def test_runs_are_those_of_the_partition_alone(lake: Lake, reader: RawReader) -> None:
    mine = sealed(lake, new_attempt())
    sealed(lake, new_attempt(KEY._replace(logical_date=date(2024, 6, 2))))
    sealed(lake, new_attempt(KEY._replace(customer_id="10000000010")))
    assert reader.runs(KEY) == [RawRun(mine.attempt, mine)]


def test_a_large_payload_is_streamed_without_being_held(lake: Lake, reader: RawReader) -> None:
    line = b'{"text":"%s"}' % (b"x" * 10_000)
    tracemalloc.start()
    try:
        writer = RawSink(lake).writer(new_attempt())
        for _ in range(4000):
            writer.write(line)
        seal = close(writer)
        records = 0
        for block in reader.stream(seal):
            assert block.endswith(b"}\n")
            records += block.count(b"\n")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert seal.payload_bytes > 40_000_000
    assert records == seal.record_count == 4000
    assert peak < 26_000_000


def test_a_line_longer_than_a_block_stays_whole(lake: Lake, reader: RawReader) -> None:
    lines = [b'{"a":1}', b'{"a":"%s"}' % (b"x" * 5_000_000), b'{"a":2}']
    seal = sealed(lake, new_attempt(), lines)
    blocks = list(reader.stream(seal))
    assert all(block.endswith(b"\n") for block in blocks)
    assert b"".join(blocks) == b"\n".join(lines) + b"\n"


def test_sink_and_reader_travel_to_workers(lake: Lake) -> None:
    sink, reader = pickle.loads(pickle.dumps((RawSink(lake), RawReader(lake))))
    with sink.writer(new_attempt()) as writer:
        writer.write(b"{}")
        seal = close(writer)
    assert reader.payload(pickle.loads(pickle.dumps(seal))) == b"{}\n"


WRITE_AND_SEAL = """
import sys
from datetime import UTC, datetime
from penstock.lake import open_lake
from penstock.raw.layout import parse_run_folder
from penstock.raw.sink import RawSink
writer = RawSink(open_lake(sys.argv[1])).writer(parse_run_folder(sys.argv[2]))
writer.write(b'{"from":"the dead"}')
writer.seal(datetime.now(UTC), "v1", "v23", "hash", "UTC")
"""


@pytest.mark.parametrize(("failpoint", "was_sealed"), [("raw.payload_written", False), ("raw.sealed:1", True)])
def test_a_process_killed_while_sealing_leaves_a_run_that_is_whole_or_unsealed(
    lake: Lake, reader: RawReader, failpoint: str, was_sealed: bool
) -> None:
    attempt = new_attempt()
    env = {**os.environ, "PENSTOCK_FAILPOINT": failpoint}
    done = subprocess.run(
        [sys.executable, "-c", WRITE_AND_SEAL, lake.url, run_folder(attempt)], env=env, check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    assert (reader.seal(attempt) is not None) is was_sealed
    again = sealed(lake, attempt)
    assert reader.seal(attempt) == again
    assert reader.payload(again) == (b'{"from":"the dead"}\n' if was_sealed else b"\n".join(LINES) + b"\n")
