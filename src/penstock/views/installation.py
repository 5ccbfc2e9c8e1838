"""Documents of the installation: workspace, database schema, roles, Spark's class archive, findings of `doctor`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.views.document import Document, listing

if TYPE_CHECKING:
    from penstock.db.roles import RolePlan
    from penstock.pipeline.executor_probe import ExecutorReport


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check of `doctor`. `detail` states the repair if the check failed."""

    check: str
    ok: bool
    detail: str


def doctor_document(findings: Sequence[Finding], executors: Sequence[ExecutorReport] | None = None) -> Document:
    """The findings, and whether every check passed; with `executors` what each of them reported."""
    items = [{"check": one.check, "ok": one.ok, "detail": one.detail} for one in findings]
    document = {**listing(items, len(items)), "ok": all(one.ok for one in findings)}
    if executors is not None:
        document["executors"] = [_executor(one) for one in executors]
    return Document(document)


def _executor(report: ExecutorReport) -> dict[str, object]:
    return {
        "host": report.host,
        "ok": report.ok,
        "python": report.python,
        "executable": report.executable,
        "versions": dict(report.versions),
        "clock_offset": report.clock_offset,
        "problems": [*report.problems, *report.passing_problems],
    }


def source_package_document(name: str, folder: Path, files: Sequence[Path]) -> Document:
    """The files of a new package for a source."""
    return Document({"kind": name, "folder": str(folder), "files": [str(file) for file in files]})


def workspace_document(folder: Path, file: Path, database: str) -> Document:
    """A new workspace: its folder, its file and its state database."""
    return Document({"workspace": str(folder), "file": str(file), "database": database})


def migration_document(database: str, before: str | None, after: str) -> Document:
    """The version of the database schema before and after a migration."""
    return Document({"database": database, "before": before, "after": after})


def roles_document(plan: RolePlan, *, dry_run: bool) -> Document:
    """The PostgreSQL roles, and the number of statements that create them and grant their rights."""
    return Document({"roles": list(plan.names.values()), "statements": len(plan.statements), "dry_run": dry_run})


def class_archive_document(path: Path, *, is_new: bool) -> Document:
    """The class archive of Spark's JVM."""
    return Document({"file": str(path), "bytes": path.stat().st_size, "made": is_new})
