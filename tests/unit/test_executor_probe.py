"""The probe of executors: the report of a worker, and the error of the driver. `tests/cluster` runs it on a cluster."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.config.settings import Settings, SourceSettings
from penstock.errors import ErrorClass
from penstock.lake import open_lake
from penstock.lake.protocol import LakeUnavailable
from penstock.pipeline import executor_probe
from penstock.pipeline.executor_checks import DRIVER_OBJECT, ExecutorChecks
from penstock.pipeline.executor_probe import NEEDED, ExecutorReport, Probe, require_fit
from penstock.pipeline.job_errors import ClusterUnfit
from support.workspaces import open_at, write_workspace


class Broken:
    """A source whose constructor fails like code that nobody tested on executors."""

    def __init__(self, options: Any, context: Any) -> None:
        raise KeyError(os.environ.get("NEVER_SET", "TOKEN"))


def answer(needed: dict[str, str], checks: ExecutorChecks) -> dict[str, Any]:
    """The report of a worker, run in this process."""
    batches: Iterator[pa.RecordBatch] = iter([pa.record_batch({"id": [1]})])
    work = executor_probe._worker(needed, pickle.dumps(checks))
    [found] = work(batches)
    report: dict[str, Any] = json.loads(found.column("report")[0].as_py())
    return report


def reports(found: dict[str, Any], began: float = 0.0, ended: float = 2e10) -> list[ExecutorReport]:
    return executor_probe._reports([found], began, ended)


def checks(lake: Path, *sources: SourceSettings, folder: str | None = "doctor/x") -> ExecutorChecks:
    return ExecutorChecks(str(lake), folder, sources, 20.0)


def shared(lake: Path) -> Path:
    """A lake in which the driver created its object."""
    open_lake(str(lake)).create(f"doctor/x/{DRIVER_OBJECT}", b"penstock")
    return lake


def test_a_healthy_executor_has_no_problem_and_leaves_its_object(tmp_path: Path) -> None:
    [report] = reports(answer(NEEDED, checks(shared(tmp_path))))
    assert report.ok, report.problems
    assert report.versions.keys() == NEEDED.keys()
    assert len([*open_lake(str(tmp_path)).list("doctor/x")]) == 2


def test_everything_that_is_missing_is_reported_at_once(tmp_path: Path) -> None:
    needed = {"orjson": "orjson", "python-ulid": "no_such_module", "numpy": "no_other_module"}
    [report] = reports(answer(needed, checks(tmp_path)))
    assert [problem.partition(" (")[0].rpartition(" cannot ")[2] for problem in report.problems] == [
        "import python-ulid<5,>=4.1",
        "import numpy<3,>=2.4",
    ]
    assert all(
        problem.endswith("ship an environment that has it with spark.environment") for problem in report.problems
    )


def test_versions_that_do_not_fit_are_problems(tmp_path: Path) -> None:
    found = answer(NEEDED, checks(shared(tmp_path)))
    found["versions"]["numpy"], found["penstock"] = "1.26.4", "0.0.9"
    [report] = reports(found)
    assert [problem.partition(": ")[0].rpartition("/python ")[2] for problem in report.problems] == [
        "has numpy 1.26.4, needed is numpy<3,>=2.4",
        f"Penstock is 0.0.9 there and {penstock.__version__} on the driver",
    ]


@pytest.mark.parametrize(
    ("began", "ended", "problem"),
    [
        (100.0, 110.0, None),
        (110.0, 170.0, None),  # 50 s behind
        (200.0, 210.0, "its clock is 94 s behind the driver's: synchronise the clocks (NTP)"),
        (10.0, 20.0, "its clock is 85 s ahead of the driver's: synchronise the clocks (NTP)"),
    ],
)
def test_clocks_may_differ_by_a_minute(tmp_path: Path, began: float, ended: float, problem: str | None) -> None:
    found = answer(NEEDED, checks(shared(tmp_path))) | {"clock": [105.0, 106.0]}
    [report] = reports(found, began, ended)
    assert list(report.problems) == ([] if problem is None else [problem])


def test_a_lake_that_the_executor_does_not_share_is_a_problem(tmp_path: Path) -> None:
    for folder, name in (("doctor/x", "doctor/x/driver"), (None, "penstock.json")):
        problems, passing = checks(tmp_path, folder=folder)()
        assert problems == [f"the lake {tmp_path} has no {name}: use a folder that all hosts share, or s3://"]
        assert passing == []


def test_a_lake_that_does_not_answer_is_no_configuration_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExecutorChecks, "_lake_error", lambda _self: LakeUnavailable("503"))
    problems, passing = checks(tmp_path)()
    assert (problems, passing) == ([], ["503"])
    report = ExecutorReport("10.0.0.2", "3.11", "/python", {}, 0.0, (), ("503",))
    with pytest.raises(LakeUnavailable, match=r"executors of yarn cannot do the work\. 10\.0\.0\.2: 503"):
        require_fit([report], "yarn")
    assert not report.ok


def test_a_source_that_cannot_be_made_is_a_problem_whatever_it_raises(tmp_path: Path) -> None:
    sources = [
        SourceSettings(name="own", kind=f"{__name__}:Broken", options={}),
        SourceSettings(name="none", kind="nothing_like_this", options={}),
    ]
    problems, _ = checks(shared(tmp_path), *sources)()
    assert [problem.partition(": ")[0] for problem in problems] == [
        "the source own cannot be made",
        "the source none cannot be made",
    ]
    assert "KeyError: 'TOKEN'" in problems[0]


def test_hosts_with_the_same_problem_are_named_together() -> None:
    found = [ExecutorReport(host, "3.11", "/python", {}, 0.0, problems) for host, problems in (
        ("10.0.0.2", ("one",)), ("10.0.0.3", ("one", "two")), ("10.0.0.4", ()))]  # fmt: skip
    with pytest.raises(ClusterUnfit) as caught:
        require_fit(found, "spark://m:7077")
    message = "executors of spark://m:7077 cannot do the work. 10.0.0.2, 10.0.0.3: one; 10.0.0.3: two"
    assert str(caught.value) == message
    assert caught.value.error_class is ErrorClass.CONFIG
    require_fit(found[2:], "spark://m:7077")


def test_a_probe_covers_those_with_fewer_checks(tmp_path: Path) -> None:
    settings: Settings = open_at(write_workspace(tmp_path)).settings
    reads, writes, fetches = (
        Probe.of(settings, writes=False),
        Probe.of(settings),
        Probe.of(settings, sources=True),
    )
    assert fetches.covers(writes)
    assert writes.covers(reads)
    assert not reads.covers(writes)
    assert not writes.covers(fetches)
    assert not writes.covers(Probe("s3://other"))


def test_the_objects_of_killed_probes_are_deleted_a_day_later(tmp_path: Path) -> None:
    lake = open_lake(str(tmp_path))
    for path in ("doctor/01000000000000000000000000/driver", "doctor/7ZZZZZZZZZZZZZZZZZZZZZZZZZ/driver", "doctor/m/a"):
        lake.create(path, b"x")
    executor_probe._delete(lake, "doctor/m")
    assert [entry.path for entry in lake.list("doctor")] == ["doctor/7ZZZZZZZZZZZZZZZZZZZZZZZZZ/driver"]


def test_needed_packages_are_those_that_workers_import() -> None:
    program = """
import sys
before = {name.partition(".")[0] for name in sys.modules}
import penstock.pipeline.extract, penstock.pipeline.load, penstock.pipeline.model, penstock.pipeline.validate
import penstock.pipeline.rebuild_projections, penstock.source.registry, penstock.warehouse.scan
after = {name.partition(".")[0] for name in sys.modules}
print(*sorted(after - before - set(sys.stdlib_module_names)))
"""
    found = set(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    )
    assert set(NEEDED.values()) - {"pandas"} <= found
    brought = {"annotated_types", "cython_runtime", "dateutil", "greenlet", "penstock", "pydantic_core", "pytz", "six"}
    brought |= {"typing_extensions", "typing_inspection"}
    assert {name for name in found if not name.startswith("_")} - brought <= set(NEEDED.values())
