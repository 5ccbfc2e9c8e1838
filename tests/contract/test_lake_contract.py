"""The contract of a lake, tested on a local folder and on an S3 server."""

from __future__ import annotations

import os
import pickle
import threading
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.errors import ConfigError, TransientError, UsageError
from penstock.lake import Lake, open_lake
from penstock.lake.protocol import TEMPORARY, Entry, LakeObjectMissing, LakeRefused, LakeUnavailable

MB = 1024 * 1024


@pytest.fixture(params=["local", "s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "local":
        return open_lake(str(tmp_path / "lake"))
    return open_lake(f"{request.getfixturevalue('s3_url')}/{uuid4().hex}")


@pytest.fixture
def local(tmp_path: Path) -> Lake:
    return open_lake(str(tmp_path / "lake"))


@pytest.fixture
def s3(s3_url: str) -> Lake:
    return open_lake(f"{s3_url}/{uuid4().hex}")


def at_once(*acts: Callable[[], object]) -> list[object]:
    """Run the acts in threads that start from one barrier."""
    barrier = threading.Barrier(len(acts))

    def go(act: Callable[[], object]) -> object:
        barrier.wait()
        return act()

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(go, acts))


def put(lake: Lake, path: str, data: bytes) -> None:
    with lake.writer(path) as writer:
        writer.write(data)
        writer.commit()


def paths(lake: Lake, prefix: str = "") -> list[str]:
    return sorted(entry.path for entry in lake.list(prefix))


def test_what_was_created_can_be_read(lake: Lake) -> None:
    assert lake.create("a/day=2024-06-01/x.json", b"hello")
    assert lake.read("a/day=2024-06-01/x.json") == b"hello"
    assert lake.exists("a/day=2024-06-01/x.json")


def test_the_second_create_is_refused_and_changes_nothing(lake: Lake) -> None:
    assert lake.create("a/x", b"first")
    assert not lake.create("a/x", b"second")
    assert lake.read("a/x") == b"first"
    assert paths(lake) == ["a/x"]


def test_of_two_creators_at_once_exactly_one_wins(lake: Lake) -> None:
    for round_ in range(20):
        path = f"race/{round_}"
        won = at_once(lambda path=path: lake.create(path, b"left"), lambda path=path: lake.create(path, b"right"))  # type: ignore[misc]
        assert sorted(map(bool, won)) == [False, True]
        assert lake.read(path) == (b"left" if won[0] else b"right")


def test_an_object_may_be_empty(lake: Lake) -> None:
    assert lake.create("empty", b"")
    put(lake, "also-empty", b"")
    assert lake.read_many(["empty", "also-empty"]) == [b"", b""]
    with lake.open("empty") as file:
        assert file.read() == b""


def test_a_writer_shows_nothing_before_commit(lake: Lake) -> None:
    with lake.writer("a/x") as writer:
        writer.write(b"one ")
        writer.write(b"two")
        assert not lake.exists("a/x")
        assert paths(lake) == []
        writer.commit()
    assert lake.read("a/x") == b"one two"


@pytest.mark.parametrize("size", [10, 12 * MB])
def test_a_writer_that_is_left_without_commit_leaves_nothing(lake: Lake, size: int) -> None:
    with lake.writer("a/x") as writer:
        writer.write(bytes(size))
    writer.discard()
    assert not lake.exists("a/x")
    assert paths(lake) == []


def test_an_abandoned_large_upload_costs_no_storage(s3: Lake, s3_url: str) -> None:
    with s3.writer("a/x") as writer:
        writer.write(bytes(20 * MB))
    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], region_name="us-east-1")
    assert client.list_multipart_uploads(Bucket=s3_url.split("/")[2]).get("Uploads", []) == []


def test_an_abandoned_large_file_costs_no_storage(local: Lake) -> None:
    with local.writer("a/x") as writer:
        writer.write(bytes(20 * MB))
    assert [file for file in Path(local.url).rglob("*") if file.is_file()] == []


def test_a_writer_replaces_an_older_object_whole(lake: Lake) -> None:
    put(lake, "a/x", b"a longer old text")
    put(lake, "a/x", b"new")
    assert lake.read("a/x") == b"new"


def test_a_large_object_is_written_and_read_in_pieces(lake: Lake) -> None:
    block = os.urandom(MB)
    tracemalloc.start()
    try:
        with lake.writer("big") as writer:
            for _ in range(40):
                writer.write(block)
            writer.commit()
        with lake.open("big") as file:
            seen = 0
            while piece := file.read(MB):
                assert piece == block
                seen += len(piece)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert seen == 40 * MB
    assert peak < 24 * MB


def test_a_stream_can_be_sought(lake: Lake) -> None:
    put(lake, "x", b"0123456789")
    with lake.open("x") as file:
        assert file.seek(-3, os.SEEK_END) == 7
        assert file.read() == b"789"
        file.seek(2)
        assert file.read(3) == b"234"
        assert file.tell() == 5


def test_a_missing_object_has_its_own_error(lake: Lake) -> None:
    for look in (lake.read, lake.open):
        with pytest.raises(LakeObjectMissing, match="no/such"):
            look("no/such")
    assert not lake.exists("no/such")
    copy = pickle.loads(pickle.dumps(LakeObjectMissing(lake.url, "no/such")))
    assert (copy.path, str(copy)) == ("no/such", f"there is no object no/such in the lake {lake.url}")


def test_a_folder_is_not_an_object(lake: Lake) -> None:
    put(lake, "a/b/c", b"1")
    assert not lake.exists("a/b")
    assert lake.read_many(["a/b", "a/b/c", "a/b/c/d"]) == [None, b"1", None]


def test_read_many_keeps_the_order_and_says_none_for_missing(lake: Lake) -> None:
    for i in range(40):
        put(lake, f"m/{i}", b"%d" % i)
    wanted = [f"m/{i}" for i in reversed(range(40))]
    assert lake.read_many([*wanted, "m/none"]) == [*(b"%d" % i for i in reversed(range(40))), None]
    assert lake.read_many([]) == []


def test_list_is_recursive_and_goes_by_whole_folders(lake: Lake) -> None:
    for path in ("a/1", "a/b/2", "a/b/c/3", "ab/4"):
        put(lake, path, path.encode())
    assert sorted(lake.list("a")) == [Entry("a/1", 3), Entry("a/b/2", 5), Entry("a/b/c/3", 7)]
    assert paths(lake, "a/b/") == ["a/b/2", "a/b/c/3"]
    assert paths(lake) == ["a/1", "a/b/2", "a/b/c/3", "ab/4"]
    assert paths(lake, "nothing") == []
    assert paths(lake, "a/1") == []


def test_delete_does_not_mind_what_is_missing(lake: Lake) -> None:
    put(lake, "a/1", b"1")
    put(lake, "a/2", b"2")
    lake.delete(["a/1", "a/1", "a/none", "none/none"])
    lake.delete([])
    assert paths(lake) == ["a/2"]
    assert lake.create("a/1", b"again")


def test_a_lake_is_a_value_that_can_be_pickled_even_after_use(lake: Lake) -> None:
    put(lake, "a", b"1")
    copy = pickle.loads(pickle.dumps(lake))
    assert (copy, copy.url) == (lake, lake.url)
    assert copy.read("a") == b"1"


def test_a_pickled_lake_carries_no_credentials(s3: Lake) -> None:
    s3.exists("x")
    assert b"test-secret" not in pickle.dumps(s3)
    assert "test-secret" not in repr(s3) + str(s3.storage_options())


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../x", "a/..", "./a", "a//b", "a/", "a\\b", "a\n", ".tmp-1"]
)
def test_a_path_outside_the_lake_is_refused(lake: Lake, path: str) -> None:
    acts: list[Callable[[], object]] = [
        lambda: lake.create(path, b""),
        lambda: lake.writer(path),
        lambda: lake.read(path),
        lambda: lake.read_many([path]),
        lambda: lake.open(path),
        lambda: lake.exists(path),
        lambda: lake.delete([path]),
        lambda: lake.uri(path),
    ]
    for act in acts:
        with pytest.raises(UsageError, match="not a path in a lake"):
            act()


@pytest.mark.parametrize("url", ["lake", "./lake", "ftp://x/y", "s3://", "s3://UPPER/x", "s3://key:hush@bucket/x"])
def test_an_address_that_is_no_lake_is_refused_without_repeating_secrets(url: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        open_lake(url)
    assert "hush" not in str(refusal.value)


def test_addresses_are_written_in_one_way(tmp_path: Path) -> None:
    assert open_lake(f"file://{tmp_path}/a%20b/").url == f"{tmp_path}/a b"
    assert open_lake("s3://bucket/a/b/").url == "s3://bucket/a/b"
    assert open_lake("s3://bucket").uri("x/y") == "s3://bucket/x/y"


def test_sync_may_be_called_at_any_time(lake: Lake) -> None:
    lake.sync()
    put(lake, "a", b"1")
    lake.sync()


def test_arrow_reads_and_writes_parquet_in_the_lake(lake: Lake) -> None:
    put(lake, "t/.keep", b"")
    filesystem, base = lake.filesystem()
    table = pa.table({"n": [1, 2, 3]})
    pq.write_table(table, f"{base}/t/n.parquet", filesystem=filesystem)
    assert paths(lake) == ["t/.keep", "t/n.parquet"]
    assert pq.read_table(f"{base}/t/n.parquet", filesystem=filesystem).equals(table)
    with lake.open("t/n.parquet") as file:
        assert pq.read_table(file).equals(table)


def test_delta_opens_a_table_by_uri_and_options(lake: Lake) -> None:
    table = pa.table({"n": [1, 2, 3]})
    write_deltalake(lake.uri("warehouse/t"), table, storage_options=lake.storage_options())
    opened = DeltaTable(lake.uri("warehouse/t"), storage_options=lake.storage_options())
    assert opened.to_pyarrow_table().equals(table)
    assert lake.exists("warehouse/t/_delta_log/00000000000000000000.json")


def test_storage_that_does_not_answer_is_a_transient_error(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:hush@127.0.0.1:1")
    with pytest.raises(LakeUnavailable, match=r"cannot create x in the lake s3://") as trouble:
        open_lake(s3_url).create("x", b"")
    assert isinstance(trouble.value, TransientError)
    assert "hush" not in f"{trouble.value} {trouble.value.__cause__}"


def test_a_bucket_that_does_not_exist_is_a_refusal(s3_url: str) -> None:
    lake = open_lake("s3://no-such-bucket/x")
    for act in (lambda: lake.create("x", b""), lambda: put(lake, "x", b""), lambda: list(lake.list())):
        with pytest.raises(LakeRefused, match="bucket"):
            act()


def test_without_obstore_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.lake.s3.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"install penstock\[s3\]"):
        open_lake("s3://bucket/x")


def test_a_local_path_through_a_file_is_a_refusal(local: Lake) -> None:
    put(local, "a", b"1")
    with pytest.raises(LakeRefused, match="a/b"):
        local.create("a/b", b"2")


def test_a_local_lake_has_no_empty_folders(local: Lake) -> None:
    put(local, "a/b/c/1", b"1")
    put(local, "a/2", b"2")
    local.delete(["a/b/c/1"])
    assert [path.name for path in Path(local.url).rglob("*")] in (["a", "2"], ["2", "a"])


def test_what_a_killed_local_writer_left_is_no_object_and_goes_when_it_is_old(local: Lake) -> None:
    put(local, "a/b/1", b"1")
    leftover = Path(local.url, "a/b", f"{TEMPORARY}dead")
    leftover.write_bytes(b"half")
    assert paths(local) == ["a/b/1"]
    local.delete(["a/b/1"])
    assert leftover.exists(), "it may belong to a writer that is still at work"
    long_ago = time.time() - 2 * 24 * 3600
    os.utime(leftover, (long_ago, long_ago))
    put(local, "a/b/1", b"1")
    local.delete(["a/b/1"])
    assert not leftover.parent.exists()


def test_writers_survive_somebody_who_prunes_their_folder(local: Lake) -> None:
    done = threading.Event()

    def prune() -> None:
        while not done.is_set():
            local.delete(["a/b/c/none"])

    def write() -> None:
        try:
            for i in range(200):
                assert local.create(f"a/b/c/{i}", b"x")
                local.delete([f"a/b/c/{i}"])
        finally:
            done.set()

    at_once(prune, write)
