"""The definitions.py of the page, with the commands and the daemon of Dagster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest

from conftest import Site

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "dagster.md"
BIN = Path(sys.executable).parent


@pytest.fixture
def home(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the file of the page, and a Dagster instance on disk."""
    found = re.search(r"^```python definitions\.py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    (tmp_path / "definitions.py").write_text(found[1])
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_URL", site.url)
    monkeypatch.setenv("PENSTOCK_TOKEN", site.token)
    return tmp_path


def test_the_definitions_of_the_page_order_and_report(site: Site, home: Path) -> None:
    day = site.days[2]
    done = subprocess.run(
        [
            BIN / "dagster",
            *["asset", "materialize", "-f", "definitions.py", "--select", "demo/keyword_daily", "--partition"],
            day,
        ],
        cwd=home,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    with dg.DagsterInstance.get() as instance:
        assert instance.get_materialized_partitions(dg.AssetKey(["demo", "keyword_daily"])) == {day}
        log = home / "daemon.log"
        with log.open("wb") as output:
            daemon = subprocess.Popen(
                [BIN / "dagster-daemon", "run", "-f", "definitions.py"], cwd=home, stdout=output, stderr=output
            )
        try:
            deadline = time.monotonic() + 120
            key = dg.AssetKey(["demo", "campaign_daily"])
            while instance.get_materialized_partitions(key) != set(site.days):
                assert time.monotonic() < deadline, log.read_text()
                assert daemon.poll() is None, log.read_text()
                time.sleep(0.5)
        finally:
            daemon.terminate()
            assert daemon.wait(60) is not None
        newest = instance.fetch_materializations(dg.AssetRecordsFilter(asset_key=key), limit=10).records
        assert len(newest) == len(site.days)
        assert os.environ["PENSTOCK_TOKEN"] not in log.read_text()
