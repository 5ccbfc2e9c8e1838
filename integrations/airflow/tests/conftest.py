"""A real Airflow with its own home and database, and a real Penstock. Both are started once for all tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# Airflow reads its settings when it is imported.
HOME = Path(tempfile.mkdtemp(prefix="penstock-airflow-"))
os.environ |= {
    "AIRFLOW_HOME": str(HOME),
    "AIRFLOW__CORE__DAGS_FOLDER": str(HOME / "dags"),
    "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME}/airflow.db",
    "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    "NO_PROXY": "127.0.0.1,localhost",
}
(HOME / "dags").mkdir()

from dags import Dags  # noqa: E402
from servers import Site, serving, started, wait_until_first_round_is_over  # noqa: E402


def pytest_sessionfinish() -> None:
    shutil.rmtree(HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server and a control loop that has nothing to do but orders."""
    with serving(tmp_path_factory.mktemp("served")) as running, started(running.folder, "control", "serve"):
        wait_until_first_round_is_over(running)
        yield running


@pytest.fixture(scope="session")
def quiet_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server without a control loop: orders stay queued, and nothing is ever published."""
    with serving(tmp_path_factory.mktemp("quiet")) as running:
        yield running


@pytest.fixture(scope="session")
def airflow_database() -> None:
    subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], check=True, capture_output=True)


@pytest.fixture
def dags(airflow_database: None) -> Iterator[Dags]:
    """DAG files of one test, in the folder of Airflow."""
    made = Dags(HOME / "dags")
    yield made
    made.remove()


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch, site: Site) -> Site:
    """The default connection of Airflow leads to the site."""
    monkeypatch.setenv("AIRFLOW_CONN_PENSTOCK_DEFAULT", site.connection())
    return site


@pytest.fixture
def quiet_connection(monkeypatch: pytest.MonkeyPatch, quiet_site: Site) -> Site:
    """The default connection of Airflow leads to the site without a control loop."""
    monkeypatch.setenv("AIRFLOW_CONN_PENSTOCK_DEFAULT", quiet_site.connection())
    return quiet_site
