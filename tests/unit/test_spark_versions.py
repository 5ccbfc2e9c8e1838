"""An unsupported Spark is refused before any work; a newer one is allowed. Every tested version has a lock file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyspark.version
import pytest

from penstock.control.select import Selection
from penstock.errors import ConfigError
from penstock.pipeline.spark_versions import TESTED, installed, is_tested, require_supported
from support import builders, cli
from support.workspaces import open_at, write_workspace

LOCKS = Path(__file__).parents[2] / "requirements"


@pytest.mark.parametrize("version", ["3.5.9", "3.5.6-amzn-1", "2.4.8", "3.10.0"])
def test_an_older_version_is_refused_with_the_supported_ones(version: str) -> None:
    with pytest.raises(ConfigError) as refused:
        require_supported(version, "the server")
    assert str(refused.value) == (
        f"the server is Spark {version}, and Penstock needs Spark 4.0 or newer (tested: 4.0, 4.1, 4.2, 4.3):"
        " install or connect to one of these"
    )


@pytest.mark.parametrize(
    ("version", "tested"),
    [
        ("4.0.0", True),
        ("4.0.5-amzn-0", True),
        ("4.3.0", True),
        ("4.4.0.dev1", False),
        ("4.10.0", False),
        ("5.0", False),
    ],
)
def test_a_newer_version_is_allowed(version: str, tested: bool) -> None:
    require_supported(version, "the server")
    assert is_tested(version) is tested


def test_a_version_that_is_no_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="'main' of Spark cannot be read"):
        require_supported("main", "the server")


def test_an_old_pyspark_ends_a_run_with_one_line_and_nothing_is_issued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ws = open_at(write_workspace(tmp_path))
    monkeypatch.setattr(pyspark.version, "__version__", "3.5.9")
    ended = cli.in_process("run", "--until", "2024-06-10", workspace=tmp_path)
    assert ended.code == 1
    message = " ".join(ended.stderr.split())
    assert "the installed pyspark is Spark 3.5.9, and Penstock needs Spark 4.0 or newer" in message
    assert "Traceback" not in message
    assert builders.everything(ws.context.database)["partition_attempt"] == []


def test_an_old_spark_home_ends_a_run_and_nothing_is_issued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ws = open_at(write_workspace(tmp_path))
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "spark-core_2.12-3.5.6-amzn-1.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    ended = cli.in_process("run", "--until", "2024-06-10", workspace=tmp_path)
    assert ended.code == 1
    assert "is Spark 3.5.6-amzn-1, and Penstock needs Spark 4.0 or newer" in " ".join(ended.stderr.split())
    assert builders.everything(ws.context.database)["partition_attempt"] == []


def test_an_old_session_of_the_caller_is_refused_and_nothing_is_issued(tmp_path: Path) -> None:
    ws = open_at(write_workspace(tmp_path))
    old: Any = type("Session", (), {"version": "3.5.9"})()
    with pytest.raises(ConfigError, match=r"the Spark of this session is Spark 3\.5\.9"):
        ws.runs.start(Selection(), actor="test", spark=old)
    assert builders.everything(ws.context.database)["partition_attempt"] == []


@pytest.mark.parametrize(
    ("version", "ok", "detail"),
    [
        ("4.0.5", True, r"pyspark 4\.0\.5(; |$)"),
        ("4.9.1", True, r"pyspark 4\.9\.1, which is not tested \(tested: 4\.0, 4\.1, 4\.2, 4\.3\)"),
        ("3.5.9", False, r"the installed pyspark is Spark 3\.5\.9"),
    ],
)
def test_doctor_reports_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, ok: bool, detail: str
) -> None:
    open_at(write_workspace(tmp_path))
    monkeypatch.setattr(pyspark.version, "__version__", version)
    items = cli.in_process("doctor", "--json", workspace=tmp_path).document["items"]
    [spark] = [item for item in items if item["check"] == "spark"]
    assert spark["ok"] is ok
    assert re.match(detail, spark["detail"])


def test_every_tested_version_has_a_lock_file() -> None:
    def locked(name: str) -> str:
        [version] = re.findall(r"^pyspark==(\d+\.\d+)", (LOCKS / name).read_text(), re.MULTILINE)
        return str(version)

    others = {path.name for path in LOCKS.glob("spark-*.lock")}
    assert [locked(name) for name in sorted(others)] == [name[len("spark-") : -len(".lock")] for name in sorted(others)]
    assert sorted([*map(locked, others), locked("dev.lock")]) == [f"{major}.{minor}" for major, minor in TESTED]
    assert is_tested(installed())
