"""Spark's Python workers: their import path, their garbage collection, and how work is split."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest

from penstock.pipeline.daemon import without_zips
from penstock.pipeline.memory import reduced_gc
from penstock.pipeline.spark_jobs import evenly, parallelism, tasks_for

_ZIPS = Path(pyspark.__file__).parent / "python" / "lib"
_INSTALLED = str(Path(pyspark.__file__).parents[1])


def session(cores: int, **config: str) -> Any:
    settings = {f"spark.{name.replace('_', '.')}": value for name, value in config.items()}
    conf = SimpleNamespace(get=settings.get)
    return SimpleNamespace(_sc=SimpleNamespace(defaultParallelism=cores, getConf=lambda: conf))


@pytest.mark.parametrize(
    ("items", "cores", "expected"),
    [(1, 2, 1), (2, 2, 2), (900, 2, 2), (2000, 2, 2), (2001, 2, 4), (5000, 2, 6), (10_000, 8, 16), (3, 8, 3)],
)
def test_every_core_gets_as_many_tasks_as_the_others(items: int, cores: int, expected: int) -> None:
    tasks = tasks_for(session(cores), items, per_task=1000)
    assert tasks == expected
    assert tasks % cores == 0 or tasks == items
    assert sorted(set(evenly(items, tasks))) == list(range(tasks))


@pytest.mark.parametrize(
    ("items", "expected"),
    [(10, 10), (300, 64), (50_000, 1_000), (1_000_001, 2_000)],
)
def test_the_tasks_of_a_large_cluster_are_not_too_small(items: int, expected: int) -> None:
    assert tasks_for(session(1_000), items, per_task=1_000) == expected


def test_with_dynamic_allocation_the_work_is_divided_by_what_the_cluster_may_grow_to() -> None:
    grows = {"dynamicAllocation_enabled": "true", "executor_cores": "4"}
    assert parallelism(session(2, **grows, dynamicAllocation_maxExecutors="10")) == 40
    assert parallelism(session(2, **grows)) == 2  # without a limit nothing is known
    assert parallelism(session(2, **grows, dynamicAllocation_maxExecutors="2147483647")) == 10_000
    assert parallelism(session(2, dynamicAllocation_maxExecutors="10")) == 2


def test_the_installed_pyspark_is_taken_instead_of_its_own_zips() -> None:
    zips = [str(path) for path in sorted(_ZIPS.glob("*.zip"))]
    assert len(zips) == 2
    assert without_zips([*zips, "/jobs/ours.zip", _INSTALLED]) == ["/jobs/ours.zip", _INSTALLED]


def test_the_zips_of_another_spark_stay(tmp_path: Path) -> None:
    others = [str(tmp_path / "python/lib/pyspark.zip"), str(tmp_path / "python/lib/py4j-0.10-src.zip")]
    assert without_zips([*others, _INSTALLED]) == [*others, _INSTALLED]


def test_without_an_installed_pyspark_the_zips_stay(tmp_path: Path) -> None:
    zips = [str(path) for path in sorted(_ZIPS.glob("*.zip"))]
    assert without_zips([*zips, str(tmp_path)]) == [*zips, str(tmp_path)]


def test_a_worker_with_frozen_imports_does_not_collect_them() -> None:
    script = (
        "import gc; from penstock.pipeline.memory import freeze_imports; freeze_imports();"
        " frozen = gc.get_freeze_count();"
        " kept = [[] for _ in range(100)]; freeze_imports();"
        " print(frozen > 1000, gc.get_freeze_count() <= frozen, gc.get_threshold()[0] > 10_000, gc.isenabled())"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["True"] * 4


def test_collecting_less_often_ends_with_the_block() -> None:
    before = gc.get_threshold()

    @reduced_gc()
    def work() -> int:
        assert gc.isenabled()
        return gc.get_threshold()[0]

    assert work() > before[0]
    with pytest.raises(ValueError, match="ours"), reduced_gc():
        raise ValueError("ours")
    assert gc.get_threshold() == before


def test_the_last_of_several_restores_what_was_before_the_first() -> None:
    before = gc.get_threshold()
    first, second = reduced_gc(), reduced_gc()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold()[0] > before[0]
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before


def test_a_disabled_garbage_collector_stays_disabled() -> None:
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with reduced_gc():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)


def test_a_module_that_cannot_be_imported_does_not_keep_workers_from_starting() -> None:
    script = (
        "import pyspark.daemon; from penstock.pipeline import daemon; daemon._NEEDED = ('no.such.module', 'this');"
        " pyspark.daemon.manager = lambda: print('port'); daemon.main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "port\n"  # output of imported modules must not reach Spark
    assert "No module named 'no'" in done.stderr
    assert "Zen of Python" in done.stderr


def test_workers_import_no_database_and_no_data_frames() -> None:
    script = (
        "import sys, penstock.pipeline.extract, penstock.pipeline.validate, penstock.pipeline.load;"
        " print(sorted({'sqlalchemy', 'pandas', 'duckdb', 'deltalake', 'alembic'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"
