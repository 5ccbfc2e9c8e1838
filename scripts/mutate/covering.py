"""Which tests call which functions, as a plugin of pytest; and which of them are worth running for a mutant."""

from __future__ import annotations

import ast
import json
import os
import sys
import threading
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

OUT_OF_REACH = {"postgres_url", "s3_url", "spark"}  # fixtures of servers
# About other packages than those that are examined, or about no behaviour; their tests take most of the time.
ELSEWHERE = {
    "test_architecture.py", "test_aside.py", "test_budget.py", "test_checker.py", "test_class_archive.py",
    "test_connect.py", "test_content.py", "test_contract_parsing.py", "test_demo_source.py", "test_docs.py",
    "test_examination.py", "test_extraction.py", "test_field_types.py", "test_figures.py", "test_files_source.py",
    "test_gaql.py", "test_google_ads.py", "test_horizon.py", "test_hostile_sources.py", "test_http_source.py",
    "test_infer.py", "test_lake_contract.py", "test_large_slices.py", "test_mutation_operators.py", "test_odcs.py",
    "test_partition.py", "test_query_options.py", "test_raw_contract.py", "test_raw_layout.py", "test_roles.py",
    "test_schema_agreement.py", "test_settings.py", "test_soak_plan.py", "test_source_suite.py",
    "test_sources_contract.py", "test_sql_guard.py", "test_sql_source.py", "test_stdout.py", "test_summarise.py",
    "test_values.py", "test_windows.py", "test_workers.py",
}  # fmt: skip


class Recorder:
    """Notes for each test the functions below `src` that it calls, and how long it takes."""

    def __init__(self, src: Path) -> None:
        self._src = f"{src}{os.sep}"
        self._codes: set[CodeType] = set()
        self._failed: set[str] = set()
        self.tests: dict[str, dict[str, Any]] = {}

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return True if collection_path.name in ELSEWHERE else None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        keep_fast(items)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._codes = set()
        began = time.monotonic()
        sys.settrace(self._trace)
        threading.settrace(self._trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            seconds = time.monotonic() - began
            called = sorted({(c.co_filename.removeprefix(self._src), c.co_firstlineno) for c in self._codes})
            self.tests[item.nodeid] = {"seconds": seconds, "called": called, "failed": item.nodeid in self._failed}

    def _trace(self, frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code.co_filename.startswith(self._src):
            self._codes.add(frame.f_code)

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)


def keep_fast(items: list[pytest.Item]) -> None:
    """Leave out what needs a server."""

    def is_fast(item: pytest.Item) -> bool:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        fixtures = set(getattr(item, "fixturenames", ()))
        return "postgresql" not in parameters.values() and not fixtures & OUT_OF_REACH

    items[:] = [item for item in items if is_fast(item)]


class Coverage:
    """The tests of each function, from what was recorded."""

    def __init__(self, recorded: Path, root: Path) -> None:
        tests = json.loads(recorded.read_text())
        self._seconds = {name: found["seconds"] for name, found in tests.items() if not found["failed"]}
        self._root = root
        self._functions: dict[str, list[tuple[str, int, int]]] = {}
        self._constants: dict[str, dict[str, tuple[int, int]]] = {}
        self._users: dict[str, dict[str, set[tuple[str, int]]]] = {}
        self._tests: dict[tuple[str, int], set[str]] = {}
        for name, found in tests.items():
            for path, line in found["called"]:
                self._tests.setdefault((path, self._innermost(path, line)), set()).add(name)

    def seconds(self, tests: Iterable[str]) -> float:
        return float(sum(self._seconds[test] for test in tests))

    def tests(self, path: str, line: int, budget: float) -> list[str]:
        """Tests that execute a line, the quickest first, as many as fit into the budget (at least three)."""
        found = self._tests_of(path, line)
        ordered = sorted((test for test in found if test in self._seconds), key=self._seconds.__getitem__)
        chosen: list[str] = []
        for test in ordered:
            if len(chosen) >= 3 and self.seconds(chosen) + self._seconds[test] > budget:
                break
            chosen.append(test)
        return chosen

    def _tests_of(self, path: str, line: int) -> set[str]:
        inside = self._innermost(path, line)
        if inside:
            return self._tests.get((path, inside), set())
        for name, (first, last) in self._constants[path].items():
            if first <= line <= last and (used := self._tests_of_constant(path, name, {name})):
                return used
        return set().union(*(tests for (where, _), tests in self._tests.items() if where == path), set())

    def _tests_of_constant(self, path: str, name: str, seen: set[str]) -> set[str]:
        """Tests of the functions that read a constant of a module, also through other constants."""
        found: set[str] = set()
        for where, line in self._names(path).get(name, set()):
            if function := self._innermost(where, line):
                found |= self._tests.get((where, function), set())
                continue
            for other, (first, last) in self._constants[where].items():
                if first <= line <= last and other not in seen:
                    found |= self._tests_of_constant(where, other, seen | {other})
        return found

    def _names(self, path: str) -> dict[str, set[tuple[str, int]]]:
        if path not in self._users:
            tree = ast.parse((self._root / path).read_text())
            users: dict[str, set[tuple[str, int]]] = {}
            for node in ast.walk(tree):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                    users.setdefault(node.id, set()).add((path, node.lineno))
            self._users[path] = users
        return self._users[path]

    def _innermost(self, path: str, line: int) -> int:
        """The first line of the innermost function around a line; 0 outside of all."""
        if path not in self._functions:
            self._read(path)
        around = [(first, last) for _, first, last in self._functions[path] if first <= line <= last]
        return max((first for first, _ in around), default=0)

    def _read(self, path: str) -> None:
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
