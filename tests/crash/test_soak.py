"""Two minutes of the soak: faults and operations in a fixed sequence, on both databases and both kinds of lake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("database", "lake"), [("sqlite", "local"), ("postgres", "s3")])
def test_a_minute_of_faults_and_operations_leaves_no_violation(database: str, lake: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    options = ["--minutes", "1", "--seed", "7", "--database", database, "--lake", lake, "--output", str(report)]
    done = subprocess.run(
        [sys.executable, "-m", "bench.soak", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert report.exists(), done.stderr
    found = json.loads(report.read_text())
    assert found["violations"] == []
    assert done.returncode == 0, done.stderr
    assert found["tracebacks"] == []
    assert found["reads"] > 0
    assert sum(found["faults"].values()) > 0
    assert sum(sum(outcomes.values()) for outcomes in found["operations"].values()) > 0
    assert found["runs_finished"] > 0
