"""All mutants of a file, without those that cannot change the behaviour of the program."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from operators import operators

_LARGEST_NUMBER = 999  # larger ones are sizes of pages and batches


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file: the occurrence of an operator."""

    package: str
    path: str
    operator: str
    occurrence: int
    line: int

    def code(self, source: str) -> str | None:
        changed: str | None = mutate_code(source, operators()[self.operator], self.occurrence)
        return changed

    def diff(self, source: str) -> list[str]:
        """The removed lines and their replacement."""
        lines = unified_diff(source.splitlines(), (self.code(source) or "").splitlines(), lineterm="", n=0)
        return [line for line in lines if line[:1] in "-+" and line[:3] not in ("---", "+++")]


def mutants(package: str, path: Path, root: Path) -> Iterator[Mutant]:
    source = path.read_text()
    tree = get_ast(source)
    excluded = _excluded(source)
    for name, operator in operators().items():
        occurrence = -1
        for node in ast_nodes(tree):
            for (line, column), _ in operator.mutation_positions(node):
                occurrence += 1
                if not (_is_excluded(excluded, line, column) or _is_size(name, node) or _is_separator(node)):
                    yield Mutant(package, str(path.relative_to(root)), name, occurrence, line)


def _is_size(operator: str, node: Any) -> bool:
    if operator != "NumberReplacer":
        return False
    value = ast.literal_eval(node.value)
    return bool(abs(value) > _LARGEST_NUMBER)


def _is_separator(node: Any) -> bool:
    """The star between positional and keyword parameters, which is no multiplication."""
    return node.type == "operator" and node.parent.type in ("parameters", "param")


def _is_tuning(statement: ast.Assign) -> bool:
    """A constant of a module that is a number: the size of a page, a pause, a ratio. No promise names it."""
    names = [node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    values = [node.value for node in ast.walk(statement.value) if isinstance(node, ast.Constant)]
    return all(name.isupper() for name in names) and all(isinstance(value, int | float) for value in values)


Range = tuple[tuple[int, int], tuple[int, int]]


def _is_excluded(ranges: list[Range], line: int, column: int) -> bool:
    return any(start <= (line, column) < end or start[0] < line < end[0] for start, end in ranges)


def _excluded(source: str) -> list[Range]:
    """Annotations, decorators, patterns, imports for types, assertions, log lines, progress, messages of errors, and
    code that only PostgreSQL executes: the fast tests run on SQLite."""
    found: list[Range] = []

    def leave_out(node: ast.AST | None) -> None:
        if node is not None:
            start = (node.lineno, node.col_offset)  # type: ignore[attr-defined]
            found.append((start, (node.end_lineno, node.end_col_offset)))  # type: ignore[attr-defined]

    tree = ast.parse(source)
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and _is_tuning(statement):
            leave_out(statement.value)
    for node in ast.walk(tree):
        match node:
            case ast.arg() | ast.AnnAssign():
                leave_out(node.annotation)
            case ast.FunctionDef():
                leave_out(node.returns)
                for decorator in node.decorator_list:
                    leave_out(decorator)
            case ast.ClassDef():
                for decorator in node.decorator_list:
                    leave_out(decorator)
            case ast.If() if ast.unparse(node.test) == "TYPE_CHECKING" or "'postgresql'" in ast.unparse(node.test):
                leave_out(node)
            case ast.Assert() | ast.Raise():
                leave_out(node)
            case ast.match_case():
                leave_out(node.pattern)
            case ast.keyword() if node.arg == "strict":
                leave_out(node)
            case ast.Call() if ast.unparse(node.func).startswith(("log.", "report", "lock_")):
                leave_out(node)
            case ast.Dict():
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "postgresql":
                        leave_out(value)
            case _:
                pass
    return found
