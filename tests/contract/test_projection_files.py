"""The files of the projections: what other tools read directly, what one key costs, what a pass writes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

import builders
from annals import Annals, attempt
from builders import BACKENDS, key
from penstock.lake import open_lake
from penstock.ledger.append import append
from penstock.ledger.events import AuthorityChanged
from penstock.lifecycle import Act
from penstock.partition import AttemptKey
from penstock.projections import files, projector, publish_status
from penstock.projections.manifest import PARTITION_STATUS, Manifest, RowsFile, edges_path
from penstock.projections.rows import DEP_SATISFACTION
from penstock.projections.run_files import _MOST_ALIKE, read_runs, with_rows
from penstock.projections.runs import RUNS
from penstock.projections.system import system_table


@pytest.fixture(params=BACKENDS)
def annals(request: pytest.FixtureRequest) -> Iterator[Annals]:
    with builders.quick_folder() as folder:
        url = lambda: str(request.getfixturevalue("postgres_url"))  # noqa: E731
        with Annals.on(builders.open_database(request.param, folder, url), folder) as made:
            yield made


def tell(annals: Annals, *days: int) -> None:
    """A run that accepts these days, and ends."""
    run_id = annals.start(*days)
    verdicts = [builders.accepted(attempt(run_id, day), annals.actors.token) for day in days]
    annals.actors.validator.judge(verdicts)
    annals.actors.control.finish_run(run_id, annals.actors.token, {})


def published(annals: Annals) -> pa.Table:
    """As any Parquet reader sees it: one file, by its path."""
    return pq.read_table(f"{annals.lake.url}/{PARTITION_STATUS}")


def rows(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: str(row["partition_key"]))


def whole(annals: Annals) -> list[dict[str, Any]]:
    return rows(system_table("partition_status", annals.current()).arrow())


def test_the_published_file_has_one_row_for_each_partition_after_every_pass(annals: Annals) -> None:
    for days in ((1, 2, 3), (2, 3, 4), (3,), (4, 5)):
        tell(annals, *days)
        annals.projector.advance()
        assert rows(published(annals)) == whole(annals)
    assert len(annals.projector.head.read()[1].status_deltas) == 4, "the base was merged: deltas are not tried"
    assert [str(key(day)) for day in range(1, 6)] == [row["partition_key"] for row in rows(published(annals))]
    path = f"{annals.lake.url}/{PARTITION_STATUS}"
    counted = duckdb.connect().execute(f"SELECT count(*), count(DISTINCT partition_key) FROM '{path}'")
    assert counted.fetchall() == [(5, 5)]
    assert len(polars.read_parquet(path, columns=["partition_key"])) == 5
    annals.projector.rebuild()
    assert rows(published(annals)) == whole(annals)


def test_a_large_table_is_published_from_time_to_time_and_at_the_latest_when_nothing_happens(
    annals: Annals, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert publish_status.interval(90_000) == timedelta(minutes=1)
    assert publish_status.interval(10**7) == timedelta(minutes=10)
    monkeypatch.setattr(publish_status, "SMALL", 1)
    tell(annals, 1, 2)
    annals.projector.advance()
    tell(annals, 3)
    annals.projector.advance()
    assert len(published(annals)) == 2, "every pass would write all rows"
    annals.actors.clock.now += publish_status.interval(3)
    assert annals.projector.advance() == 0  # no event is new, the file is behind
    assert rows(published(annals)) == whole(annals)
    seen, _ = annals.projector.head.read()
    annals.actors.clock.now += timedelta(hours=1)
    annals.projector.advance()
    assert annals.projector.head.read()[0] == seen, "nothing was behind, and a manifest was written all the same"


def test_a_publication_that_breaks_leaves_the_old_file_and_the_next_pass_repairs_it(
    annals: Annals, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(annals, 1)
    annals.projector.advance()
    before = rows(published(annals))
    tell(annals, 2)

    def breaks(*_: Any) -> Iterator[pa.Table]:
        yield from ()
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(publish_status, "merged", breaks)
        with pytest.raises(OSError, match="no space"):
            annals.projector.advance()
    assert rows(published(annals)) == before
    annals.projector.advance()
    assert rows(published(annals)) == whole(annals)
    assert len(published(annals)) == 2


def test_an_older_file_of_a_process_that_died_is_replaced(annals: Annals, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow process writes its file when another one has published newer events, and dies before it finds out."""
    slow, quick = annals.projector, annals.another_projector()
    tell(annals, 1)

    def overtaken(point: str) -> None:
        patch.setattr(projector, "reach", lambda point: None)
        older = annals.lake.read(PARTITION_STATUS)
        tell(annals, 2)
        quick.advance()
        with annals.lake.writer(PARTITION_STATUS) as again:
            again.write(older)
            again.commit()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(projector, "reach", overtaken)
        with pytest.raises(KeyboardInterrupt):
            slow.advance()
    assert len(published(annals)) == 1
    annals.another_projector().advance()
    assert rows(published(annals)) == whole(annals)
    assert len(published(annals)) == 2


def test_a_process_that_lives_replaces_an_older_file_within_a_minute(annals: Annals) -> None:
    tell(annals, 1)
    annals.projector.advance()
    older = annals.lake.read(PARTITION_STATUS)
    tell(annals, 2)
    annals.projector.advance()
    for spoilt in (older, b"no Parquet"):
        with annals.lake.writer(PARTITION_STATUS) as again:
            again.write(spoilt)
            again.commit()
        annals.actors.clock.now += timedelta(minutes=1)
        annals.projector.advance()
        assert len(published(annals)) == 2
    annals.lake.delete([PARTITION_STATUS])
    annals.actors.clock.now += timedelta(minutes=1)
    annals.projector.advance()
    assert rows(published(annals)) == whole(annals)


def test_an_event_of_an_older_position_that_is_committed_later_is_published(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Only PostgreSQL gives out positions before transactions commit."""
    database = builders.open_database("postgresql", str(tmp_path), lambda: request.getfixturevalue("postgres_url"))
    began, taken, seen = threading.Event(), threading.Event(), threading.Event()
    with Annals.on(database, str(tmp_path)) as annals:
        attempts = [annals.actors.accept(key(day)) for day in (1, 2)]
        annals.projector.advance()

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
        annals.projector.advance()
        assert [row["available"] for row in rows(published(annals))] == [False, True]
        seen.set()
        threads[1].join()
        annals.projector.advance()
        assert [row["available"] for row in rows(published(annals))] == [False, False]
        assert rows(published(annals)) == whole(annals)


def demote(connection: sa.Connection, demoted: AttemptKey) -> None:
    """Only the event: two demotions would wait for each other's rows."""
    event = AuthorityChanged(demoted.run_id, demoted.partition, 2, Act.DEMOTE)
    append(connection, [event], "operator", builders.NOW)


def test_a_sweep_is_published_at_once(annals: Annals) -> None:
    tell(annals, 1, 2)
    annals.projector.advance()
    status = published(annals)
    stale = status.slice(0, 1).select(["source", "customer_id", "query_name", "logical_date", "materialized_version"])
    stale = stale.append_column("stale_since", pa.array([builders.NOW], pa.timestamp("us", tz="UTC")))
    stale = stale.append_column("stale_reason_code", pa.array(["CODE_CHANGED"]))
    annals.projector.sweep(stale)
    assert [row["stale_reason_code"] for row in rows(published(annals))].count("CODE_CHANGED") == 1


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


def test_a_pass_after_many_runs_reads_and_writes_no_file_of_the_others(annals: Annals) -> None:
    for _ in range(3):
        tell(annals, 1)
        annals.projector.advance()
    _, before = annals.projector.head.read()
    assert [file.rows for file in before.runs] == [1, 1, 1]
    read: list[str] = []
    annals.projector.lake = Noted(annals.lake, read)
    tell(annals, 2)
    annals.projector.advance()
    _, after = annals.projector.head.read()
    assert after.runs[:3] == before.runs
    assert not [path for path in read if "/runs/" in path]
    assert len(annals.tables()["runs"]) == 4


class Noted:
    """A lake that notes what is read from it."""

    def __init__(self, lake: Any, read: list[str]) -> None:
        self._lake, self._read = lake, read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lake, name)

    def read(self, path: str) -> Any:
        self._read.append(path)
        return self._lake.read(path)


def test_a_manifest_of_an_earlier_release_is_read_and_goes_on(annals: Annals) -> None:
    """It names one file of runs, and no published file."""
    tell(annals, 1)
    annals.projector.advance()
    seen, manifest = annals.projector.head.read()
    [file] = manifest.runs
    text = manifest.dumps().decode().replace(f'[["{file.path}",1]]', f'"{file.path}"')
    old = Manifest.loads("x", text.replace(text[text.index(',"published"') :], "}").encode())
    assert (old.runs, old.published) == ((RowsFile(file.path, 0),), None)
    annals.lake.delete([PARTITION_STATUS])
    annals.projector.head.advance(seen, replace(manifest, runs=old.runs, published=None), annals.actors.clock())
    assert annals.another_projector().advance() == 0
    assert len(published(annals)) == 1
    tell(annals, 2)
    annals.projector.advance()
    assert len(annals.tables()["runs"]) == 2


# --- row groups ------------------------------------------------------------------------------------------------------


def test_one_downstream_task_is_found_without_reading_all_edges(
    annals: Annals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edges are in the order of their downstream task, so all but one or two row groups are skipped."""
    assert files.LOOKED_UP <= 10_000
    monkeypatch.setattr(files, "LOOKED_UP", 4)
    tell(annals, *range(1, 13))
    annals.projector.advance()
    _, manifest = annals.projector.head.read()
    [(run_id, [part])] = manifest.parts.items()
    metadata = pq.read_metadata(f"{annals.lake.url}/{edges_path(run_id, part)}")
    at = DEP_SATISFACTION.names.index("downstream_task_key")
    groups = [metadata.row_group(number).column(at).statistics for number in range(metadata.num_row_groups)]
    assert len(groups) == 6
    wanted = f"load:{key(7)}"
    assert len([group for group in groups if group.min <= wanted <= group.max]) == 1
