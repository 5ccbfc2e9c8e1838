"""The files of the projections: their format for other tools, the cost of one key, the writes of a pass."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from ulid import ULID

from penstock.clock import iso
from penstock.lake import open_lake
from penstock.ledger.append import append
from penstock.ledger.events import AuthorityChanged
from penstock.lifecycle import Act
from penstock.partition import AttemptKey, RunId, new_ulid, ulid_time
from penstock.projections import current, files, projector, publish_status
from penstock.projections.fact import START, Cursor
from penstock.projections.input_runs import CONSUMED
from penstock.projections.manifest import (
    PARTITION_STATUS,
    Manifest,
    ManifestPointer,
    ProjectionsLost,
    Published,
    RowsFile,
    edges_path,
    made_at,
    tasks_path,
)
from penstock.projections.rows import DEP_SATISFACTION, TASKS
from penstock.projections.run_files import _MOST_ALIKE, read_runs, with_rows
from penstock.projections.runs import RUNS
from penstock.projections.status_file import FILE
from penstock.projections.system_tables import system_table
from penstock.state.inputs import InputStore
from penstock.state.records import Consumed
from support import builders
from support.builders import BACKENDS, key
from support.ledger_harness import OWNER, LedgerHarness, attempt


@pytest.fixture(params=BACKENDS)
def harness(request: pytest.FixtureRequest) -> Iterator[LedgerHarness]:
    with builders.quick_folder() as folder:
        url = lambda: str(request.getfixturevalue("postgres_url"))  # noqa: E731
        with LedgerHarness.on(builders.open_database(request.param, folder, url), folder) as made:
            yield made


def tell(harness: LedgerHarness, *days: int) -> None:
    """A run that accepts these days, and ends."""
    run_id = harness.start(*days)
    verdicts = [builders.accepted(attempt(run_id, day), harness.actors.token) for day in days]
    harness.actors.validator.judge(verdicts)
    harness.actors.control.finish_run(run_id, harness.actors.token, {})


def published(harness: LedgerHarness) -> pa.Table:
    """As any Parquet reader sees it: one file, by its path."""
    return pq.read_table(f"{harness.lake.url}/{PARTITION_STATUS}")


def rows(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: str(row["partition_key"]))


def whole(harness: LedgerHarness) -> list[dict[str, Any]]:
    return rows(system_table("partition_status", harness.current()).arrow())


def test_the_published_file_has_one_row_for_each_partition_after_every_pass(harness: LedgerHarness) -> None:
    for days in ((1, 2, 3), (2, 3, 4), (3,), (4, 5)):
        tell(harness, *days)
        harness.projector.advance()
        assert rows(published(harness)) == whole(harness)
    assert len(harness.projector.head.read()[1].status_deltas) == 4, "the base was merged: deltas are not tried"
    assert [str(key(day)) for day in range(1, 6)] == [row["partition_key"] for row in rows(published(harness))]
    path = f"{harness.lake.url}/{PARTITION_STATUS}"
    counted = duckdb.connect().execute(f"SELECT count(*), count(DISTINCT partition_key) FROM '{path}'")
    assert counted.fetchall() == [(5, 5)]
    assert len(polars.read_parquet(path, columns=["partition_key"])) == 5
    harness.projector.rebuild()
    assert rows(published(harness)) == whole(harness)


def test_a_large_table_is_published_from_time_to_time_and_at_the_latest_when_nothing_happens(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert publish_status.interval(90_000) == timedelta(minutes=1)
    assert publish_status.interval(10**7) == timedelta(minutes=10)
    monkeypatch.setattr(publish_status, "SMALL", 1)
    tell(harness, 1, 2)
    harness.projector.advance()
    tell(harness, 3)
    harness.projector.advance()
    assert len(published(harness)) == 2, "every pass would write all rows"
    harness.actors.clock.now += publish_status.interval(3)
    assert harness.projector.advance() == 0  # no event is new, the file is behind
    assert rows(published(harness)) == whole(harness)
    seen, _ = harness.projector.head.read()
    harness.actors.clock.now += timedelta(hours=1)
    harness.projector.advance()
    assert harness.projector.head.read()[0] == seen, "nothing was behind, and a manifest was written all the same"


def test_a_publication_that_breaks_leaves_the_old_file_and_the_next_pass_repairs_it(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(harness, 1)
    harness.projector.advance()
    before = rows(published(harness))
    tell(harness, 2)

    def breaks(*_: Any) -> Iterator[pa.Table]:
        yield from ()
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(publish_status, "merged", breaks)
        with pytest.raises(OSError, match="no space"):
            harness.projector.advance()
    assert rows(published(harness)) == before
    harness.projector.advance()
    assert rows(published(harness)) == whole(harness)
    assert len(published(harness)) == 2


def test_an_older_file_of_a_process_that_died_is_replaced(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow process writes its file when another one has published newer events, and dies before it finds out."""
    slow, quick = harness.projector, harness.another_projector()
    tell(harness, 1)

    def overtaken(point: str) -> None:
        patch.setattr(projector, "reach", lambda point: None)
        older = harness.lake.read(PARTITION_STATUS)
        tell(harness, 2)
        quick.advance()
        with harness.lake.writer(PARTITION_STATUS) as again:
            again.write(older)
            again.commit()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(projector, "reach", overtaken)
        with pytest.raises(KeyboardInterrupt):
            slow.advance()
    assert len(published(harness)) == 1
    harness.another_projector().advance()
    assert rows(published(harness)) == whole(harness)
    assert len(published(harness)) == 2


def test_a_process_that_lives_replaces_an_older_file_within_a_minute(harness: LedgerHarness) -> None:
    tell(harness, 1)
    harness.projector.advance()
    older = harness.lake.read(PARTITION_STATUS)
    tell(harness, 2)
    harness.projector.advance()
    for spoilt in (older, b"no Parquet"):
        with harness.lake.writer(PARTITION_STATUS) as again:
            again.write(spoilt)
            again.commit()
        harness.actors.clock.now += timedelta(minutes=1)
        harness.projector.advance()
        assert len(published(harness)) == 2
    harness.lake.delete([PARTITION_STATUS])
    harness.actors.clock.now += timedelta(minutes=1)
    harness.projector.advance()
    assert rows(published(harness)) == whole(harness)


def test_an_event_of_an_older_position_that_is_committed_later_is_published(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Only PostgreSQL assigns positions before transactions commit."""
    database = builders.open_database("postgresql", str(tmp_path), lambda: request.getfixturevalue("postgres_url"))
    began, taken, seen = threading.Event(), threading.Event(), threading.Event()
    with LedgerHarness.on(database, str(tmp_path)) as harness:
        attempts = [harness.actors.accept(key(day)) for day in (1, 2)]
        harness.projector.advance()

        def older(connection: sa.Connection) -> None:
            connection.execute(sa.text("SELECT pg_current_xact_id()"))
            began.set()
            assert taken.wait(20)
            demote(connection, attempts[0])  # an older transaction, a newer position

        def newer(connection: sa.Connection) -> None:
            assert began.wait(20)
            demote(connection, attempts[1])
            taken.set()
            assert seen.wait(20)

        threads = [threading.Thread(target=database.transact, args=(work,)) for work in (older, newer)]
        for thread in threads:
            thread.start()
        threads[0].join()
        harness.projector.advance()
        assert [row["available"] for row in rows(published(harness))] == [False, True]
        seen.set()
        threads[1].join()
        harness.projector.advance()
        assert [row["available"] for row in rows(published(harness))] == [False, False]
        assert rows(published(harness)) == whole(harness)


def demote(connection: sa.Connection, demoted: AttemptKey) -> None:
    """Only the event: two demotions would wait for each other's rows."""
    event = AuthorityChanged(demoted.run_id, demoted.partition, 2, Act.DEMOTE)
    append(connection, [event], "operator", builders.NOW)


def test_a_sweep_is_published_at_once(harness: LedgerHarness) -> None:
    tell(harness, 1, 2)
    harness.projector.advance()
    status = published(harness)
    stale = status.slice(0, 1).select(["source", "customer_id", "query_name", "logical_date", "materialized_version"])
    stale = stale.append_column("stale_since", pa.array([builders.NOW], pa.timestamp("us", tz="UTC")))
    stale = stale.append_column("stale_reason_code", pa.array(["CODE_CHANGED"]))
    harness.projector.sweep(stale)
    assert [row["stale_reason_code"] for row in rows(published(harness))].count("CODE_CHANGED") == 1


# --- runs ------------------------------------------------------------------------------------------------------------


def run_rows(*names: str, state: str = "RUNNING") -> dict[str, dict[str, Any]]:
    counts = {field.name: 0 for field in RUNS if field.name.startswith("tasks_")}
    fixed = {"tenant_id": "a", "workspace_id": "b", "state": state, "first_position": 1, "row_version": "x", **counts}
    return {name: {"run_id": name, **fixed} for name in names}


def test_what_a_pass_writes_of_runs_does_not_grow_with_their_number(tmp_path: Path) -> None:
    """Each pass adds one run: the rows written are a few times the runs, not their square."""
    lake, kept, written = open_lake(f"{tmp_path}/lake"), tuple[RowsFile, ...](), 0
    for number in range(600):
        kept = with_rows(lake, kept, run_rows(f"{number:026d}"))
        written += kept[-1].rows
        assert len(kept) <= 3 * _MOST_ALIKE
    assert written <= 600 * 3
    kept = with_rows(lake, kept, run_rows(f"{7:026d}", state="SUCCEEDED"))
    found = read_runs(lake, kept)
    assert found["run_id"].to_pylist() == [f"{number:026d}" for number in range(600)]
    assert [row["run_id"] for row in found.to_pylist() if row["state"] == "SUCCEEDED"] == [f"{7:026d}"]


def test_a_pass_after_many_runs_reads_and_writes_no_file_of_the_others(harness: LedgerHarness) -> None:
    for _ in range(3):
        tell(harness, 1)
        harness.projector.advance()
    _, before = harness.projector.head.read()
    assert [file.rows for file in before.runs] == [1, 1, 1]
    read: list[str] = []
    harness.projector.lake = Noted(harness.lake, read)
    tell(harness, 2)
    harness.projector.advance()
    _, after = harness.projector.head.read()
    assert after.runs[:3] == before.runs
    assert not [path for path in read if "/runs/" in path]
    assert len(harness.tables()["runs"]) == 4


class Noted:
    """A lake that records its reads."""

    def __init__(self, lake: Any, read: list[str]) -> None:
        self._lake, self._read = lake, read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lake, name)

    def read(self, path: str) -> Any:
        self._read.append(path)
        return self._lake.read(path)


def test_a_manifest_of_an_earlier_release_is_read_and_goes_on(harness: LedgerHarness) -> None:
    """It names one file of runs, and no published file."""
    tell(harness, 1)
    harness.projector.advance()
    seen, manifest = harness.projector.head.read()
    [file] = manifest.runs
    text = manifest.dumps().decode().replace(f'[["{file.path}",1]]', f'"{file.path}"')
    old = Manifest.loads("x", text.replace(text[text.index(',"published"') :], "}").encode())
    assert (old.runs, old.published) == ((RowsFile(file.path, 0),), None)
    harness.lake.delete([PARTITION_STATUS])
    harness.projector.head.advance(seen, replace(manifest, runs=old.runs, published=None), harness.actors.clock())
    assert harness.another_projector().advance() == 0
    assert len(published(harness)) == 1
    tell(harness, 2)
    harness.projector.advance()
    assert len(harness.tables()["runs"]) == 2


# --- row groups ------------------------------------------------------------------------------------------------------


def test_one_downstream_task_is_found_without_reading_all_edges(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edges are in the order of their downstream task, so all but one or two row groups are skipped."""
    assert files.LOOKED_UP <= 10_000
    monkeypatch.setattr(files, "LOOKED_UP", 4)
    tell(harness, *range(1, 13))
    harness.projector.advance()
    _, manifest = harness.projector.head.read()
    [(run_id, [part])] = manifest.parts.items()
    metadata = pq.read_metadata(f"{harness.lake.url}/{edges_path(run_id, part)}")
    at = DEP_SATISFACTION.names.index("downstream_task_key")
    groups = [metadata.row_group(number).column(at).statistics for number in range(metadata.num_row_groups)]
    assert len(groups) == 6
    wanted = f"load:{key(7)}"
    assert len([group for group in groups if group.min <= wanted <= group.max]) == 1


# --- the file format for other readers -------------------------------------------------------------------------------

MAY_BE_EMPTY = {
    "tasks": {"asset_key", "partition_key", "error_class", "ready_at", "started_at", "finished_at"},
    "dep_satisfaction": {"resolution", "satisfied_at", "satisfying_attempt"},
    "runs": {"planned_at", "cancel_requested_at", "finished_at"},
    "partition_status": {*FILE.names}
    - {"tenant_id", "workspace_id", "asset_key", "partition_key", "partition_values", "row_position", "row_version"}
    - {"source", "customer_id", "query_name", "logical_date"},
    "consumed": set[str](),
}


def derive(harness: LedgerHarness, day: int, from_day: int, run_id: RunId) -> None:
    """A run that derives this day from an accepted run of another, and ends."""
    mine = harness.start(day)
    InputStore(harness.actors.database).record(
        {attempt(mine, day): [Consumed(key(from_day), run_id, f"content-{run_id}")]}
    )
    harness.actors.validator.judge([builders.accepted(attempt(mine, day), harness.actors.token)])
    harness.actors.control.finish_run(mine, harness.actors.token, {})


def test_files_say_which_of_their_columns_are_always_filled(harness: LedgerHarness) -> None:
    tell(harness, 1)
    [made] = harness.actors.reader.attempts(key(1))
    derive(harness, 2, 1, made.run_id)
    harness.projector.advance()
    found = {}
    for path in harness.projector.head.read()[1].files():
        schema = pq.read_schema(f"{harness.lake.url}/{path}")
        found[path.split("/")[1]] = {field.name for field in schema if field.nullable}
    assert found == MAY_BE_EMPTY
    kept = system_table("tasks", harness.current()).arrow().schema
    assert (kept.names, CONSUMED.names[4:6]) == (TASKS.names, ["run_id", "input_source"])


def test_a_file_of_pieces_has_the_token_of_its_writer_and_no_splinters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_ROW_GROUP", 4)
    lake, schema = open_lake(f"{tmp_path}/lake"), pa.schema([("n", pa.int64())])
    whole = pa.table({"n": range(12)}, schema=schema)
    pieces = [whole.slice(at, 3) for at in range(0, 9, 3)] + [whole.slice(9, 3)]
    files.write_pieces(lake, "a.parquet", schema, pieces, "mine")
    files.write_pieces(lake, "b.parquet", schema, [whole.slice(0, 4), whole.slice(4, 1)])
    files.write_pieces(lake, "none.parquet", schema, [])
    lake.create("c.parquet", b"no Parquet")
    assert [files.token_of(lake, f"{name}.parquet") for name in "abcd"] == ["mine", None, None, None]
    sizes = {}
    for name in ("a", "b", "none"):
        found = pq.read_metadata(f"{lake.url}/{name}.parquet")
        sizes[name] = [found.row_group(at).num_rows for at in range(found.num_row_groups)]
    assert sizes == {"a": [6, 6], "b": [4, 1], "none": []}
    assert files.read(lake, "a.parquet").equals(whole)
    assert files.rows(lake, "a.parquet") == 12
    assert files.read_all(lake, ["a.parquet", "b.parquet"], schema)["n"].to_pylist() == [*range(12), *range(5)]
    assert files.read_all(lake, [], schema).equals(schema.empty_table())
    with pytest.raises(ProjectionsLost, match=r"d\.parquet is missing"):
        files.rows(lake, "d.parquet")


def test_only_what_is_wrong_with_a_file_is_called_damage() -> None:
    with pytest.raises(OSError, match="no space left"), files.named("x"):
        raise OSError(28, "no space left on device")
    for error in (OSError("Couldn't deserialize thrift"), pa.ArrowInvalid("bytes"), ValueError("x"), EOFError()):
        with pytest.raises(ProjectionsLost, match="x is damaged"), files.named("x"):
            raise error
    with pytest.raises(ProjectionsLost, match="x is missing"), files.named("x"):
        raise FileNotFoundError(2, "gone")


def test_of_several_parts_the_last_one_that_has_a_key_holds() -> None:
    parts = [pa.table({"k": names, "n": [number] * len(names)}) for number, names in enumerate(["abc", "bd", "ba"])]
    parts = [part.set_column(0, "k", pa.array(part["k"].to_pylist(), pa.string())) for part in parts]
    found = files.newest(parts, "k")
    assert list(zip(found["k"].to_pylist(), found["n"].to_pylist(), strict=True)) == [
        ("c", 0), ("d", 1), ("b", 2), ("a", 2),
    ]  # fmt: skip
    assert files.newest(parts[:1], "k").equals(parts[0])


# --- manifests -------------------------------------------------------------------------------------------------------

FULL = Manifest(
    cursor=Cursor(7, 9),
    unknown={"Unheard/1": 2},
    status_base="base",
    status_deltas=("d1", "d2"),
    consumed=("c1",),
    runs=(RowsFile("r1", 3), RowsFile("r2", 1)),
    parts={"A": ("a1", "a2"), "B": ("b1",)},
    dropped={"old": iso(builders.NOW)},
    published=Published(iso(builders.NOW), Cursor(5, 6), "token"),
)


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert Manifest.loads("x", FULL.dumps()) == FULL
    assert Manifest.loads("x", Manifest().dumps()) == Manifest()
    assert (Manifest().cursor, START) == (Cursor(0, 0), Cursor(0, 0))
    paths = {
        path(run, name) for run, names in FULL.parts.items() for name in names for path in (tasks_path, edges_path)
    }
    assert FULL.files() == {"base", "d1", "d2", "c1", "r1", "r2", *paths}
    assert Manifest().files() == set()


@pytest.mark.parametrize(
    ("written", "spoilt"),
    [
        (b'"status_base":"base"', b'"status_base":1'),
        (b'["d1","d2"]', b'["d1",2]'),
        (b'["c1"]', b"[null]"),
        (b'[["r1",3],["r2",1]]', b'{"r1":3}'),
        (b'["r2",1]', b'["r2"]'),
        (b'["r1",3]', b"[1,3]"),
        (b'["a1","a2"]', b'["a1",2]'),
        (b'["a1","a2"]', b"null"),
        (b'"cursor":[7,9]', b'"cursor":[7,null]'),
        (b'"Unheard/1":2', b'"Unheard/1":"many"'),
        (b'"token"]', b"3]"),
        (b'"format":1', b'"format":2'),
        (b'"dropped"', b'"droped"'),
    ],
)
def test_a_manifest_with_something_else_in_it_is_lost(written: bytes, spoilt: bytes) -> None:
    text = FULL.dumps()
    assert text.count(written) == 1
    with pytest.raises(ProjectionsLost, match="the projection file x "):
        Manifest.loads("x", text.replace(written, spoilt))


def test_a_manifest_remembers_what_its_successor_does_without_for_an_hour() -> None:
    new = replace(FULL, status_deltas=("d2",), runs=(RowsFile("r3", 4),), parts={"A": ("a2", "a3"), "B": ("b1",)})
    hour = timedelta(hours=1)
    kept = FULL.after(new, "seen", builders.NOW + hour)
    left = {"d1", "r1", "r2", tasks_path("A", "a1"), edges_path("A", "a1"), "seen"}
    assert kept == replace(new, dropped={"old": iso(builders.NOW), **dict.fromkeys(left, iso(builders.NOW + hour))})
    later = builders.NOW + hour + timedelta(microseconds=1)
    assert (FULL.deletable(builders.NOW + hour), FULL.deletable(later)) == (set(), {"old"})
    assert FULL.after(FULL, None, later).dropped == {}
    gone = FULL.after(replace(FULL, parts={}), None, builders.NOW).dropped
    assert {*gone} - {"old"} == {path for path in FULL.files() if "run_id=" in path}


def test_the_manifest_is_replaced_by_whoever_has_seen_it_and_by_nobody_else(harness: LedgerHarness) -> None:
    head = ManifestPointer(harness.actors.database, harness.lake)
    assert head.read() == (None, Manifest())
    first = head.advance(None, FULL, builders.NOW)
    assert head.read() == (first, FULL)
    assert head.advance(None, Manifest(), builders.NOW) is None
    second = head.advance(first, replace(FULL, consumed=()), builders.NOW)
    assert head.advance(first, Manifest(), builders.NOW) is None
    assert head.read() == (second, replace(FULL, consumed=()))
    assert {entry.path for entry in harness.lake.list("projections/manifest")} == {first, second}
    assert head.read((second, FULL)) == (second, FULL), "it was read though it was known"
    assert head.read((first, FULL)) == (second, replace(FULL, consumed=()))


def test_a_file_is_as_old_as_the_name_that_it_was_given() -> None:
    made, now = datetime(2024, 6, 1, tzinfo=UTC), str(ULID.from_datetime(builders.NOW))
    name = str(ULID.from_datetime(made))
    for path in (f"projections/runs/{name}.parquet", f"projections/tasks/run_id={now}/{name}.parquet"):
        assert made_at(path, now) == made.timestamp()
    assert made_at(PARTITION_STATUS, now) == builders.NOW.timestamp()


def test_a_rebuild_deletes_what_was_left_over_a_day_ago_and_nothing_younger(harness: LedgerHarness) -> None:
    tell(harness, 1)
    harness.projector.advance()
    harness.actors.clock.now = datetime.now(UTC)  # names of files are of today
    names = [str(ULID.from_datetime(harness.actors.clock.now - timedelta(hours=hours))) for hours in (23, 25)]
    young, old = (f"projections/runs/{name}.parquet" for name in names)
    deep = f"projections/tasks/run_id=x/{names[1]}.parquet"
    for path in (young, old, deep, "projections/notes.parquet", f"projections/manifest/{names[1]}.json"):
        harness.lake.create(path, b"left over")
    harness.projector.rebuild()
    there = {entry.path for entry in harness.lake.list("projections")}
    assert {young, "projections/notes.parquet", f"projections/manifest/{names[1]}.json", PARTITION_STATUS} <= there
    assert not {old, deep} & there
    _, manifest = harness.projector.head.read()
    assert manifest.files() <= there
    assert len(harness.tables()["runs"]) == 1


# --- passes ----------------------------------------------------------------------------------------------------------


def test_deltas_become_a_base_when_they_are_many(harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projector, "_MOST_DELTAS", 2)
    found = []
    for day in (1, 2, 3, 4):
        tell(harness, day)
        harness.projector.advance()
        _, manifest = harness.projector.head.read()
        found.append((manifest.status_base is not None, len(manifest.status_deltas)))
        assert rows(published(harness)) == whole(harness)
        assert len(whole(harness)) == day
    assert found == [(False, 1), (False, 2), (True, 0), (True, 1)]


def test_many_deltas_beside_a_large_base_become_one_delta(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base of many rows is not rewritten for a few rows, however many passes wrote them."""
    tell(harness, *range(1, 11))
    harness.projector.rebuild()
    base = harness.projector.head.read()[1].status_base
    monkeypatch.setattr(projector, "_MOST_DELTAS", 2)
    monkeypatch.setattr(projector, "_SMALL_BASE", 9)
    found = []
    for day in (11, 12, 11, 13, 14):
        tell(harness, day)
        harness.projector.advance()
        _, manifest = harness.projector.head.read()
        found.append(len(manifest.status_deltas))
        assert manifest.status_base == base
        assert rows(published(harness)) == whole(harness)
    assert found == [1, 2, 1, 2, 1]
    assert [files.rows(harness.lake, path) for path in manifest.status_deltas] == [4]


def test_the_deltas_of_a_large_base_may_be_larger() -> None:
    bases = [0, 1_000, 300_000, 900_000, 2_000_000, 10_000_000, 20_000_000, 100_000_000]
    waiting = [projector.most_waiting(base) for base in bases]
    assert waiting == [50_000, 50_000, 60_000, 180_000, 200_000, 500_000, 500_000, 500_000]
    assert all(base / most <= 20 for base, most in zip(bases, waiting, strict=True) if base <= 10_000_000)


@pytest.mark.parametrize(
    ("base", "smallest", "merged"),
    [(10, 3, True), (10, 4, False), (19, 0, True), (20, 0, False)],
    ids=["worth it", "not worth it", "above a fifth of the base", "a fifth of the base"],
)
def test_deltas_become_a_base_when_their_rows_are_many(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch, base: int, smallest: int, merged: bool
) -> None:
    """More rows wait than the least that is worth it, and than a fifth of the base."""
    tell(harness, *range(1, base + 1))
    harness.projector.rebuild()
    monkeypatch.setattr(projector, "_SMALLEST_COMPACTION", smallest)
    tell(harness, 28, 29)
    harness.projector.advance()
    assert len(harness.projector.head.read()[1].status_deltas) == 1
    tell(harness, 29, 30)
    harness.projector.advance()
    _, manifest = harness.projector.head.read()
    assert (manifest.status_deltas == ()) is merged
    assert rows(published(harness)) == whole(harness)


def test_what_went_into_tasks_is_kept_in_few_files(harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projector, "_MOST_DELTAS", 2)
    tell(harness, 1)
    [made] = harness.actors.reader.attempts(key(1))
    counts = []
    for day in (2, 3, 4):
        derive(harness, day, 1, made.run_id)
        [fresh] = harness.current().consumed()[-1:]
        assert isinstance(fresh, pa.Table)
        assert [row["logical_date"].day for row in fresh.to_pylist()] == [day]
        harness.projector.advance()
        counts.append(len(harness.projector.head.read()[1].consumed))
    tell(harness, 5)
    harness.projector.advance()
    [kept] = harness.current().consumed()
    assert counts == [1, 2, 1]
    assert sorted(row["logical_date"].day for row in kept.to_table().to_pylist()) == [2, 3, 4]


def test_news_are_read_page_by_page_to_the_end(harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    tell(harness, 1, 2)
    everything = harness.ledger.after(START, 1000)[0]
    for size in (1, 2, len(everything) - 1, len(everything), len(everything) + 1):
        monkeypatch.setattr(current, "PAGE", size)
        assert harness.current().news == everything


def test_a_run_that_somebody_else_has_advanced_is_not_taken_from_memory(harness: LedgerHarness) -> None:
    run_id = harness.start(1, 2)
    harness.projector.advance()
    harness.actors.validator.judge([builders.accepted(attempt(run_id, 1), harness.actors.token)])
    harness.another_projector().advance()
    harness.actors.validator.judge([builders.accepted(attempt(run_id, 2), harness.actors.token)])
    harness.projector.advance()
    told = harness.tables()
    assert [row["state"] for row in told["tasks"] if row["stage"] == "validate"] == ["SUCCEEDED", "SUCCEEDED"]
    harness.projector.rebuild()
    assert harness.tables() == told


def test_a_run_stays_in_memory_until_it_is_over(harness: LedgerHarness) -> None:
    run_id = harness.start(1, 2)
    harness.projector.advance()
    counts = []
    for day in (1, 2):
        harness.actors.validator.judge([builders.accepted(attempt(run_id, day), harness.actors.token)])
        harness.projector.advance()
        parts = harness.projector.head.read()[1].parts[run_id]
        counts.append([files.rows(harness.lake, tasks_path(run_id, name)) for name in parts])
    assert counts == [[6, 2], [6, 2, 2]]
    stepwise = harness.tables()
    harness.another_projector().rebuild()
    assert harness.tables() == stepwise
    harness.actors.control.finish_run(run_id, harness.actors.token, {})
    harness.projector.advance()
    [part] = harness.projector.head.read()[1].parts[run_id]
    assert files.rows(harness.lake, tasks_path(run_id, part)) == 6


def test_parts_of_a_run_become_one_when_they_are_many(harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projector, "_MOST_PARTS", 2)
    run_id = harness.start(1, 2, 3)
    harness.projector.advance()
    counts = []
    for day in (1, 2, 3):
        harness.actors.validator.judge([builders.accepted(attempt(run_id, day), harness.actors.token)])
        harness.projector.advance()
        counts.append(len(harness.projector.head.read()[1].parts[run_id]))
    assert counts == [2, 1, 2]
    stepwise = harness.tables()
    harness.projector.rebuild()
    assert harness.tables() == stepwise


# --- when the published file is due ----------------------------------------------------------------------------------


def test_the_published_file_is_due_when_it_is_behind_and_its_time_has_come(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(harness, 1, 2, 3)
    harness.projector.advance()
    lake, now = harness.lake, harness.actors.clock.now
    _, manifest = harness.projector.head.read()
    assert manifest.published is not None

    def due(since: timedelta, *, behind: bool = True, verify: bool = False, small: int = 0) -> bool:
        monkeypatch.setattr(publish_status, "SMALL", small)
        assert manifest.published is not None
        last = manifest.published._replace(at=iso(now - since), cursor=START if behind else manifest.cursor)
        return publish_status.is_due(lake, replace(manifest, published=last), now, verify=verify)

    moment, tick = timedelta(0), timedelta(microseconds=1)
    assert publish_status.is_due(lake, replace(manifest, published=None), now, verify=False)
    assert not due(timedelta(days=1), behind=False)
    assert not due(timedelta(days=1), behind=False, verify=True)
    assert (due(moment, small=3), due(moment, small=2)) == (True, False)
    wait = publish_status.interval(3)
    assert wait == timedelta(milliseconds=2)
    assert (due(wait), due(wait - tick)) == (True, False)
    lake.delete([PARTITION_STATUS])
    assert not due(moment, behind=False)
    assert due(moment, behind=False, verify=True)
    lake.delete(manifest.status_deltas)
    assert due(timedelta(minutes=10)), "ten minutes are enough, whatever the files say"


def test_a_base_without_deltas_is_published_as_it_is_and_one_with_deltas_is_not(harness: LedgerHarness) -> None:
    tell(harness, 1, 2)
    harness.projector.rebuild()
    _, manifest = harness.projector.head.read()
    assert manifest.status_base is not None
    assert harness.lake.read(PARTITION_STATUS) == harness.lake.read(manifest.status_base)
    tell(harness, 3)
    harness.projector.advance()
    _, manifest = harness.projector.head.read()
    assert manifest.published is not None
    assert manifest.status_base is not None
    assert harness.lake.read(PARTITION_STATUS) != harness.lake.read(manifest.status_base)
    assert files.token_of(harness.lake, PARTITION_STATUS) == manifest.published.token
    assert manifest.published == Published(iso(harness.actors.clock.now), manifest.cursor, manifest.published.token)
    bare = f"projections/partition_status/{new_ulid()}.parquet"  # of an earlier release: without a token
    files.write(harness.lake, bare, published(harness))
    after = publish_status.publish(
        harness.lake, replace(manifest, status_base=bare, status_deltas=()), OWNER, builders.NOW
    )
    assert after.published is not None
    assert files.token_of(harness.lake, PARTITION_STATUS) == after.published.token
    assert rows(published(harness)) == whole(harness)


# --- sizes of the files of runs --------------------------------------------------------------------------------------


def test_a_moment_sorts_between_the_names_of_earlier_and_later_runs() -> None:
    at = datetime(2024, 6, 1, 12, tzinfo=UTC)

    def name(moment: datetime, letter: str) -> str:
        return str(ULID.from_datetime(moment))[:10] + letter * 16

    for moment in (at, at + timedelta(milliseconds=32 * 31), at + timedelta(milliseconds=7)):
        found, tick = ulid_time(moment), timedelta(milliseconds=1)
        assert name(moment - tick, "Z") < found <= name(moment, "0")


def test_files_of_runs_are_merged_with_as_many_of_their_size_and_with_no_larger_ones(tmp_path: Path) -> None:
    lake = open_lake(f"{tmp_path}/lake")

    def kept(*sizes: int) -> tuple[RowsFile, ...]:
        found, number = [], 0
        for size in sizes:
            [file] = with_rows(lake, (), run_rows(*(f"{number + at:026d}" for at in range(size))))
            assert file.rows == size
            found.append(file)
            number += size
        return tuple(found)

    def sizes_after(*sizes: int, more: int = 1) -> list[int]:
        rows = run_rows(*(f"9{at:025d}" for at in range(more)))
        return [file.rows for file in with_rows(lake, kept(*sizes), rows)]

    n = _MOST_ALIKE
    assert sizes_after(*[1] * (n - 1)) == [1] * n
    assert sizes_after(*[1] * n) == [n + 1]
    assert sizes_after(*[n - 1] * n) == [n * (n - 1) + 1]
    assert sizes_after(*[n] * n) == [*[n] * n, 1]
    assert sizes_after(*[n] * n, more=n) == [n * n + n]
    assert sizes_after(n, *[1] * n) == [n, n + 1]
    assert sizes_after(*[n] * n, *[1] * n) == [n * n + n + 1]
    assert sizes_after(n * n, *[n] * n, *[1] * n) == [n * n, n * n + n + 1]


def test_the_row_of_a_run_that_is_written_again_holds_over_the_merged_one(tmp_path: Path) -> None:
    lake, kept = open_lake(f"{tmp_path}/lake"), tuple[RowsFile, ...]()
    for number in range(_MOST_ALIKE):
        kept = with_rows(lake, kept, run_rows(f"{number:026d}"))
    kept = with_rows(lake, kept, run_rows(f"{3:026d}", state="SUCCEEDED"))
    assert [file.rows for file in kept] == [_MOST_ALIKE]
    states = read_runs(lake, kept, ["run_id", "state"]).to_pylist()
    assert [row["state"] for row in states] == ["RUNNING"] * 3 + ["SUCCEEDED"] + ["RUNNING"] * 12
    assert read_runs(lake, (), ["run_id"]).schema.names == ["run_id"]
    assert read_runs(lake, ()).equals(RUNS.empty_table())
