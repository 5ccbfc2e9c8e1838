"""Imports point downwards, and a command that only looks is not made to wait for Spark."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock

ROOT = Path(penstock.__file__).parent

# From top to bottom: a part may import what stands below it, and its own modules.
LAYERS = (
    "cli",
    "console",
    "app",
    "testing",
    "control",
    "flow",
    "pipeline",
    "source",
    "contract",
    "raw",
    "state",
    "warehouse",
    "ledger",
    "projections",
    "db",
    "lake",
    "derived",
    "config",
    "sql_guard",
    "sql_functions",
    "sql_tables",
    "field_types",
    "lifecycle",
    "expected",
    "partition_set",
    "digests",
    "partition",
    "clock",
    "plural",
    "spark_frames",
    "failpoint",
    "interrupts",
    "errors",
)

# `python -m penstock` is another way to say `penstock`.
FACES = {"__main__": "cli"}

# (importing module, imported part): why this one may look up.
EXCEPTIONS: dict[tuple[str, str], str] = {}

HEAVY = ("pyspark", "pyarrow", "deltalake", "duckdb", "pandas", "sqlalchemy", "sqlglot")


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the package but its front door, which opens the composition root for `penstock.open()`."""
    for file in sorted(ROOT.rglob("*.py")):
        if file == ROOT / "__init__.py":
            continue
        parts = file.relative_to(ROOT).with_suffix("").parts
        yield ".".join(("penstock", *(part for part in parts if part != "__init__"))), file


def imported(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[str, int]]:
    """Every module of ours that is imported: at the top, inside functions, for types only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")[: None if is_package and node.level == 1 else is_package - node.level]
                base = ".".join((*above, *([node.module] if node.module else [])))
            # `from penstock import errors` names a part; `from penstock import __version__` only the front door
            names = [f"penstock.{alias.name}" for alias in node.names] if base == "penstock" else [base]
            yield from ((name, node.lineno) for name in names)


def part_of(module: str) -> str | None:
    """`cli` for penstock.cli.main; None for what is not ours, and for the front door's version."""
    root, _, rest = module.partition(".")
    part = rest.partition(".")[0]
    part = FACES.get(part, part)
    return part if root == "penstock" and part and not part.startswith("__") else None


def upward_imports() -> Iterator[tuple[str, str, int]]:
    for module, file in modules():
        importer = part_of(module)
        assert importer is not None
        for name, line in imported(ast.parse(file.read_text()), module, file.name == "__init__.py"):
            target = part_of(name)
            if target is None or target == importer:
                continue
            if LAYERS.index(target) < LAYERS.index(importer):
                yield module, target, line


def test_every_part_has_its_place_in_the_order() -> None:
    found = {part_of(module) for module, _ in modules()}
    assert found <= set(LAYERS)


def test_imports_point_downwards() -> None:
    wrong = [
        f"{module}:{line} imports {target}"
        for module, target, line in upward_imports()
        if (module, target) not in EXCEPTIONS
    ]
    assert wrong == []


def test_only_the_delta_modules_import_deltalake() -> None:
    importing = {
        module
        for module, file in modules()
        for name, _ in imported(ast.parse(file.read_text()), module, file.name == "__init__.py")
        if name.partition(".")[0] == "deltalake"
    }
    assert importing == {"penstock.warehouse.delta"}


def test_every_exception_is_still_needed_and_has_a_reason() -> None:
    assert set(EXCEPTIONS) <= {(module, target) for module, target, _ in upward_imports()}
    assert all(EXCEPTIONS.values())


@pytest.mark.parametrize(
    ("source", "module", "is_package", "found"),
    [
        ("import penstock.db.engine", "penstock.errors", False, ["penstock.db.engine"]),
        ("def f():\n    from penstock.db import schema", "penstock.errors", False, ["penstock.db"]),
        ("if TYPE_CHECKING:\n    from penstock.app import W", "penstock.errors", False, ["penstock.app"]),
        ("from penstock import partition", "penstock.config.settings", False, ["penstock.partition"]),
        ("from penstock import __version__", "penstock.raw.sink", False, ["penstock.__version__"]),
        ("from . import reader", "penstock.state.control", False, ["penstock.state"]),
        ("from .reader import X", "penstock.state.control", False, ["penstock.state.reader"]),
        ("from ..db import schema", "penstock.state.control", False, ["penstock.db"]),
        ("from .address import X", "penstock.lake", True, ["penstock.lake.address"]),
        ("from ..db import schema", "penstock.lake", True, ["penstock.db"]),
    ],
)
def test_the_check_itself_sees_every_way_to_import(
    source: str, module: str, is_package: bool, found: list[str]
) -> None:
    assert [name for name, _ in imported(ast.parse(source), module, is_package)] == found


@pytest.mark.parametrize("module", ["penstock", "penstock.config.settings", "penstock.cli.main"])
def test_what_every_command_imports_is_light(module: str) -> None:
    probe = f"import sys, {module}; print(*sorted({set(HEAVY)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
