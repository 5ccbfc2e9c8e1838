"""Damaged projections: every command names the file and the command that rebuilds them, and that command works."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from penstock.app import Workspace
from penstock.cli.main import main
from penstock.control.select import Selection
from penstock.lake import open_lake
from penstock.lake.protocol import LakeUnavailable
from penstock.partition import AssetKind
from penstock.projections.current import Current
from penstock.projections.manifest import Manifest, ProjectionsLost
from support.old_workspaces import unpack
from support.workspaces import open_at

KEY = "models/all/daily_spend/2024-06-01"


def lose(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def garble(path: Path) -> None:
    path.write_bytes(b"garbage")


def of_another_format(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"format":1', b'"format":99'))


def of_another_shape(path: Path) -> None:
    path.write_bytes(b'{"format": 1, "cursor": null}')


SPOILS = (lose, truncate, garble)
READERS: dict[str, Sequence[Sequence[str]]] = {
    "manifest": (
        ("status",), ("missing",), ("failed",), ("stale",), ("why", KEY), ("runs", "list"), ("runs", "show", "RUN"),
        ("sql", "SELECT * FROM system.runs"), ("ledger", "export", "--older-than", "1", "--dry-run"),
    ),
    "runs": (("runs", "list"), ("runs", "show", "RUN"), ("sql", "SELECT * FROM system.runs")),
    "partition_status": (
        ("status",), ("stale", "--sweep"), ("why", KEY), ("sql", "SELECT * FROM system.partition_status"),
    ),
    "status_base": (
        ("status",), ("stale", "--sweep"), ("why", KEY), ("sql", "SELECT * FROM system.partition_status"),
    ),
    "tasks": (("runs", "show", "RUN"), ("sql", "SELECT * FROM system.tasks")),
    "dep_satisfaction": (("runs", "show", "RUN"), ("sql", "SELECT * FROM system.dep_satisfaction")),
    "consumed": (("status",), ("stale",)),
}  # fmt: skip
FOLDERS = {"status_base": "partition_status"}
CASES = [(kind, spoil) for kind in READERS for spoil in SPOILS] + [
    ("manifest", of_another_format),
    ("manifest", of_another_shape),
]


@pytest.fixture
def penstock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Run a command in this process; returns its exit code and stderr. Unexpected errors are raised."""

    def invoke(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["penstock", *arguments, "--workspace", str(tmp_path)])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr().err

    return invoke


def files_of(ws: Workspace, kind: str) -> list[Path]:
    """The files of one kind that the manifest refers to, and the manifest itself."""
    if kind == "status_base":
        ws.status.sweep()
    path, manifest = ws.status.projector.head.read()
    assert (manifest.status_base is not None) is (kind == "status_base")
    found = [
        file for file in [*manifest.files(), str(path)] if file.startswith(f"projections/{FOLDERS.get(kind, kind)}/")
    ]
    assert found
    return [Path(ws.context.lake.url, file) for file in found]


@pytest.mark.parametrize(("kind", "spoil"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_a_damaged_projection_is_named_with_the_command_that_makes_it_again(
    kind: str, spoil: Callable[[Path], None], tmp_path: Path, penstock: Callable[..., tuple[int, str]]
) -> None:
    ws = open_at(unpack("0004", tmp_path))
    ws.status.projector.advance()
    [run] = [row["run_id"] for row in ws.status.current().runs().to_pylist()]
    before = ws.status.board(Selection()).everything()
    for path in files_of(ws, kind):
        spoil(path)
    for command in READERS[kind]:
        code, words = penstock(*(run if word == "RUN" else word for word in command))
        assert code == 1, (command, words)
        assert f"the projection file projections/{FOLDERS.get(kind, kind)}/" in words, command
        assert "`penstock ledger rebuild` rebuilds all projections" in words
        assert words.count("\n") == 1, words

    assert penstock("ledger", "rebuild")[0] == 0
    for command in READERS[kind]:
        assert penstock(*(run if word == "RUN" else word for word in command))[0] == 0, command
    assert ws.status.board(Selection()).everything() == before
    assert [row["run_id"] for row in ws.status.current().runs().to_pylist()] == [run]
    ws.context.database.close()


@pytest.mark.parametrize("kind", READERS)
def test_a_run_plans_and_ends_with_damaged_projections(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ws = open_at(unpack("0004", tmp_path))
    for path in files_of(ws, kind):
        garble(path)
    plan = ws.plans.preview(Selection())
    assert {(item.key.kind is AssetKind.DERIVED, str(item.key.logical_date)) for item in plan.items} == {
        (False, "2024-06-03"),
        (True, "2024-06-03"),
    }
    if kind in ("manifest", "partition_status", "status_base", "consumed"):
        [record] = [found for found in caplog.records if found.message == "models.stale_unknown"]
        assert "penstock ledger rebuild" in record.__dict__["facts"]["error"]
    ws.status.advance()  # reports it without an error


def test_a_manifest_whose_row_names_nothing_is_lost(tmp_path: Path) -> None:
    ws = open_at(unpack("0004", tmp_path))
    path, _ = ws.status.projector.head.read()
    assert path is not None
    ws.context.lake.delete([path])
    with pytest.raises(ProjectionsLost, match=f"the projection file {path} is missing"):
        ws.status.current()
    assert ws.ledger.rebuild() > 0
    assert ws.status.current().manifest.runs is not None


def broken_stream() -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": [1]})
        raise OSError("AWS Error UNKNOWN (HTTP status 500) during HeadObject operation")

    return pa.RecordBatchReader.from_batches(pa.schema({"n": pa.int64()}), batches())


def test_a_scan_that_the_storage_broke_off_may_be_repeated(s3_url: str) -> None:
    nothing: Any = None
    current = Current(open_lake(s3_url), nothing, nothing, ("acme", "ads"), Manifest(), ())
    engine = duckdb.connect()
    engine.register("base", broken_stream())
    with pytest.raises(LakeUnavailable, match="HTTP status 500"), current.readable():
        engine.execute("SELECT count(n) FROM base").fetchall()
    with pytest.raises(duckdb.BinderException), current.readable():
        engine.execute("SELECT no_such_column FROM range(1)")
