"""The page of errors: every error class that Penstock raises on purpose, from the classes themselves."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Sequence

import penstock
from penstock.errors import PenstockError, TransientError

_INTRODUCTION = """\
Every error that Penstock raises on purpose is a `penstock.errors.PenstockError`. A command ends with the error's message on
standard error and the error's exit code (`--debug` adds the traceback); see [exit codes](exit-codes.md). An error of one
partition does not end a run: it is recorded with its attempt, the other partitions continue, and the run ends with exit
code 1. `penstock failed` lists these errors, `penstock why KEY` shows what happens next.

The error class decides what the retry policy does (`retry.errors` in the [settings](settings.md)). `quota` and `auth` concern
the whole source: they never count as a failed attempt of a partition.
"""
_HEAD = ("| error | meaning | error class | exit code | what to do |", "|---|---|---|---|---|")


def catalogue() -> list[type[PenstockError]]:
    """Every public error class of the package, a base class before the classes that derive from it."""
    for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if not module.name.startswith("penstock.db.migrations") and module.name != "penstock.__main__":
            importlib.import_module(module.name)
    return list(dict.fromkeys(_derived(PenstockError)))


def _derived(base: type[PenstockError]) -> Iterator[type[PenstockError]]:
    if base.__module__.startswith("penstock.") and not base.__name__.startswith("_"):
        yield base
    for error in sorted(base.__subclasses__(), key=lambda error: error.__name__):
        yield from _derived(error)


def page() -> str:
    """The page as Markdown."""
    errors = catalogue()
    transient = [error for error in errors if issubclass(error, TransientError)]
    terminal = [error for error in errors if error not in transient]
    lines = ["# Errors\n", _INTRODUCTION]
    lines += ["## Transient: the same work may succeed later\n", *_table(transient)]
    lines += ["## Terminal: something must be changed first\n", *_table(terminal)]
    return "\n".join(lines)


def _table(errors: Sequence[type[PenstockError]]) -> list[str]:
    return [*_HEAD, *map(_row, errors), ""]


def _row(error: type[PenstockError]) -> str:
    module = error.__module__.removeprefix("penstock.errors")
    name = f"{module}.{error.__name__}".removeprefix(".")
    meaning = " ".join((error.__doc__ or "").split())
    return f"| `{name}` | {meaning} | {error.error_class} | {error.exit_code.value} | {error.remedy} |"
