"""Cached rows are read as they were written, or not at all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from ulid import ULID

from penstock.lake import Lake, open_lake
from penstock.partition import AttemptKey, RunId, new_run_id
from penstock.pipeline import parsed_cache
from penstock.pipeline.parsed_cache import BlockRef, CacheBudget, CacheReader, CacheWriter, ParsedCache, open_cache
from support.builders import key

RUN = new_run_id()


def rows(first: int, count: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + count), pa.int64()), "name": [f"n{i}" for i in range(count)]})


def attempt(day: int, run_id: RunId = RUN) -> AttemptKey:
    return AttemptKey(key(day), run_id)


def written(folder: Path) -> list[BlockRef]:
    """Two blocks of one task: slices of 2, 0 and 3 rows, then one of 4."""
    with CacheWriter(CacheBudget(str(folder), 2**20)) as writer:
        places = [*writer.write(rows(0, 5), [0, 2, 2]), *writer.write(rows(100, 4), [0])]
    return [place for place in places if place is not None]


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    reader = CacheReader()
    places = written(tmp_path)
    found = [reader.rows(place, count) for place, count in zip(places, (2, 0, 3, 4), strict=True)]
    assert [None if table is None else table["id"].to_pylist() for table in found] == [
        [0, 1],
        [],
        [2, 3, 4],
        [100, 101, 102, 103],
    ]
    assert found[0] is not None
    assert found[0].schema == rows(0, 1).schema
    assert len({place.file for place in places}) == 1


@pytest.mark.parametrize("damage", ["gone", "cut", "changed", "no rows", "not Arrow"])
def test_what_is_not_as_it_was_written_is_not_there(tmp_path: Path, damage: str) -> None:
    place = written(tmp_path)[3]
    path = Path(place.file)
    whole = path.read_bytes()
    match damage:
        case "gone":
            path.unlink()
        case "cut":
            path.write_bytes(whole[:-1])
        case "changed":
            path.write_bytes(whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:])
        case "no rows":
            place = place._replace(rows=5)
        case "not Arrow":
            path.write_bytes(b"?" * len(whole))
            import hashlib

            place = place._replace(sha256=hashlib.sha256(b"?" * place.length).hexdigest())
    assert CacheReader().rows(place, 4) is None
    assert CacheReader().rows(None, 4) is None


def test_a_worker_without_disk_budget_caches_nothing_and_continues(tmp_path: Path) -> None:
    with CacheWriter(None) as writer:
        assert writer.write(rows(0, 2), [0, 1]) == [None, None]
    with CacheWriter(CacheBudget(str(tmp_path / "never made"), 2**20)) as writer:
        assert writer.write(rows(0, 2), [0, 1]) == [None, None]
        assert writer.write(rows(0, 2), [0]) == [None]
    with CacheWriter(CacheBudget(str(tmp_path), 2**20)) as writer:
        assert writer.write(rows(0, 0), [0, 0]) == [None, None]
    assert list(tmp_path.iterdir()) == []


def test_a_worker_uses_no_more_than_its_share(tmp_path: Path) -> None:
    with CacheWriter(CacheBudget(str(tmp_path), 2**20)) as writer:
        [whole] = writer.write(rows(0, 5), [0])
    assert whole is not None
    with CacheWriter(CacheBudget(str(tmp_path), 3 * whole.length)) as writer:
        found = [writer.write(rows(0, 5), [0])[0] for _ in range(6)]
    assert [place is not None for place in found] == [True] * 3 + [False] * 3
    assert max(path.stat().st_size for path in tmp_path.iterdir()) == 3 * whole.length


def test_half_a_block_does_not_stay_on_a_full_disk(tmp_path: Path) -> None:
    with CacheWriter(CacheBudget(str(tmp_path), 2**20)) as writer:
        [place] = writer.write(rows(0, 5), [0])
        assert place is not None
        disk = writer._file
        writer._file = _FullDisk(disk)  # type: ignore[assignment]
        assert writer.write(rows(0, 5), [0]) == [None]
        writer._file = disk
    assert Path(place.file).stat().st_size == place.length


class _FullDisk:
    """Takes a few bytes more, and then none."""

    def __init__(self, file: Any) -> None:
        self._file, self._full = file, False

    def write(self, data: memoryview) -> int:
        if self._full:
            raise OSError(28, "No space left on device")
        self._full = True
        return int(self._file.write(data[:7]))

    def truncate(self, size: int) -> None:
        self._file.truncate(size)


def test_the_memory_of_a_reader_is_bounded_and_what_is_used_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CacheWriter(CacheBudget(str(tmp_path), 2**20)) as writer:
        places = [place for n in range(6) if (place := writer.write(rows(10 * n, 2), [0])[0])]
    most = 2 * rows(0, 2).nbytes
    monkeypatch.setattr(parsed_cache, "_HELD_BYTES", most)
    read, opened = parsed_cache._read, []

    def watched(place: BlockRef, lake: Lake | None) -> pa.Table | None:
        opened.append(place.offset)
        return read(place, lake)

    monkeypatch.setattr(parsed_cache, "_read", watched)
    reader = CacheReader()
    for number in (0, 1, 0, 2, 0, 3):
        assert reader.rows(places[number], 2) is not None
        assert reader.held_bytes == sum(block.nbytes for block in reader._blocks.values() if block) <= most
    assert opened == [place.offset for place in places[:4]]


def test_a_place_is_found_only_for_the_payload_that_was_accepted(tmp_path: Path) -> None:
    kept = ParsedCache(str(tmp_path))
    place = written(tmp_path)[0]
    kept.keep(attempt(1), "abc", place)
    asked = [(attempt(1), "abd"), (attempt(2), "abc"), (attempt(1, new_run_id()), "abc"), (attempt(1), "abc")]
    assert kept.take(asked) == [None, None, None, place]


def test_a_file_goes_when_the_last_of_its_slices_was_loaded(tmp_path: Path) -> None:
    kept = ParsedCache(str(tmp_path))
    places = written(tmp_path)
    for day, place in enumerate(places, start=1):
        kept.keep(attempt(day), "abc", place)
    first = [(attempt(day), "abc") for day in (1, 2)]
    assert kept.take(first) == places[:2]
    assert kept.take(first[:1]) == places[:1]  # staged again, without one that dropped out
    assert kept.take([(attempt(3), "abc")]) == [places[2]]
    assert kept.take(first) == [None, None]
    assert Path(places[0].file).exists()  # day 4 has not been asked for
    assert kept.take([(attempt(4), "abc")]) == [places[3]]
    assert kept.take([]) == []
    assert list(tmp_path.iterdir()) == []


def test_the_cache_stays_within_its_disk_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ParsedCache(str(tmp_path))
    room = kept.budget()
    assert room is not None
    assert room.folder == str(tmp_path)
    places = written(tmp_path)
    written(tmp_path)  # of rejected slices, or of a failed task: they are not registered
    used = sum(path.stat().st_size for path in tmp_path.iterdir())
    monkeypatch.setattr(parsed_cache, "_MOST_BYTES", used)
    assert kept.budget() is None
    kept.keep(attempt(1), "abc", places[0])
    kept.sweep()
    assert [str(path) for path in tmp_path.iterdir()] == [places[0].file]
    room = kept.budget()
    assert room is not None
    assert room.left == used // 2


def session(master: str, scratch: str | None) -> Any:
    conf = SimpleNamespace(get={"spark.local.dir": scratch}.get)
    return SimpleNamespace(_sc=SimpleNamespace(master=master, getConf=lambda: conf))


@pytest.fixture(autouse=True)
def no_folders_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)


def test_the_cache_is_deleted_with_its_run_and_so_are_those_of_dead_runs(tmp_path: Path) -> None:
    dead, begun, other = (tmp_path / name for name in ("penstock-rows-dead", "penstock-rows-begun", "spark-x"))
    for folder in (dead, begun, other):
        folder.mkdir()
        (folder / "file").touch()
    (dead / ".lock").touch()  # the lock is free
    with (
        open_cache(session("local[2]", str(tmp_path)), "") as kept,
        open_cache(session("local", str(tmp_path)), "") as second,
    ):
        assert kept is not None
        assert second is not None
        rooms = [room for room in (kept.budget(), second.budget()) if room]
        assert len({room.folder for room in rooms}) == 2  # the second has not taken the first for dead
        assert all(Path(room.folder).is_dir() for room in rooms)
        (Path(rooms[0].folder) / "left").touch()
        assert not dead.exists()
    assert {path.name for path in tmp_path.iterdir()} == {begun.name, other.name}


def test_of_several_folders_of_spark_the_first_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_cache(session("local", "one,two"), "") as kept:
        room = kept and kept.budget()
        assert room
        assert Path(room.folder).parent == tmp_path / "one"
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/three, {tmp_path}/four")
    with open_cache(session("local", "one"), "") as kept:
        room = kept and kept.budget()
        assert room
        assert Path(room.folder).parent == tmp_path / "three"


def test_without_a_folder_nothing_is_cached_and_other_errors_are_raised(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with open_cache(session("local", str(tmp_path / "file")), "") as kept:
        assert kept is None
    with pytest.raises(OSError, match="theirs"), open_cache(session("local", str(tmp_path)), ""):
        raise OSError("theirs")


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "local-cluster[2,1,1024]", None])
def test_executors_on_other_hosts_cache_rows_in_the_lake(tmp_path: Path, master: str | None) -> None:
    scratch, lake = tmp_path / "scratch", open_lake(str(tmp_path / "lake"))
    connected: Any = SimpleNamespace() if master is None else session(master, str(scratch))
    old = f"cache/parsed/{ULID.from_datetime(datetime.now(UTC) - timedelta(days=2))}/left.arrow"
    new = f"cache/parsed/{ULID.from_datetime(datetime.now(UTC) - timedelta(hours=2))}/used.arrow"
    for path in (old, new):
        lake.create(path, b"x")
    with open_cache(connected, lake.url) as kept:
        assert kept is not None
        budget = kept.budget()
        assert budget is not None
        with CacheWriter(budget) as writer:
            [first, second] = writer.write(rows(0, 7), [0, 3])
            [third] = writer.write(rows(7, 5), [0])
        assert first is not None
        assert second is not None
        assert third is not None
        assert first.file == second.file != third.file
        reader = CacheReader(lake)
        assert [reader.rows(place, count).num_rows for place, count in ((first, 3), (second, 4))] == [3, 4]  # type: ignore[union-attr]
        one, two = attempt(1), attempt(2)
        kept.keep(one, "digest", first)
        kept.sweep()  # nothing refers to the third
        assert {entry.path for entry in lake.list("cache")} == {new, first.file}
        assert kept.take([(one, "digest"), (two, "digest")]) == [first, None]
        assert kept.take([]) == []
        assert [entry.path for entry in lake.list("cache")] == [new]
        assert CacheReader(lake).rows(first, 3) is None
    assert [entry.path for entry in lake.list("cache")] == [new]
    assert not scratch.exists()
