"""Imports point downwards, and a read-only command does not import Spark."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock

ROOT = Path(penstock.__file__).parent

# From top to bottom: a part may import the parts below it, and its own modules.
LAYERS = (
    "cli",
    "http",
    "notebook",
    "views",
    "app",
    "testing",
    "client",
    "observe",
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
    "html",
    "spark_frames",
    "arrow_pandas",
    "user_cache",
    "failpoint",
    "log_fields",
    "redaction",
    "interrupts",
    "errors",
)

# `python -m penstock` is equivalent to `penstock`.
ENTRY_POINTS = {"__main__": "cli"}

# (importing module, imported part): why this import may point upwards.
EXCEPTIONS: dict[tuple[str, str], str] = {}

# Modules that import more than twenty modules of ours, and why.
WIDE: dict[str, str] = {
    "penstock.app.context": "opens every store of a workspace",
    "penstock.app.maintenance": "one method for each maintenance command; each works on other packages",
    "penstock.app.partitions": "answers questions about partitions from state, pointers, status and plans",
    "penstock.app.recovery": "compares the database and the lake, asset by asset",
    "penstock.app.runs": "carries a run through plan, issue, runner and publication",
    "penstock.app.table_rebuild": "rebuilds tables from raw, under contracts of both stores",
    "penstock.flow.derive": "derives model partitions: inputs, contracts, rows and raw sink",
    "penstock.flow.stages": "the stages of a run: extract, derive, validate, publish",
}

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
    """`cli` for penstock.cli.main; None for other packages, and for the version in penstock itself."""
    root, _, rest = module.partition(".")
    part = rest.partition(".")[0]
    part = ENTRY_POINTS.get(part, part)
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
    assert found == set(LAYERS)


def test_imports_point_downwards() -> None:
    wrong = [
        f"{module}:{line} imports {target}"
        for module, target, line in upward_imports()
        if (module, target) not in EXCEPTIONS
    ]
    assert wrong == []


def imported_modules(file: Path, module: str) -> set[str]:
    """The modules of ours that a module imports when it runs; imports for types only do not count."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    found = {name for name, _ in imported(tree, module, file.name == "__init__.py")}
    return {name for name in found if name.startswith("penstock.") and not name.startswith("penstock.__")}


def test_no_module_imports_more_than_twenty_modules_without_a_reason() -> None:
    wide = {module for module, file in modules() if len(imported_modules(file, module)) > 20}
    assert wide == set(WIDE), "split the module, or add the reason"
    assert all(WIDE.values())


def inherited(tree: ast.Module) -> dict[str, list[str]]:
    """The base classes of each class, but those that give no behaviour."""
    return {
        node.name: [
            name
            for name in map(ast.unparse, node.bases)
            if name.partition("[")[0] not in ("Protocol", "NamedTuple", "Generic")
        ]
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }


def test_services_do_not_inherit() -> None:
    """A service gets other services as arguments of its constructor: inheritance never means "may use"."""
    found = {
        f"{module}.{name}": bases
        for module, file in modules()
        if part_of(module) == "app"
        for name, bases in inherited(ast.parse(file.read_text())).items()
    }
    assert len(found) >= 20
    assert {name: bases for name, bases in found.items() if bases} == {}


def test_the_check_itself_sees_a_service_that_inherits() -> None:
    text = "class A: ...\nclass B(A, Protocol): ...\nclass C(A[T], Generic[T]): ..."
    assert inherited(ast.parse(text)) == {"A": [], "B": ["A"], "C": ["A[T]"]}


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


def compared(tree: ast.AST) -> Iterator[tuple[ast.Compare, ast.expr]]:
    """Every operand of every comparison, with the members of a tuple, list or set one by one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for operand in (node.left, *node.comparators):
                members = operand.elts if isinstance(operand, ast.Tuple | ast.List | ast.Set) else [operand]
                yield from ((node, member) for member in members)


def kind_tests(tree: ast.AST) -> list[int]:
    """The lines that compare a source with MODELS instead of asking for the kind of an asset."""
    return [
        node.lineno
        for node, operand in compared(tree)
        if getattr(operand, "id", None) == "MODELS" or getattr(operand, "attr", None) == "MODELS"
    ]


def test_only_two_modules_know_how_a_derived_asset_is_marked() -> None:
    allowed = {"penstock.partition", "penstock.control.select"}
    found = {module: kind_tests(ast.parse(file.read_text())) for module, file in modules() if module not in allowed}
    assert {module: lines for module, lines in found.items() if lines} == {}


def error_text_tests(tree: ast.AST) -> list[int]:
    """The lines that decide by the text of an error: that compare `str(error)`, or search in it."""
    errors = {"error", "original"}
    for node in ast.walk(tree):
        match node:
            case ast.ExceptHandler(name=str(name)):
                errors.add(name)
            case ast.arg(arg=name, annotation=ast.expr() as kind) if re.search("Error|Exception", ast.unparse(kind)):
                errors.add(name)

    def is_text(node: ast.expr) -> bool:
        match node:
            case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id=name)]):
                return name in errors
        return False

    found = {node.lineno for node, operand in compared(tree) if is_text(operand)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=text, attr="startswith" | "endswith" | "find" | "count")):
                found |= {node.lineno} if is_text(text) else set()
            case ast.Call(func=ast.Attribute(attr="search" | "match" | "fullmatch"), args=texts):
                found |= {node.lineno} if any(is_text(text) for text in texts) else set()
    return sorted(found)


# Errors of libraries that have neither a class nor a code for the case. Our own errors have classes.
ERROR_TEXTS = {
    "penstock.lake.s3": "obstore has no class for a bucket that does not exist",
    "penstock.pipeline.spark_jobs": "Spark's cancellation of all jobs reaches Python as text",
    "penstock.source.sql": "drivers without SQLSTATE; and the text is searched for secrets",
    "penstock.warehouse.scan": "Arrow's S3 client has no error class of its own",
}


def test_no_decision_depends_on_the_text_of_an_error() -> None:
    found = {module for module, file in modules() if error_text_tests(ast.parse(file.read_text()))}
    assert found == set(ERROR_TEXTS), "give the error a class; only errors of libraries may be listed"


@pytest.mark.parametrize(
    "source",
    [
        "'x' in str(error)",
        "str(error) == 'x'",
        "str(error).startswith('x')",
        "re.search('x', str(error))",
        "PATTERN.match(str(original))",
        "try: f()\nexcept E as e: print('x' not in str(e))",
        "def f(refused: OSError): return 'x' in str(refused)",
    ],
)
def test_the_check_itself_sees_every_look_into_the_text_of_an_error(source: str) -> None:
    assert len(error_text_tests(ast.parse(source))) == 1
    assert error_text_tests(ast.parse("log(str(error)); str(key) in keys; isinstance(error, OSError)")) == []


@pytest.mark.parametrize(
    "source", ["s == MODELS", "MODELS != s", "s in (MODELS, x)", "s not in {MODELS}", "s == partition.MODELS"]
)
def test_the_check_itself_sees_every_comparison_with_models(source: str) -> None:
    assert kind_tests(ast.parse(source)) == [1]
    assert kind_tests(ast.parse("key.kind is AssetKind.DERIVED or Selection(source=MODELS)")) == []


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


@pytest.mark.parametrize(
    "module", ["penstock", "penstock.config.settings", "penstock.contract.checks.registry", "penstock.cli.main"]
)
def test_what_every_command_imports_is_light(module: str) -> None:
    whole = "from penstock.cli.main import app; " if module == "penstock.cli.main" else ""  # with every command
    probe = f"import sys, {module}; {whole}print(*sorted({set(HEAVY)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


def created_documents(tree: ast.AST) -> Iterator[int]:
    """The lines that create a JSON document themselves instead of calling a function of views/."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name == "Document":
                yield node.lineno


def json_imports(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            if {"json", "orjson"} & {name.partition(".")[0] for name in names}:
                yield node.lineno


def test_commands_create_no_json_documents() -> None:
    """`show` takes a Document, which mypy checks: a command can only print a document of views/."""
    created = [
        f"{module}:{line}"
        for module, file in modules()
        if part_of(module) in LAYERS[: LAYERS.index("views")]
        for line in created_documents(ast.parse(file.read_text()))
    ]
    assert created == []


def test_commands_encode_no_json() -> None:
    encoded = [
        f"{module}:{line}"
        for module, file in modules()
        if part_of(module) == "cli"
        for line in json_imports(ast.parse(file.read_text()))
    ]
    assert encoded == []


@pytest.mark.parametrize(
    ("source", "documents", "imports"),
    [
        ("x = Document({})", 1, 0),
        ("import penstock.views.document as d\nx = d.Document({})", 1, 0),
        ("from penstock.views.document import Document\ndef f(x: Document) -> None: ...", 0, 0),
        ("import json", 0, 1),
        ("def f():\n    from orjson import dumps", 0, 1),
        ("from penstock.views.rows import json_text", 0, 0),
    ],
)
def test_the_check_of_documents_sees_calls_and_imports(source: str, documents: int, imports: int) -> None:
    tree = ast.parse(source)
    assert (len(list(created_documents(tree))), len(list(json_imports(tree)))) == (documents, imports)
