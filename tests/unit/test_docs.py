"""The reference pages say what the code says, and every invariant names tests that exist."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_reference_pages_are_current() -> None:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "scripts" / "generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    reference = ROOT / "docs" / "reference"
    stale = [name for name, text in generator.pages().items() if (reference / name).read_text() != text]
    assert stale == [], "run `make docs`"


def test_every_invariant_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "invariants.md").read_text()
    rows = [line for line in text.splitlines() if re.match(r"\| I\d+ ", line)]
    assert len(rows) >= 12
    assert [int(number) for number in re.findall(r"^\| I(\d+) ", text, re.M)] == list(range(1, len(rows) + 1))
    known = {
        f"{path.relative_to(ROOT)}::{name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.parse(path.read_text()).body
        for name in _names(node)
    }
    for row in rows:
        named = re.findall(r"`(tests/[^`]+)`", row)
        assert named, row
        assert [name for name in named if name not in known] == [], row


def _names(node: ast.stmt) -> list[str]:
    """What a statement of a test file defines: a function, a class, or (as Hypothesis does it) an assigned class."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    return [target.id for target in getattr(node, "targets", ()) if isinstance(target, ast.Name)]


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} -> {target}"


def test_every_mutation_that_must_not_pass_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "testing.md").read_text()
    named = re.findall(r"`(tests/[^`]+\.py)::(\w+)`", text)
    assert len(named) >= 20
    for path, name in named:
        defined = [found for node in ast.parse((ROOT / path).read_text()).body for found in _names(node)]
        assert name in defined, f"{path}::{name}"
