"""Rows that are set aside come back as they were written, or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from builders import key
from penstock.partition import AttemptKey, RunId, new_run_id
from penstock.pipeline import aside
from penstock.pipeline.aside import AsideReader, Asides, AsideWriter, Place, set_aside

RUN = new_run_id()


def rows(first: int, count: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + count), pa.int64()), "name": [f"n{i}" for i in range(count)]})


def attempt(day: int, run_id: RunId = RUN) -> AttemptKey:
    return AttemptKey(key(day), run_id)


def written(folder: Path) -> list[Place]:
    """Two blocks of one task: slices of 2, 0 and 3 rows, then one of 4."""
    with AsideWriter(str(folder)) as writer:
        places = [*writer.write(rows(0, 5), [0, 2, 2]), *writer.write(rows(100, 4), [0])]
    return [place for place in places if place is not None]


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    reader = AsideReader()
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
            place = place._replace(first=1)
        case "not Arrow":
            path.write_bytes(b"?" * len(whole))
            import hashlib

            place = place._replace(sha256=hashlib.sha256(b"?" * place.length).hexdigest())
    assert AsideReader().rows(place, 4) is None
    assert AsideReader().rows(None, 4) is None


def test_a_worker_without_room_sets_nothing_aside_and_goes_on(tmp_path: Path) -> None:
    with AsideWriter(None) as writer:
        assert writer.write(rows(0, 2), [0, 1]) == [None, None]
    with AsideWriter(str(tmp_path / "never made")) as writer:
        assert writer.write(rows(0, 2), [0, 1]) == [None, None]
        assert writer.write(rows(0, 2), [0]) == [None]
    with AsideWriter(str(tmp_path)) as writer:
        assert writer.write(rows(0, 0), [0, 0]) == [None, None]
    assert list(tmp_path.iterdir()) == []


def test_the_blocks_in_memory_are_few(tmp_path: Path) -> None:
    with AsideWriter(str(tmp_path)) as writer:
        places = [writer.write(rows(10 * n, 2), [0])[0] for n in range(6)]
    reader = AsideReader()
    for place in places:
        assert reader.rows(place, 2) is not None
    assert len(reader._blocks) == 2


def test_a_place_is_found_only_for_the_payload_that_was_accepted(tmp_path: Path) -> None:
    kept = Asides(str(tmp_path))
    place = written(tmp_path)[0]
    kept.keep(attempt(1), "abc", place)
    asked = [(attempt(1), "abd"), (attempt(2), "abc"), (attempt(1, new_run_id()), "abc"), (attempt(1), "abc")]
    assert kept.take(asked) == [None, None, None, place]


def test_a_file_goes_when_the_last_of_its_slices_was_loaded(tmp_path: Path) -> None:
    kept = Asides(str(tmp_path))
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


def test_no_more_is_set_aside_than_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Asides(str(tmp_path))
    assert kept.room() == str(tmp_path)
    monkeypatch.setattr(aside, "_MOST_BYTES", 1)
    kept.keep(attempt(1), "abc", written(tmp_path)[0])
    assert kept.room() is None
    kept.take([(attempt(1), "abc")])
    assert kept.room() is None
    kept.take([])
    assert kept.room() == str(tmp_path)


def session(master: str, scratch: Path) -> Any:
    conf = SimpleNamespace(get={"spark.local.dir": str(scratch)}.get)
    return SimpleNamespace(_sc=SimpleNamespace(master=master, getConf=lambda: conf))


def test_the_place_is_gone_with_the_run_and_so_is_what_the_dead_left(tmp_path: Path) -> None:
    dead, alive, other = (tmp_path / name for name in ("penstock-rows-999999999-x", "penstock-rows-1-x", "spark-x"))
    for folder in (dead, alive, other):
        folder.mkdir()
        (folder / "file").touch()
    with set_aside(session("local[2]", tmp_path)) as kept:
        assert kept is not None
        room = Path(str(kept.room()))
        assert room.name.startswith(f"penstock-rows-{os.getpid()}-")
        (room / "left").touch()
        assert not dead.exists()
    assert {path.name for path in tmp_path.iterdir()} == {alive.name, other.name}


def test_workers_elsewhere_set_nothing_aside(tmp_path: Path) -> None:
    for master in ("spark://host:7077", "yarn"):
        with set_aside(session(master, tmp_path)) as kept:
            assert kept is None
    with set_aside(SimpleNamespace()) as kept:  # type: ignore[arg-type]
        assert kept is None  # Spark Connect
    assert list(tmp_path.iterdir()) == []
