"""The reference pages match the code, and every invariant names tests that exist."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from penstock.cli.main import app

ROOT = Path(__file__).parents[2]
_SHELL = ("", "sh", "console")  # the languages of code blocks with commands


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
    """The names that a statement of a test file defines: a function, a class, or an assigned class (Hypothesis)."""
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


def test_every_command_in_the_pages_exists_with_its_options() -> None:
    root = typer.main.get_command(app)
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    named = [(page, line) for page in pages for line in _command_lines(page.read_text())]
    assert len(named) >= 200
    assert [f"{page.name}: {line}: {wrong}" for page, line in named for wrong in _unknown_parts(root, line)] == []


def _command_lines(text: str) -> Iterator[str]:
    """Yields each `penstock ...` of a page: in backticks, or as a command in a block of code."""
    blocks = [body for kind, body in re.findall(r"^```([^\n]*)\n(.*?)^```", text, re.M | re.S) if kind in _SHELL]
    inline = re.findall(r"`(penstock [^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    commands = [line for block in blocks for line in re.findall(r"(?:^|[$&;(] ?)(penstock [^#|&;>\n]+)", block, re.M)]
    yield from (" ".join(line.split()) for line in (*inline, *commands))


def _unknown_parts(root: Any, line: str) -> Iterator[str]:
    """Yields the subcommand that does not exist, or each option that the command does not have."""
    command = root
    for word in line.split()[1:]:
        group = getattr(command, "commands", None)
        if word.startswith("--"):
            known = {option for parameter in command.params for option in parameter.opts}
            name = word.strip(",;:.").split("=")[0]
            if name not in known and name != "--help":
                yield name
        elif group is not None and re.fullmatch(r"[a-z][a-z-]*", word):
            if word not in group:
                yield word
                return
            command = group[word]
