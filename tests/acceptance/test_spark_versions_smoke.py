"""The smoke tests on one of the older versions of Spark: another one each day. `make test-spark-versions` runs them on
all, and also on a Connect server."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSIONS = sorted(path.stem.removeprefix("spark-") for path in (ROOT / "requirements").glob("spark-*.lock"))


def of_today() -> str:
    """The version that PENSTOCK_SPARK_VERSION names, or else the one of the date."""
    return os.environ.get("PENSTOCK_SPARK_VERSION") or VERSIONS[datetime.now(UTC).toordinal() % len(VERSIONS)]


def test_the_smoke_tests_pass_on_the_version_of_the_day() -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON"))}
    done = subprocess.run(
        [ROOT / "scripts" / "test-spark-versions", of_today(), "--", "-k", "not connect"],
        env=inherited,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=540,
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    assert " passed" in done.stdout
