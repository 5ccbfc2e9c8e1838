"""The public Python API: its names, its types for a user's program, and its documentation."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from reference.python_api import CLASSES, FUNCTIONS, docstring, examples, members

import penstock
from penstock import errors
from penstock.app.backfills import BackfillService
from penstock.cli import backfill

DATA = Path(__file__).parents[1] / "data"
_PROGRAM = """\
from collections.abc import Callable
from datetime import timedelta

from pyspark.sql import SparkSession

import penstock
from penstock import PartitionKey, Selection


def example(ws: penstock.Workspace, spark: SparkSession, key: PartitionKey, worker_token: str) -> None:
"""


def strict(program: Path, cache: Path) -> str:
    """The output of mypy --strict for a program that uses the installed package."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(cache)]
    done = subprocess.run([*command, str(program)], capture_output=True, text=True, timeout=300, cwd=program.parent)
    return done.stdout + done.stderr


def test_the_package_exports_its_front_door_and_every_error() -> None:
    raised = {name for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, Exception)}
    front = {"open", "reader", "Workspace", "Reader", "Selection", "PartitionKey", "Source"}
    assert set(penstock.__all__) == front | raised
    assert all(getattr(penstock, name) is not None for name in penstock.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Shop'"):
        _ = penstock.Shop


def test_a_user_program_passes_strict_type_checks(tmp_path: Path) -> None:
    assert strict(DATA / "user_program.py", tmp_path) == ""


def test_every_public_method_has_an_example_that_passes_strict_type_checks(tmp_path: Path) -> None:
    found = {f"penstock.{one.__name__}": docstring(one) for one in FUNCTIONS}
    found |= {f"{cls.__name__}.{name}": docstring(value) for _, cls in CLASSES for name, value in members(cls)}
    assert [name for name, text in found.items() if not examples(text)] == []
    program = tmp_path / "examples.py"
    program.write_text(_PROGRAM + "".join(f"    {line}\n" for text in found.values() for line in examples(text)))
    assert strict(program, tmp_path / "cache") == ""


def test_a_reader_has_no_service_that_changes_anything() -> None:
    """`penstock.reader` returns an object whose public methods only read."""
    mutating = {"start", "resume", "cancel", "retry", "pause", "demote", "rollback", "approve", "vacuum", "migrate"}
    assert {name for name in dir(penstock.Reader) if not name.startswith("_")} & mutating == set()


def test_a_backfill_has_the_defaults_of_its_command() -> None:
    service, command = (inspect.signature(found).parameters for found in (BackfillService.plan, backfill.create))
    for name in ("chunk_size", "priority", "max_chunks", "reprocess"):
        assert service[name].default == command[name].default, name
