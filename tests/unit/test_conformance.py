"""`docs/conformance.md`: every sentence of the specifications has a row, and every row a test that exists and runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from penstock.cli.main import app

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "conformance.md"
DECISIONS = ROOT / "docs" / "decisions.md"

# The number of sentences of each specification, and of documented rules of the command line and the Python interface.
SENTENCES = {"S": 56, "W": 55, "R": 58, "D": 41, "P": 44, "C": 49}

_NUMBERED = re.compile(r"([A-Z])(\d+)")
_COMMAND = re.compile(r"`(penstock [^`]*)`")
_TEST = re.compile(r"`(tests/[^`]+)`")
_SKIPS = {"skip", "skipif", "xfail", "importorskip"}


def violations(text: str) -> list[str]:
    """The errors in the page."""
    tables = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    numbered = [row for row in tables if _NUMBERED.fullmatch(row[0])]
    commands = [(found[1], row[1]) for row in tables if (found := _COMMAND.fullmatch(row[0]))]
    return [
        *_numbers(numbered),
        *(f"{row[0]}: {wrong}" for row in numbered for wrong in _row(*row[1:])),
        *_commands(commands),
    ]


def _numbers(rows: list[list[str]]) -> Iterator[str]:
    for letter, wanted in SENTENCES.items():
        mine = [row for row in rows if row[0][0] == letter]
        if [row[0] for row in mine] != [f"{letter}{number}" for number in range(1, wanted + 1)]:
            yield f"{letter}: expected 1 to {wanted} in order, found {len(mine)} rows"
        sentences = [row[1] for row in mine]
        yield from (f"{letter}: repeated: {one}" for one in set(sentences) if sentences.count(one) > 1)
    yield from (f"{row[0]}: belongs to no specification" for row in rows if row[0][0] not in SENTENCES)


def _row(sentence: str, how: str, proof: str) -> Iterator[str]:
    tests = _TEST.findall(proof)
    settled = re.search(r"settled: (.*)", how)
    if not sentence:
        yield "has no sentence"
    if settled and not re.search(r"decision \d+|\]\([^)]+\)|`(bench|docs)/`", settled[1]):
        yield "does not say where it is settled"
    if not tests and not settled:
        yield "names no test and is not settled"
    if len(tests) != proof.count("::"):
        yield f"has something else than tests: {proof}"
    for number in re.findall(r"decision (\d+)", how):
        if int(number) not in _decisions():
            yield f"decision {number} is not in {DECISIONS.name}"
    yield from (wrong for test in tests for wrong in _test(test))


def _commands(rows: list[tuple[str, str]]) -> Iterator[str]:
    named, known = [command for command, _ in rows], list(_known_commands())
    yield from (f"{command}: has no row" for command in known if command not in named)
    yield from (f"{command}: is no command" for command in named if command not in known)
    for command, proof in rows:
        if not _TEST.findall(proof):
            yield f"{command}: names no test"
        yield from (f"{command}: {wrong}" for test in _TEST.findall(proof) for wrong in _test(test))


def _known_commands() -> Iterator[str]:
    def walk(path: str, command: Any) -> Iterator[str]:
        children: dict[str, Any] | None = getattr(command, "commands", None)
        if children is None:
            yield path
            return
        for name, child in children.items():
            yield from walk(f"{path} {name}", child)

    return walk("penstock", typer.main.get_command(app))


def _test(test: str) -> Iterator[str]:
    path, _, name = test.partition("::")
    file = ROOT / path
    if not file.exists():
        yield f"{path} does not exist"
    elif name not in (found := _defined(file)):
        yield f"{test} does not exist"
    elif found[name]:
        yield f"{test} may be skipped"


@cache
def _decisions() -> set[int]:
    return {int(number) for number in re.findall(r"^(\d+)\. \*\*", DECISIONS.read_text(), re.MULTILINE)}


@cache
def _defined(file: Path) -> dict[str, bool]:
    """The tests of a file, and whether anything in them (or a mark of the whole file) skips them."""
    body = ast.parse(file.read_text()).body
    skipped = any(_skips(node) for node in body if isinstance(node, ast.Assign) and _names(node) == ["pytestmark"])
    return {name: skipped or _skips(node) for node in body for name in _names(node)}


def _names(node: ast.stmt) -> list[str]:
    """The names that a statement defines: a function, a class, or (as Hypothesis does it) an assigned class."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    return [target.id for target in getattr(node, "targets", ()) if isinstance(target, ast.Name)]


def _skips(node: ast.AST) -> bool:
    """`pytest.skip(...)`, `@pytest.mark.skipif(...)` and the like, anywhere inside."""
    return any(isinstance(part, ast.Attribute) and part.attr in _SKIPS for part in ast.walk(node))


def test_every_sentence_has_its_number_and_a_test_that_exists() -> None:
    assert violations(PAGE.read_text()) == []


def test_decisions_are_numbered_in_order() -> None:
    assert sorted(_decisions()) == list(range(1, len(_decisions()) + 1))
    assert len(_decisions()) >= 20


@pytest.mark.parametrize(
    ("pattern", "instead", "words"),
    [
        (r"^\| S7 \|.*\n", "", "S: expected 1 to 56 in order, found 55 rows"),
        (r"^\| D3 \|", "| D4 |", "D: expected 1 to 41 in order"),
        (r"^(\| P5 \| )[^|]*\|", r"\1 |", "P5: has no sentence"),
        (r"^(\| R6 \|[^|]*\|[^|]*\|).*$", r"\1 |", "R6: names no test and is not settled"),
        (r"^(\| R6 \|[^|]*\|).*$", r"\1 settled: somewhere |  |", "R6: does not say where it is settled"),
        (r"^(\| S8 \|.*settled: decision) 10\b", r"\1 99", "S8: decision 99 is not in decisions.md"),
        (r"^(\| W5 \|.*)::test_", r"\1::tests_", "does not exist"),
        (r"^(\| W5 \|.*)tests/spark/", r"\1tests/sparks/", "does not exist"),
        (
            r"^(\| W5 \|[^|]*\|[^|]*\|).*$",
            r"\1 `tests/contract/test_withdrawn.py::test_the_search_begins_with_the_demoted_attempts` |",
            "may be skipped",
        ),
        (
            r"^(\| W5 \|[^|]*\|[^|]*\|).*$",
            r"\1 `tests/acceptance/test_spark_start.py::test_a_session_maps_the_classes_that_were_kept` |",
            "may be skipped",
        ),
        (r"^\| `penstock why` .*\n", "", "penstock why: has no row"),
        (r"^\| `penstock why` ", "| `penstock whence` ", "penstock whence: is no command"),
    ],
)
def test_a_broken_row_is_found(pattern: str, instead: str, words: str) -> None:
    broken, changes = re.subn(pattern, instead, PAGE.read_text(), count=1, flags=re.MULTILINE)
    assert changes == 1
    assert [wrong for wrong in violations(broken) if words in wrong], violations(broken)
