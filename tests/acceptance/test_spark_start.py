"""Spark starts with its class archive."""

from __future__ import annotations

import subprocess
import sys
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
