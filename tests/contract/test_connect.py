"""Spark Connect without a server: the settings of a session, and the error when its packages are missing.

`tests/acceptance/test_spark_connect.py` runs a workspace on a real server.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.config.settings import SparkSettings
from penstock.errors import ConfigError, TransientError
from penstock.pipeline import connect
from penstock.pipeline.session import start_session
from penstock.pipeline.session_config import RESULTS
from support import builders
from support.harness import Harness

_WITHOUT_PACKAGES = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("grpc", "grpc_status", "zstandard"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from penstock.cli.main import main
main()
"""


class Refused(PySparkException):
    def getCondition(self) -> str:
        return "CANNOT_MODIFY_CONFIG"


class Server:
    """A stand-in for a Connect server that records the settings of a session."""

    def __init__(self) -> None:
        self.address: str | None = None
        self.settings: dict[str, str] = {}
        self.artifacts: dict[str, list[str]] = {}
        self.stopped = 0
        self.version = "4.3.0"
        self.sources: list[str] = []
        self.conf = self.client = self.dataSource = self

    def remote(self, address: str) -> Server:
        self.address = address
        return self

    def getOrCreate(self) -> Server:
        return self

    def set(self, name: str, value: str) -> None:
        if name.startswith("spark.executor"):
            raise Refused(f"[CANNOT_MODIFY_CONFIG] Cannot modify the value of the Spark config: {name}")
        self.settings[name] = value

    def set_retry_policies(self, policies: list[object]) -> None:
        assert len(policies) == 1

    def addArtifacts(self, *paths: str, **kinds: bool) -> None:
        [kind] = kinds
        self.artifacts.setdefault(kind, []).extend(paths)

    def register(self, source: Any) -> None:
        self.sources.append(source.name())

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Server()
    monkeypatch.setattr(SparkSession, "builder", made)
    monkeypatch.setattr(connect, "_SESSIONS", {})
    return made


def test_a_session_brings_our_package_and_the_settings_that_results_depend_on(server: Any) -> None:
    session: Any = start_session(SparkSettings(remote="local[2]"))
    assert session is server
    assert server.address == "local[2]"
    [package] = server.artifacts["pyfile"]
    modules = set(zipfile.ZipFile(package).namelist())
    assert {"penstock/__init__.py", "penstock/pipeline/extract.py", "penstock/source/demo.py"} <= modules
    assert "pyspark_penstock.py" in modules
    assert server.sources == ["penstock"]
    assert server.settings == {**RESULTS, "spark.penstock.executorTimeout": "120.0"}
    assert server.settings["spark.sql.session.timeZone"] == "UTC"
    assert server.settings["spark.sql.ansi.enabled"] == "false"
    assert server.settings["spark.sql.runSQLOnFiles"] == "false"
    assert server.settings["spark.sql.variable.substitute"] == "false"


def test_files_and_settings_of_the_workspace_reach_the_server(server: Any, tmp_path: Path) -> None:
    archive = tmp_path / "env.tar.gz"
    archive.touch()
    config = {"spark.submit.pyFiles": "a.py, b.zip", "spark.files": "c.txt", "spark.sql.shuffle.partitions": "3"}
    start_session(SparkSettings(remote="local[2]", environment=str(archive), config=config))
    assert server.artifacts["pyfile"][1:] == ["a.py", "b.zip"]
    assert server.artifacts["archive"] == [f"{archive}#environment"]
    assert server.artifacts["file"] == ["c.txt"]
    added = {name: server.settings[name] for name in server.settings.keys() - RESULTS.keys()}
    assert added.pop("spark.penstock.executorTimeout") == "120.0"
    assert added == {
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.execution.pyspark.python": "environment/bin/python",
    }


def test_a_setting_that_only_the_server_can_have_is_an_error_that_names_it(server: Any) -> None:
    settings = SparkSettings(remote="local[2]", config={"spark.executor.memory": "4g"})
    with pytest.raises(ConfigError, match=r"spark\.executor\.memory cannot be set .*; set it where the server starts"):
        start_session(settings)
    assert server.stopped == 1


def test_files_at_an_address_are_refused_by_name(server: Any) -> None:
    with pytest.raises(ConfigError, match=r"ships local files only, not s3://bucket/env\.tar\.gz#environment"):
        start_session(SparkSettings(remote="local[2]", environment="s3://bucket/env.tar.gz"))
    assert server.artifacts == {}


def test_without_a_server_the_error_names_the_address_at_once() -> None:
    with pytest.raises(TransientError, match=r"no Spark Connect server answers at sc://127\.0\.0\.1:1 \("):
        start_session(SparkSettings(remote="sc://127.0.0.1:1/;token=secret"))


def test_a_server_with_an_unsupported_spark_is_refused_before_anything_is_sent(server: Any) -> None:
    server.version = "3.5.6"
    with pytest.raises(
        ConfigError, match=r"the Connect server is Spark 3\.5\.6, and Penstock needs Spark 4\.0 or newer"
    ):
        start_session(SparkSettings(remote="local[2]"))
    assert (server.artifacts, server.settings) == ({}, {})


@pytest.mark.parametrize("works", [True, False])
def test_an_older_server_that_cannot_receive_rows_is_refused(server: Any, works: bool) -> None:
    """The error is that of pyspark 4.3 with a server 4.1."""

    def create(table: Any) -> None:
        if not works:
            raise ValueError("invalid literal for int() with base 10: '3221225472b'")

    server.version, server.createDataFrame = "4.1.4", create
    settings = SparkSettings(remote="local[2]")
    if works:
        assert start_session(settings) is server
    else:
        with pytest.raises(ConfigError, match=r"Spark 4\.1\.4: install 'pyspark\[connect\]==4\.1\.\*'"):
            start_session(settings)
        assert (server.artifacts, server.settings) == ({}, {})


@pytest.mark.parametrize("command", [("run", "--until", "2024-06-09"), ("control", "tick")], ids=" ".join)
def test_without_the_packages_of_connect_a_command_names_them_and_changes_nothing(command: tuple[str, ...]) -> None:
    with builders.quick_folder() as folder:
        house = Harness(Path(folder))
        settings = house.folder / "penstock.yaml"
        text = settings.read_text()
        assert "master: local[2]" in text
        settings.write_text(text.replace("master: local[2]", "remote: sc://127.0.0.1:15002"))
        ended = subprocess.run(
            [sys.executable, "-c", _WITHOUT_PACKAGES, *command, "--workspace", folder],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            timeout=120,
        )
        assert ended.returncode == 1, ended.stderr
        assert "penstock[connect]" in ended.stderr
        assert "Traceback" not in ended.stderr
        assert builders.everything(house.workspace.context.database)["partition_attempt"] == []
        house.workspace.context.database.close()
