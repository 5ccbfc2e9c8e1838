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
from pyspark.sql import SparkSession

from penstock.config.settings import SparkSettings
from penstock.pipeline.session import start_session
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


class Server:
    """A stand-in for a Connect server that records the settings of a session."""

    def __init__(self) -> None:
        self.address: str | None = None
        self.settings: dict[str, str] = {}
        self.modules: set[str] = set()
        self.conf = self

    def remote(self, address: str) -> Server:
        self.address = address
        return self

    def getOrCreate(self) -> Server:
        return self

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value

    def addArtifacts(self, path: str, pyfile: bool) -> None:
        assert pyfile
        self.modules = set(zipfile.ZipFile(path).namelist())


def test_a_session_brings_our_package_and_the_settings_that_results_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    server: Any = Server()
    monkeypatch.setattr(SparkSession, "builder", server)
    session: Any = start_session(SparkSettings(remote="sc://spark.example:15002"))
    assert session is server
    assert server.address == "sc://spark.example:15002"
    assert {"penstock/__init__.py", "penstock/pipeline/extract.py", "penstock/source/demo.py"} <= server.modules
    assert server.settings == {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.runSQLOnFiles": "false",
        "spark.sql.variable.substitute": "false",
    }


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
