"""Loads take the rows that validation has parsed, if they are still there; if not, nothing is different."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from penstock import failpoint
from penstock.app import Workspace
from penstock.flow import runner, stages
from penstock.flow.summary import RunSummary
from penstock.pipeline import load
from workspaces import CAMPAIGNS, customer_id, key, open_at, rows_by_partition, run, write_workspace


@pytest.fixture(params=["by workers", "here"])
def staged(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who stages: Spark's workers, or the driver."""
    monkeypatch.setattr(load, "_HERE_BYTES", -1 if request.param == "by workers" else 2**20)
    return str(request.param)


def files_set_aside() -> Iterator[Path]:
    yield from Path(tempfile.gettempdir()).glob(f"penstock-rows-{os.getpid()}-*/*.arrow")


def payloads(workspace: Workspace) -> list[Path]:
    return [*Path(workspace.settings.lake, "raw").rglob("payload-*")]


def spoil(files: list[Path]) -> None:
    assert files
    for file in files:
        file.write_bytes(file.read_bytes()[::-1])


def run_with(
    workspace: Workspace, spark: Any, monkeypatch: pytest.MonkeyPatch, between: Callable[[], None], **options: Any
) -> RunSummary:
    """A run in which something happens between verdicts and load."""

    def reach(name: str) -> None:
        if name == "run.judged":
            between()
        failpoint.reach(name)

    with monkeypatch.context() as patch:
        patch.setattr(stages, "reach", reach)
        return run(workspace, spark, **options)


def without_run(workspace: Workspace) -> dict[Any, list[dict[str, Any]]]:
    return {
        partition: [row | {"_run_id": ""} for row in rows] for partition, rows in rows_by_partition(workspace).items()
    }


def test_rows_are_taken_from_where_they_were_set_aside(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, staged: str
) -> None:
    twin = open_at(write_workspace(tmp_path / "twin", customers=3))
    run(twin, spark)
    ws = open_at(write_workspace(tmp_path / "ws", customers=3))
    found = run_with(ws, spark, monkeypatch, lambda: spoil(payloads(ws)))
    assert (found.loaded, found.failures) == (6, [])
    assert without_run(ws) == without_run(twin)
    assert [*files_set_aside()] == []


def test_without_them_the_payloads_are_read_to_the_same_rows(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, staged: str
) -> None:
    twin = open_at(write_workspace(tmp_path / "twin", customers=3))
    run(twin, spark)
    ws = open_at(write_workspace(tmp_path / "ws", customers=3))
    found = run_with(ws, spark, monkeypatch, lambda: spoil([*files_set_aside()]))
    assert (found.loaded, found.failures) == (6, [])
    assert without_run(ws) == without_run(twin)


def test_when_both_are_spoilt_nothing_is_published_and_it_is_said(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, staged: str
) -> None:
    ws = open_at(write_workspace(tmp_path, customers=2))

    def ruin() -> None:
        spoil([*files_set_aside()])
        spoil([path for path in payloads(ws) if customer_id(1) in str(path)])

    found = run_with(ws, spark, monkeypatch, ruin)
    assert found.loaded == 2
    assert {failure.key.customer_id for failure in found.failures} == {customer_id(1)}
    assert all("is not what was sealed" in failure.message for failure in found.failures)
    assert {partition.customer_id for partition in rows_by_partition(ws)} == {customer_id(2)}


def test_rows_set_aside_and_rows_of_an_earlier_run_are_published_together_in_order(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, staged: str
) -> None:
    twin = open_at(write_workspace(tmp_path / "twin", customers=5))
    run(twin, spark)
    ws = open_at(write_workspace(tmp_path / "ws", customers=5))
    earlier = [key(2), key(4), key(3, "2024-06-10")]
    with monkeypatch.context() as patch:  # accepted, but its load breaks down
        patch.setattr(load, "stage_part", _breaks_down)
        with pytest.raises(Exception, match="on purpose"):
            run(ws, spark, *earlier) if staged == "here" else _break_workers(ws, spark, earlier, patch)
    assert rows_by_partition(ws) == {}
    found = run(ws, spark)
    assert (found.planned, found.loaded) == (7, 10)
    assert without_run(ws) == without_run(twin)
    assert list(without_run(ws)) == list(without_run(twin))


def _breaks_down(*_: Any) -> Any:
    raise RuntimeError("on purpose")


def _break_workers(workspace: Workspace, spark: Any, keys: list[Any], patch: pytest.MonkeyPatch) -> None:
    """Workers do not see what is patched here; the job is broken before it begins."""
    patch.setattr(load, "spread", _breaks_down)
    run(workspace, spark, *keys)


def test_odd_values_are_the_same_either_way(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = [
        *CAMPAIGNS["fields"],
        {"name": "price", "type": "decimal(12,4)"},
        {"name": "seen_at", "type": "timestamp"},
        {"name": "on", "type": "date"},
        {"name": "live", "type": "boolean"},
        {"name": "labels", "type": "array<string>"},
        {"name": "spot", "type": "struct<country:string,lat:double>"},
        {"name": "kind", "type": "string", "default": "none"},
    ]
    query = {"fields": fields, "unknown_fields": "keep", "missing_fields": "ignore"}
    found = []
    for folder in ("aside", "not"):
        ws = open_at(write_workspace(tmp_path / folder, customers=2, rows=40, query=query))
        with monkeypatch.context() as patch:
            if folder == "not":
                patch.setattr(runner, "set_aside", lambda _spark: nullcontext(None))
            assert run(ws, spark).loaded == 4
        table = ws.vouched("demo.campaign_daily").arrow()
        found.append(table.drop_columns(["_run_id"]))
    assert found[0].schema == found[1].schema
    assert found[0].equals(found[1])
    assert found[0].num_rows == 160
