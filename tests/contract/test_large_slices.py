"""A slice of any size goes through validation and load in blocks: memory does not grow with the payload."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

import builders
from house import WIDE_BYTES, House
from penstock.pipeline.slices import LARGE_BYTES
from workspaces import key

_MEGABYTE = 1024 * 1024


def examined_and_published(megabytes: int) -> dict[str, Any]:
    """In a process of its own: what it used at most, in megabytes."""
    rows = megabytes * _MEGABYTE // WIDE_BYTES
    with builders.quick_folder() as name:
        house = House(Path(name), version="wide")
        house.deliver({key(): 1}, rows)
        [attempt] = house.workspace.reader.attempts(key())
        assert (attempt.payload_bytes or 0) > LARGE_BYTES
        paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
        command = [sys.executable, "-m", "heavy", name]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": paths}
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        assert found["digest"] == attempt.content_digest
        assert found["loaded"] == 1
        [share] = [share.dataset() for share in house.workspace.vouched("demo.campaign_daily").shares()]
        assert share.count_rows(filter=ds.field("clicks") == 1) == rows
        house.workspace.database.close()
    return found


def test_memory_is_bounded_by_blocks_and_not_by_the_payload() -> None:
    small, large = examined_and_published(48), examined_and_published(192)
    assert large["examined"] - small["examined"] < 48, (small, large)
    assert large["peak"] - small["peak"] < 48, (small, large)
