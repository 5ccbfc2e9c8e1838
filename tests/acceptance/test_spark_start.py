"""Spark starts with its class archive."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.pipeline.jvm import archive_of_classes
from support.cli import answer, penstock

_MAPPED = """
from pathlib import Path
from penstock.pipeline.session import start_session
from penstock.config.settings import SparkSettings
session = start_session(SparkSettings())
print(Path(f"/proc/{session.sparkContext._gateway.proc.pid}/maps").read_text())
"""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="nobody says what a process has mapped")
def test_a_session_maps_the_classes_that_were_kept(tmp_path: Path) -> None:
    archive = archive_of_classes()
    if archive is None:
        pytest.skip("this Java keeps no classes")
    said = penstock("spark", "prepare", "--json")
    assert said.returncode == 0, said.stderr
    found = subprocess.run([sys.executable, "-c", _MAPPED], capture_output=True, text=True, check=True, timeout=120)
    assert str(archive.path) in found.stdout
    penstock("init", str(tmp_path))
    [line] = [item for item in answer("doctor", workspace=tmp_path)["items"] if item["check"] == "spark"]
    assert "prepare" not in line["detail"]


_KILLED = """
import os, signal
from penstock.config.settings import SparkSettings
from penstock.pipeline.job_errors import SparkUnavailable
from penstock.pipeline.session import start_session
from penstock.pipeline.spark_jobs import collected, parallelism
settings = SparkSettings(master="local[1]")
session = start_session(settings)
frame = session.range(3)
os.kill(session.sparkContext._gateway.proc.pid, signal.SIGKILL)
for call in (lambda: collected(frame), lambda: parallelism(session)):
    try:
        call()
    except SparkUnavailable as error:
        print("gone")
print(collected(start_session(settings).range(3)).num_rows)
"""


def test_after_the_jvm_was_killed_a_new_session_is_started() -> None:
    found = subprocess.run([sys.executable, "-c", _KILLED], capture_output=True, text=True, check=False, timeout=240)
    assert found.stdout == "gone\ngone\n3\n", found.stderr


_EARLY = """
import os, sys
from pathlib import Path
from penstock.config.settings import SparkSettings
from penstock.pipeline import jvm
from penstock.pipeline.session import begin_session, start_session
from penstock.pipeline.spark_jobs import collected
settings = SparkSettings(master="local[1]")
begin_session(settings)
[early] = jvm._JVM
if "killed" in sys.argv:
    early.kill()
    early.wait()
if "other" in sys.argv:
    settings = SparkSettings(master="local[1]", config={"spark.driver.memory": "1g"})
begin_session(settings)
session = start_session(settings)
context = session.sparkContext
running = [process for process in jvm._JVM if process.poll() is None]
rows = collected(session.range(3)).num_rows
print(len(running), early in running, context.getConf().get("spark.driver.memory"), rows)
print("PYSPARK_GATEWAY_PORT" in os.environ, context._gateway.proc is None)
print(running[0].pid)
"""


@pytest.mark.parametrize(
    ("case", "found"),
    [
        ("unchanged", ["1 True 2g 3", "False True"]),
        ("killed", ["1 False 2g 3", "False False"]),
        ("other", ["1 False 1g 3", "False False"]),
    ],
)
def test_a_session_uses_the_jvm_that_was_started_for_it(case: str, found: list[str]) -> None:
    said = subprocess.run(
        [sys.executable, "-c", _EARLY, case], capture_output=True, text=True, check=False, timeout=240
    )
    *lines, pid = said.stdout.splitlines() or [""]
    assert lines == found, said.stderr
    assert not Path(f"/proc/{pid}").exists() or _ends(int(pid))


_UNUSED = """
from penstock.config.settings import SparkSettings
from penstock.pipeline import jvm
from penstock.pipeline.session import begin_session
begin_session(SparkSettings(master="local[1]"))
print(jvm._JVM[0].pid)
"""


def test_a_jvm_that_no_session_used_ends_with_its_process() -> None:
    said = subprocess.run([sys.executable, "-c", _UNUSED], capture_output=True, text=True, check=True, timeout=120)
    assert _ends(int(said.stdout))


def _ends(pid: int) -> bool:
    """Whether a process ends by itself."""
    for _ in range(300):
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.1)
    return False
