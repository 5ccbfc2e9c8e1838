"""pyproject.toml declares every imported package, and no other.

A core dependency may be imported anywhere. An extra is installed only by those who ask for it.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

# Declared, but imported by no module of ours.
NOT_IMPORTED = {
    "pandas": "PySpark refuses Arrow functions without it",
    "tzdata": "the time zones of `zoneinfo` on systems without their own",
    "psycopg": "SQLAlchemy imports it for a URL of PostgreSQL",
}
# Imported, and installed as a requirement of a declared distribution whose version must fit to it.
REQUIRED_BY = {"py4j": "pyspark", "pydantic_core": "pydantic", "grpc": "google-ads"}


def distribution(requirement: str) -> str:
    """`PyYAML>=6` and `psycopg[binary]>=3` as `pyyaml` and `psycopg`."""
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None, requirement
    return normalised(found.group())


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


CORE = {distribution(requirement) for requirement in PROJECT["dependencies"]}
OPTIONAL = {distribution(requirement) for extra in EXTRAS.values() for requirement in extra} - CORE


def imports() -> Iterator[tuple[str, str]]:
    """Every third-party package that a module imports, anywhere in it, with the module's path."""
    for file in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names: Iterable[str] = ()
            if isinstance(node, ast.Import):
                names = (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = (node.module or "",)
            for name in {name.partition(".")[0] for name in names}:
                if name not in sys.stdlib_module_names and name not in ("penstock", "pyspark_penstock"):
                    yield name, str(file.relative_to(ROOT))


IMPORTED = dict(imports())
INSTALLED = {package: {normalised(name) for name in names} for package, names in packages_distributions().items()}


@pytest.mark.parametrize("package", sorted(IMPORTED))
def test_every_imported_package_is_a_core_dependency_or_belongs_to_an_extra(package: str) -> None:
    providers = {REQUIRED_BY[package]} if package in REQUIRED_BY else INSTALLED[package]
    assert providers & (CORE | OPTIONAL), f"{IMPORTED[package]} imports {package}: declare what installs it"


def test_the_packages_that_a_dependency_brings_along_are_its_requirements() -> None:
    for package, declared in REQUIRED_BY.items():
        assert {distribution(needed) for needed in requires(declared) or ()} & INSTALLED[package], package


def test_every_declared_dependency_is_used() -> None:
    used = {name for package in IMPORTED for name in INSTALLED[package]}
    assert sorted((CORE | OPTIONAL) - used) == sorted(NOT_IMPORTED)


def test_every_message_and_page_names_an_extra_that_exists() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    named = {extra for page in pages for extra in re.findall(r"penstock\[([\w-]+)\]", page.read_text())}
    assert named <= set(EXTRAS)
    assert {"postgres", "s3", "google-ads", "http", "openlineage", "connect", "console"} <= named


def test_the_dev_lock_has_every_extra() -> None:
    makefile, lock = (ROOT / "Makefile").read_text(), (ROOT / "requirements" / "dev.lock").read_text()
    [command] = [line for line in makefile.splitlines() if line.endswith("requirements/dev.lock")]
    assert sorted(re.findall(r"--extra ([\w-]+)", command)) == sorted(EXTRAS)
    assert OPTIONAL - {normalised(name) for name in re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)} == set()
