"""How Spark starts: with its classes ready."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli import answer, penstock
from penstock.pipeline.session import archive_of_classes


def test_a_session_maps_the_classes_that_were_kept(spark: Any, tmp_path: Path) -> None:
    archive = archive_of_classes()
    if archive is None:
        pytest.skip("this Java keeps no classes")
    said = penstock("spark", "prepare", "--json")
    assert said.returncode == 0, said.stderr
    mapped = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps").read_text()
    assert str(archive.path) in mapped
    penstock("init", str(tmp_path))
    [found] = [item for item in answer("doctor", workspace=tmp_path)["items"] if item["check"] == "spark"]
    assert "prepare" not in found["detail"]
