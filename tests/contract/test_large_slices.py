"""A partition of any size is validated and loaded in blocks: memory does not grow with the payload."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from penstock.pipeline.slices import LARGE_BYTES
from support import builders
from support.harness import WIDE_BYTES, Harness
from support.workspaces import key

_MEGABYTE = 1024 * 1024
_SMALL, _LARGE = 96, 320  # megabytes of payload; both are many blocks and row groups
_SOME_BLOCKS = 32  # megabytes


def examined_and_published(house: Harness, clicks: int, megabytes: int) -> dict[str, Any]:
    """The peak memory of a separate process, in megabytes."""
    rows = megabytes * _MEGABYTE // WIDE_BYTES
    house.deliver({key(): clicks}, rows)
    [attempt, *_] = house.workspace.context.state.attempts(key())
    assert (attempt.payload_bytes or 0) > LARGE_BYTES
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    # Allocators keep much freed memory, each in its own way; only allocated memory counts.
    prompt = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_MMAP_THRESHOLD_": str(_MEGABYTE), "MALLOC_ARENA_MAX": "1"}
    surroundings = {**os.environ, "PYTHONPATH": paths, **prompt}
    done = subprocess.run(
        [sys.executable, "-m", "support.memory_probe", str(house.folder)],
        capture_output=True,
        text=True,
        check=False,
        env=surroundings,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["digest"] == attempt.content_digest
    assert found["loaded"] == 1
    shares = [share.dataset() for share in house.workspace.data.vouched("demo.campaign_daily").scan_tasks()]
    assert sum(share.count_rows(filter=ds.field("clicks") == clicks) for share in shares) == rows
    assert sum(share.count_rows() for share in shares) == rows
    return found


def loaded_and_replaced(megabytes: int) -> list[dict[str, Any]]:
    with builders.quick_folder() as name:
        house = Harness(Path(name), version="wide")
        found = [examined_and_published(house, clicks, megabytes) for clicks in (1, 2)]
        house.workspace.context.database.close()
    return found


def test_memory_is_bounded_by_blocks_and_not_by_the_payload() -> None:
    for small, large in zip(loaded_and_replaced(_SMALL), loaded_and_replaced(_LARGE), strict=True):
        assert large["examined"] - small["examined"] < _SOME_BLOCKS, (small, large)
        assert large["peak"] - small["peak"] < _SOME_BLOCKS, (small, large)
