"""Records which tests execute which lines, as a plugin of pytest, and selects the tests for a mutant."""

from __future__ import annotations

import ast
import json
import os
import time
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

import coverage
import pytest

OUT_OF_REACH = {"postgres_url", "s3_url", "spark"}  # fixtures of servers
# About other packages than those that are examined, or about no behaviour; their tests take most of the time.
ELSEWHERE = {
    "test_architecture.py", "test_parsed_cache.py", "test_budget.py", "test_checker.py", "test_class_data_sharing.py",
    "test_connect.py", "test_content.py", "test_contract_parsing.py", "test_demo_source.py", "test_docs.py",
    "test_examination.py", "test_extraction.py", "test_field_types.py", "test_files_source.py",
    "test_gaql.py", "test_google_ads.py", "test_horizon.py", "test_hostile_sources.py", "test_http_source.py",
    "test_infer.py", "test_lake_contract.py", "test_large_slices.py", "test_mutation_operators.py", "test_odcs.py",
    "test_partition.py", "test_query_options.py", "test_raw_contract.py", "test_raw_layout.py", "test_roles.py",
    "test_schema_agreement.py", "test_settings.py", "test_soak_plan.py", "test_source_suite.py",
    "test_sources_contract.py", "test_sql_guard.py", "test_sql_source.py", "test_stdout.py", "test_slice_stats.py",
    "test_slice_summary.py",
    "test_values.py", "test_windows.py", "test_workers.py",
    "test_dependencies.py", "test_example_workspaces.py", "test_makefile.py", "test_reference_pages.py",
}  # fmt: skip


class Recorder:
    """Notes for each test the lines below `src` that it executes, and how long it takes."""

    def __init__(self, src: Path, packages: Sequence[str]) -> None:
        self._src = f"{src}{os.sep}"
        self._measured = coverage.Coverage(data_file=None, include=[f"{src}/penstock/{name}/*" for name in packages])
        self._failed: set[str] = set()
        self._seconds: dict[str, float] = {}

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return True if collection_path.name in ELSEWHERE else None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        keep_fast(items)

    def pytest_sessionstart(self) -> None:
        self._measured.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._measured.switch_context(item.nodeid)
        began = time.monotonic()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = time.monotonic() - began
            self._measured.switch_context("")

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)

    def recorded(self) -> dict[str, Any]:
        """The durations of the tests that passed, and by file and line which of them execute it."""
        self._measured.stop()
        data = self._measured.get_data()
        seconds = {name: taken for name, taken in self._seconds.items() if name not in self._failed}
        numbers = {name: number for number, name in enumerate(seconds)}
        lines = {
            file.removeprefix(self._src): {
                line: [numbers[name] for name in tests if name in numbers]
                for line, tests in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        return {"seconds": seconds, "failed": sorted(self._failed), "lines": lines}


def keep_fast(items: list[pytest.Item]) -> None:
    """Skip tests that need a server."""

    def is_fast(item: pytest.Item) -> bool:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        fixtures = set(getattr(item, "fixturenames", ()))
        return "postgresql" not in parameters.values() and not fixtures & OUT_OF_REACH

    items[:] = [item for item in items if is_fast(item)]


class Coverage:
    """The tests of each line, from the records."""

    def __init__(self, recorded: Sequence[Path], root: Path) -> None:
        self._root = root
        self._seconds: dict[str, float] = {}
        self._lines: dict[str, dict[int, set[str]]] = {}
        for path in recorded:
            found = json.loads(path.read_text())
            names = list(found["seconds"])
            self._seconds |= found["seconds"]
            for file, lines in found["lines"].items():
                mine = self._lines.setdefault(file, {})
                for line, tests in lines.items():
                    mine.setdefault(int(line), set()).update(names[number] for number in tests)
        self._functions: dict[str, list[tuple[str, int, int]]] = {}
        self._constants: dict[str, dict[str, tuple[int, int]]] = {}
        self._users: dict[str, dict[str, set[int]]] = {}
        self._reach: dict[str, dict[str, int]] = {}

    def seconds(self, tests: Iterable[str]) -> float:
        return float(sum(self._seconds[test] for test in tests))

    def tests(self, path: str, line: int, budget: float) -> list[str]:
        """Tests that execute a line, as many as fit into the budget (at least three): first quick ones that together
        execute as much of the file as all of them do, then those that execute the most of it in their time."""
        found = sorted(self._tests_of(path, line), key=self._seconds.__getitem__)
        first, covered = list[str](), set[int]()
        for test in found:
            mine = {number for number, tests in self._lines.get(path, {}).items() if test in tests}
            if not mine <= covered:
                covered |= mine
                first.append(test)
        reach = self._reach_of(path)
        rest = sorted(set(found).difference(first), key=lambda test: -reach[test] / (self._seconds[test] + 0.05))
        chosen: list[str] = []
        spent = 0.0
        for test in (*first, *rest):
            spent += self._seconds[test]
            if len(chosen) >= 3 and spent > budget:
                break
            chosen.append(test)
        return chosen

    def _reach_of(self, path: str) -> dict[str, int]:
        """The number of lines of a file that each test executes."""
        if path not in self._reach:
            counted: Counter[str] = Counter()
            for tests in self._lines.get(path, {}).values():
                counted.update(tests)
            self._reach[path] = dict(counted)
        return self._reach[path]

    def _tests_of(self, path: str, line: int) -> set[str]:
        self._read(path)
        lines = self._lines.get(path, {})
        if first := self._innermost(path, line):
            # A statement of several lines may be known by its first one.
            known = next((number for number in range(line, first, -1) if lines.get(number)), 0)
            return lines.get(known, set())
        for name, (begin, end) in self._constants[path].items():
            if begin <= line <= end and (used := self._tests_of_constant(path, name, {name})):
                return used
        return set().union(*lines.values())

    def _tests_of_constant(self, path: str, name: str, seen: set[str]) -> set[str]:
        """Tests of the lines that read a constant of a module, also through other constants."""
        found: set[str] = set()
        for line in self._names(path).get(name, set()):
            if self._innermost(path, line):
                found |= self._tests_of(path, line)
                continue
            for other, (first, last) in self._constants[path].items():
                if first <= line <= last and other not in seen:
                    found |= self._tests_of_constant(path, other, seen | {other})
        return found

    def _names(self, path: str) -> dict[str, set[int]]:
        if path not in self._users:
            tree = ast.parse((self._root / path).read_text())
            users: dict[str, set[int]] = {}
            for node in ast.walk(tree):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                    users.setdefault(node.id, set()).add(node.lineno)
            self._users[path] = users
        return self._users[path]

    def _innermost(self, path: str, line: int) -> int:
        """The first line of the innermost function around a line; 0 outside of all."""
        around = [(first, last) for _, first, last in self._functions[path] if first <= line <= last]
        return max((first for first, _ in around), default=0)

    def _read(self, path: str) -> None:
        if path in self._functions:
            return
        file = self._root / path
        functions, constants = [], {}
        tree = ast.parse(file.read_text() if file.exists() else "")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                functions.append((node.name, first, node.end_lineno or first))
        for statement in tree.body:
            for target in getattr(statement, "targets", [getattr(statement, "target", None)]):
                if isinstance(target, ast.Name):
                    constants[target.id] = (statement.lineno, statement.end_lineno or statement.lineno)
        self._functions[path], self._constants[path] = functions, constants
