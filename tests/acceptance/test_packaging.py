"""Penstock as it is distributed: the built wheel, installed with its declared dependencies into an empty environment.

The other tests run from the source tree, where a file that the wheel lacks and an undeclared dependency go unnoticed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")

# Migrations are scripts of Alembic, `__main__` runs the command line, and the application of the server needs an extra.
IMPORT_EVERYTHING = """
import importlib, importlib.metadata, json, pkgutil
import penstock, pyspark_penstock

names = [module.name for module in pkgutil.walk_packages(penstock.__path__, "penstock.")]
others = ("penstock.__main__", "penstock.http.application")
names = [name for name in names if not name.startswith("penstock.db.migrations") and name not in others]
for name in names:
    importlib.import_module(name)
sources = importlib.metadata.entry_points(group="penstock.sources")
print(json.dumps({"modules": len(names), "sources": sorted(entry.name for entry in sources if entry.load())}))
"""


def execute(command: Sequence[str | Path], folder: Path, **environment: str) -> str:
    """The standard output of a command that must succeed, and that must not find the source tree."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**inherited, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel of the source tree, built by the declared build system."""
    folder = tmp_path_factory.mktemp("packaging")
    build_system = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    assert build_system["build-backend"] == "hatchling.build"
    execute([*PIP, "install", "--target", str(folder / "build"), *build_system["requires"]], folder)
    execute([sys.executable, "-m", "hatchling", "build", "-d", folder / "dist"], ROOT, PYTHONPATH=str(folder / "build"))
    return folder / "dist"


@pytest.fixture(scope="module")
def environment(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with nothing but the wheel and its declared dependencies."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    execute([sys.executable, "-m", "venv", "--without-pip", folder], dist)
    [wheel] = dist.glob("*.whl")
    execute([*PIP, "--python", folder / "bin" / "python", "install", "--no-compile", wheel], dist)
    return folder


def test_the_wheel_has_every_file_of_the_source_and_no_other(dist: Path) -> None:
    [wheel] = dist.glob("*.whl")
    written = [path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    packaged = [name for name in members(wheel) if ".dist-info/" not in name]
    assert sorted(packaged) == sorted(str(path.relative_to(ROOT / "src")) for path in written)


def test_the_sdist_builds_the_same_wheel(dist: Path, tmp_path: Path) -> None:
    [sdist], [wheel] = dist.glob("*.tar.gz"), dist.glob("*.whl")
    execute([*PIP, "wheel", "--no-deps", "--wheel-dir", tmp_path, sdist], tmp_path)
    [rebuilt] = tmp_path.glob("*.whl")
    assert rebuilt.name == wheel.name
    assert members(rebuilt) == members(wheel)


def test_every_module_and_source_loads_without_an_extra(environment: Path, tmp_path: Path) -> None:
    loaded = json.loads(execute([environment / "bin" / "python", "-c", IMPORT_EVERYTHING], tmp_path))
    assert loaded["modules"] > 200
    assert loaded["sources"] == ["demo", "files", "google_ads", "http", "sql"]


def test_the_first_run_of_a_new_workspace_succeeds(environment: Path, tmp_path: Path) -> None:
    path = os.pathsep.join([str(environment / "bin"), os.environ["PATH"]])
    execute(["penstock", "init", "x"], tmp_path, PATH=path)
    first = json.loads(execute(["penstock", "run", "--json"], tmp_path / "x", PATH=path))
    counts = {name: first[name] for name in ("planned", "accepted", "rejected", "loaded", "cancelled", "skipped")}
    assert counts == {"planned": 110, "accepted": 110, "rejected": 0, "loaded": 110, "cancelled": 0, "skipped": 0}
    assert first["failures"] == []
