"""A workspace on a Standalone cluster whose workers are other hosts. One file, so that one cluster serves all tests.

The tables are the same as on local Spark, whatever happens to executors, workers, master and driver. Executors that are
not set up for the work are named, with cause and fix, before anything is issued. Spark Connect runs on top.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.app import load_workspace
from support import servers
from support.builders import everything
from support.cli import answer, penstock
from support.cluster import executor_environment
from support.cluster_site import DAYS, QUICK, Run, Site, tables
from support.command_process import command_process
from support.workspaces import key

# --- the same tables, whatever happens -------------------------------------------------------------------------------

COUNTS = {"planned": 310, "accepted": 309, "rejected": 1, "loaded": 309, "cancelled": 0, "skipped": 0}


# The stages of the query and of the model. So few rows of a model are staged by the driver itself.
_STAGES = (("extract", False), ("validate", False), ("load", False), ("extract", True), ("validate", True))


def counts(document: dict[str, Any]) -> dict[str, int]:
    return {name: document[name] for name in COUNTS}


def test_a_run_on_other_hosts_gives_the_tables_of_a_local_one(
    site: Site, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    folder = site.workspace(tmp_path)
    assert counts(Run(folder).finished(code=1)) == COUNTS
    assert tables(folder) == undisturbed
    assert list(load_workspace(folder).context.lake.list("cache")) == []
    found = answer("doctor", "--cluster", workspace=folder)
    assert [one["host"] for one in found["executors"]] == [host.address for host in site.cluster.hosts]
    assert all(one["ok"] and one["executable"] == str(site.cluster.python) for one in found["executors"])


def test_executors_are_lost_in_every_stage_while_tasks_run_twice(
    site: Site, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    speculation = {
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1.01",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.minTaskRuntime": "50ms",
        "spark.task.maxFailures": "8",
    }
    folder = site.workspace(tmp_path, config=speculation)
    run = Run(folder)
    for number, (stage, derived) in enumerate(_STAGES):
        run.wait_for(stage, derived=derived)
        assert site.cluster.kill_executors(site.cluster.hosts[number % 2])
    assert counts(run.finished(code=1)) == COUNTS
    assert tables(folder) == undisturbed


def test_daemons_are_restarted_while_executors_come_and_go(
    site: Site, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    allocation = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.dynamicAllocation.executorIdleTimeout": "3s",
        "spark.dynamicAllocation.shuffleTracking.timeout": "3s",
    }
    folder = site.workspace(tmp_path, config=allocation)
    run = Run(folder)
    run.wait_for("extract")
    site.cluster.kill_master()
    run.wait_for("validate")
    site.cluster.start_master()
    for host in site.cluster.hosts:
        site.cluster.kill_worker(host)
        site.cluster.kill_executors(host)
        site.cluster.start_worker(host)
    assert counts(run.finished(code=1)) == COUNTS
    assert tables(folder) == undisturbed


def test_a_run_whose_driver_is_lost_in_every_stage_is_resumed(
    site: Site, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    folder = site.workspace(tmp_path)
    run = Run(folder)
    for stage in ("extract", "validate", "load"):
        run.wait_for(stage)
        run.kill()
        [left] = answer("runs", "list", workspace=folder)["items"]
        run = Run(folder, "runs", "resume", left["run_id"])
    run.finished(code=0)  # the partition that fails was rejected before the last resume
    assert tables(folder) == undisturbed
    assert answer("run", *DAYS, workspace=folder)["planned"] == 0


def test_a_run_without_any_executor_left_ends_and_counts_nothing(site: Site, tmp_path: Path) -> None:
    spark = {"master": site.cluster.url, "python": str(site.cluster.python), "executor_timeout": "20s"}
    folder = site.workspace(tmp_path, spark)
    run = Run(folder)
    run.wait_for("extract")
    try:
        for host in site.cluster.hosts:
            site.cluster.kill_worker(host)
            site.cluster.kill_executors(host)
        assert run.finished(code=75) == {}
    finally:
        for host in site.cluster.hosts:
            site.cluster.start_worker(host)
    state = answer("state", "inspect", "--limit", "1000", workspace=folder)["items"]
    assert {(one["status"], one["attempt_count"], one["open_attempt"]) for one in state} <= {("pending", 0, None)}
    assert answer("run", "--plan", *DAYS, workspace=folder)["total"] == 310


# --- executors that are not set up -----------------------------------------------------------------------------------

_OLDER = """
import collections, sys
fields = "major minor micro releaselevel serial"
sys.version_info = collections.namedtuple("version_info", fields)(3, 9, 0, "final", 0)
"""


def interpreter(site: Site, name: str, *, prefix: str = "", module: str = "") -> str:
    """An interpreter on the hosts of the workers: the executors' own, run by a script with another environment."""
    folder = site.cluster.folder / name
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(module)
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}:$PYTHONPATH" exec {prefix} {site.cluster.python} "$@"\n')
    script.chmod(0o755)
    return str(script)


def without_a_module(site: Site) -> tuple[dict[str, object], str]:
    python = executor_environment(site.cluster.folder / "incomplete", without=["orjson"])
    hosts = "|".join(host.address for host in site.cluster.hosts)
    expected = (
        rf"({hosts}): {python} cannot import orjson[<>=\d.,]+ \(ModuleNotFoundError: .*\): install it there, or ship"
    )
    return {"python": str(python)}, expected


def without_an_interpreter(site: Site) -> tuple[dict[str, object], str]:
    expected = r'\d+\.\S+ \(executor \d\): IOException: Cannot run program "/nowhere/python": .*: set spark.python'
    return {"python": "/nowhere/python"}, expected


def with_another_python(site: Site) -> tuple[dict[str, object], str]:
    python = interpreter(site, "older", module=_OLDER)
    return {"python": python}, r"penstock: \d+\.\d.*: .*different version: 3\.9 than that in driver: 3\.\d+.*: give"


def with_a_wrong_clock(site: Site) -> tuple[dict[str, object], str]:
    shifted = "import time\nnow = time.time\ntime.time = lambda: now() + 3600\n"
    python = interpreter(site, "early", module=shifted)
    return {"python": python}, r"its clock is 3\d\d\d s ahead of the driver's: synchronise the clocks"


def without_credentials(site: Site) -> tuple[dict[str, object], str]:
    python = interpreter(site, "unknown", prefix="env -u AWS_ACCESS_KEY_ID -u AWS_SECRET_ACCESS_KEY")
    return {"python": python}, r"lake s3://\S+ .*; the executor has none of AWS_ACCESS_KEY_ID, .*: give executors cred"


def that_cannot_reach_the_driver(site: Site) -> tuple[dict[str, object], str]:
    config = {"spark.driver.host": "10.255.255.1", "spark.driver.bindAddress": "0.0.0.0"}
    spark: dict[str, object] = {"python": str(site.cluster.python), "executor_timeout": "8s", "config": config}
    return (
        spark,
        r"no executor of spark://\S+ was registered with the driver at 10\.255\.255\.1:\d+ for 8 s: .*spark\.driver",
    )


@pytest.mark.parametrize(
    "executors",
    [
        without_a_module,
        without_an_interpreter,
        with_another_python,
        with_a_wrong_clock,
        without_credentials,
        that_cannot_reach_the_driver,
    ],
    ids=lambda made: made.__name__,
)
def test_a_run_names_host_cause_and_fix_and_issues_nothing(site: Site, tmp_path: Path, executors: object) -> None:
    spark, expected = executors(site)  # type: ignore[operator]
    config = spark.pop("config", None)
    folder = site.workspace(tmp_path, {"master": site.cluster.url, **spark}, config)
    ended = penstock("run", *DAYS, workspace=folder)
    assert ended.returncode == 1, ended.stderr
    [line] = [line for line in ended.stderr.splitlines() if line.startswith("penstock: ")]
    assert re.search(expected, line), line
    assert "Traceback" not in ended.stderr
    database = load_workspace(folder).context.database
    left = everything(database)
    assert (left["partition_attempt"], left["event"]) == ([], [])
    database.close()


def test_a_packed_environment_is_shipped_to_the_executors(site: Site, tmp_path: Path) -> None:
    """Without it the executors run `python3` of their hosts, which does not have our dependencies."""
    packed = tmp_path / "packed.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        script = f'#!/bin/sh\nexec {site.cluster.python} "$@"\n'.encode()
        member = tarfile.TarInfo("bin/python")
        member.mode, member.size = 0o755, len(script)
        archive.addfile(member, io.BytesIO(script))
    folder = site.workspace(tmp_path, {"master": site.cluster.url})
    assert "spark.environment" in penstock("doctor", "--cluster", workspace=folder).stdout
    file = folder / "penstock.yaml"
    document = yaml.safe_load(file.read_text())
    document["spark"]["environment"] = packed.name
    file.write_text(yaml.safe_dump(document))
    found = answer("doctor", "--cluster", workspace=folder)
    assert [one["host"] for one in found["executors"]] == [host.address for host in site.cluster.hosts]


# --- Spark Connect ---------------------------------------------------------------------------------------------------

COMMANDS = (
    ("validate", str(key(1, "2024-06-01"))),
    ("warehouse", "verify"),
    ("warehouse", "compact"),
    ("warehouse", "reconcile"),
    ("ledger", "rebuild", "--engine", "spark"),
    ("read", "models.total", "--spark"),
    ("sql", "SELECT count(*) FROM demo.campaign_daily", "--spark"),
)


# The rows of a table by the data source, which the server's own Python does not have.
_BY_DATA_SOURCE = """
import sys
from penstock.config.settings import SparkSettings
from penstock.pipeline.session import start_session
spark = start_session(SparkSettings(remote=sys.argv[1]))
print(spark.read.format("penstock").option("workspace", sys.argv[2]).option("table", "models.total").load().count())
"""


def connect_server(site: Site, port: int) -> AbstractContextManager[str]:
    """A server whose executors are those of the cluster."""
    settings = {**QUICK, "spark.driver.host": site.cluster.driver}
    return servers.spark_connect(site.cluster.url, str(site.cluster.python), port, **settings)


def test_every_command_that_starts_spark_works_on_a_connect_server_of_a_cluster(
    site: Site, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    port = servers.free_port()
    folder = site.workspace(tmp_path, {"remote": f"sc://127.0.0.1:{port}"}, {"spark.sql.shuffle.partitions": "3"})
    with command_process() as commands:
        with connect_server(site, port):
            ran = commands.run("run", *DAYS, "--json", workspace=folder)
            assert ran.code == 1, ran.stderr
            assert (ran.document["accepted"], ran.document["rejected"], ran.document["loaded"]) == (309, 1, 309)
            assert " %" in ran.stderr  # the server reports the progress of a query
        gone = commands.run("run", *DAYS, "--reprocess", "--yes", workspace=folder)
        assert (gone.code, "no Spark Connect server answers at sc://127.0.0.1" in gone.stderr) == (75, True)
        with connect_server(site, port):  # it does not know the session of the other process
            for command in COMMANDS:
                ended = commands.run(*command, workspace=folder)
                assert ended.code == 0, (command, ended.stderr)
            found = commands.run("doctor", "--cluster", "--json", workspace=folder)
            assert [one["host"] for one in found.document["executors"]] == [h.address for h in site.cluster.hosts]
            again = commands.run("run", str(key(1, "2024-06-01")), "--reprocess", "--json", workspace=folder)
            assert (again.document["accepted"], again.document["loaded"]) == (1, 1), again.stderr
            program = [sys.executable, "-c", _BY_DATA_SOURCE, f"sc://127.0.0.1:{port}", str(folder)]
            assert subprocess.run(program, capture_output=True, text=True, check=True).stdout == "10\n"
    assert tables(folder)["rows"] == undisturbed["rows"]
