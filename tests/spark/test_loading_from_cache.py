"""Loads read the rows that validation has cached, if they are still there; the result is the same without them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from penstock import failpoint
from penstock.app import Workspace
from penstock.flow import runner, stages
from penstock.flow.summary import RunSummary
from penstock.lake import open_lake
from penstock.pipeline import load
from penstock.pipeline.extract import extract_locally
from penstock.pipeline.parsed_cache import cache_in_lake
from penstock.source.demo import DemoSource
from penstock.source.protocol import RunContext
from support.workspaces import customer_id, key, open_at, rows_by_partition, run, write_workspace


@pytest.fixture(params=["by workers", "here"])
def staged(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The stager: Spark's workers, or the driver."""
    monkeypatch.setattr(load, "_LOCAL_BYTES", -1 if request.param == "by workers" else 2**20)
    return str(request.param)


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A separate folder: other tests cache rows at the same time."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "scratch"))


def cached_files() -> Iterator[Path]:
    yield from Path(os.environ["SPARK_LOCAL_DIRS"]).glob("penstock-rows-*/*.arrow")


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


@pytest.mark.parametrize("spoilt", ["payloads", "cached rows", "nothing"])
def test_rows_come_from_the_cache_or_else_from_the_payloads(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, staged: str, spoilt: str
) -> None:
    twin = open_at(write_workspace(tmp_path / "twin", customers=3))
    with monkeypatch.context() as patch:
        patch.setattr(runner, "open_cache", lambda _spark, _lake: nullcontext(None))
        run(twin, spark)
    ws = open_at(write_workspace(tmp_path / "ws", customers=3))

    def ruin() -> None:
        if spoilt != "nothing":
            spoil(payloads(ws) if spoilt == "payloads" else [*cached_files()])

    found = run_with(ws, spark, monkeypatch, ruin)
    assert (found.loaded, found.failures) == (6, [])
    assert without_run(ws) == without_run(twin)
    assert [*cached_files()] == []


@pytest.mark.parametrize("spoilt", ["payloads", "cached rows"])
def test_the_cache_of_a_cluster_is_in_the_lake_and_changes_no_row(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, spoilt: str
) -> None:
    twin = open_at(write_workspace(tmp_path / "twin", customers=3))
    run(twin, spark)
    ws = open_at(write_workspace(tmp_path / "ws", customers=3))
    folder = Path(ws.settings.lake, "cache")
    monkeypatch.setattr(runner, "open_cache", lambda _spark, lake: cache_in_lake(open_lake(lake)))

    def ruin() -> None:
        spoil(payloads(ws) if spoilt == "payloads" else [*folder.rglob("*.arrow")])

    found = run_with(ws, spark, monkeypatch, ruin)
    assert (found.loaded, found.failures) == (6, [])
    assert without_run(ws) == without_run(twin)
    assert [*folder.rglob("*.arrow")] == []


def test_when_cache_and_payload_are_damaged_nothing_is_published_and_an_error_is_shown(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, staged: str
) -> None:
    ws = open_at(write_workspace(tmp_path, customers=2))

    def ruin() -> None:
        spoil([*cached_files()])
        spoil([path for path in payloads(ws) if customer_id(1) in str(path)])

    found = run_with(ws, spark, monkeypatch, ruin)
    assert found.loaded == 2
    assert {failure.key.customer_id for failure in found.failures} == {customer_id(1)}
    assert all("is not what was sealed" in failure.message for failure in found.failures)
    assert len(found.failures) == len({failure.key for failure in found.failures}) == 2, "each is reported once"
    page = ws.status.run_page(found.run_id)
    assert page.run["state"] == "FAILED"
    assert [(task["task_key"], task["state"], task["error_class"]) for task in page.failed] == [
        (f"load:{failure.key}", "FAILED", "data") for failure in sorted(found.failures, key=lambda one: one.key)
    ]
    assert {partition.customer_id for partition in rows_by_partition(ws)} == {customer_id(2)}


def test_cached_rows_and_rows_of_an_earlier_run_are_published_together_in_order(
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
    """Workers do not see patches of this process; the job fails before it begins."""
    patch.setattr(load, "run_in_workers", _breaks_down)
    run(workspace, spark, *keys)


def test_rejected_rows_do_not_fill_the_disk(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "BATCH_PARTITIONS", 2)
    monkeypatch.setattr(runner, "_SMALLEST_BATCH", 2)
    ws = open_at(write_workspace(tmp_path / "ws", customers=4, query={"checks": [{"rows": {"min": 100}}]}))
    most: list[int] = []
    found = run_with(ws, spark, monkeypatch, lambda: most.append(len([*cached_files()])))
    assert found.rejected == 8
    assert len(most) == 4
    assert max(most) <= 2  # those of one job with two tasks, not those of all jobs before


def test_odd_values_are_the_same_either_way(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = [
        {"name": "campaign_id", "type": "long", "required": True},
        {"name": "campaign_name", "type": "string"},
        {"name": "clicks", "type": "long"},
        {"name": "price", "type": "decimal(12,4)"},
        {"name": "seen_at", "type": "timestamp"},
        {"name": "on", "type": "date"},
        {"name": "live", "type": "boolean"},
        {"name": "labels", "type": "array<string>"},
        {"name": "spot", "type": "struct<country:string,lat:double>"},
        {"name": "kind", "type": "string", "default": "none"},
    ]
    query = {"fields": fields, "checks": [], "unknown_fields": "keep", "missing_fields": "ignore"}
    odd: dict[str, Any] = {
        "campaign_name": 'NaN \u00fc \u2028 \\ "',
        "price": "12.5000",
        "seen_at": "2024-06-09T23:59:59.999999+02:00",
        "labels": ["a", None],
        "spot": {"country": None},
        "beyond": {"deep": [1, 2.5, None]},
    }

    def rows(self: DemoSource, piece: Any, _make: Any) -> Iterator[dict[str, Any]]:
        number = int(piece.customer) % 10
        yield {"campaign_id": number, "clicks": None, "kind": None}
        yield {"campaign_id": number + 10, **odd}
        if number == 1:  # only one payload of the group has to be read patiently
            yield {"campaign_id": number + 20, "price": 7, "live": True, "on": "2024-02-29"}

    found = []
    for folder in ("cached", "not"):
        ws = open_at(write_workspace(tmp_path / folder, customers=3, query=query))
        with monkeypatch.context() as patch:
            _fetch_here(patch, rows)
            if folder == "not":
                patch.setattr(runner, "open_cache", lambda _spark, _lake: nullcontext(None))
            done = run(ws, spark)
            assert (done.loaded, done.failures) == (6, [])
        found.append(ws.data.vouched("demo.campaign_daily").arrow().drop_columns(["_run_id"]))
    assert found[0].schema == found[1].schema
    assert found[0].equals(found[1])
    assert found[0].num_rows == 14
    assert set(found[0]["kind"].to_pylist()) == {None, "none"}
    assert {text is None for text in found[0]["_extra"].to_pylist()} == {True, False}


def _fetch_here(patch: pytest.MonkeyPatch, rows: Any) -> None:
    """Fetch in this process, where the source can return other rows."""

    def fetch(_spark: Any, extraction: Any, customers: Any, attempts: Any, _report: Any = None) -> list[Any]:
        patch.setattr(DemoSource, "_rows", rows)
        source = DemoSource({}, RunContext(extraction.run_id))
        return [
            outcome
            for attempt in attempts
            for outcome in extract_locally(
                extraction,
                source,
                extraction.queries[attempt.partition.query_name],
                customers[attempt.partition.customer_id],
                [attempt.partition.logical_date],
            )
        ]

    patch.setattr(stages, "extract", fetch)
