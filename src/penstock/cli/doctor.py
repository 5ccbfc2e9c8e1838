"""`penstock doctor`: checks of everything that a run needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from penstock.cli import health_checks
from penstock.cli import options as opt
from penstock.cli.render import show
from penstock.cli.text_tables import table
from penstock.errors import ExitCode, PenstockError

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.app import Workspace
    from penstock.views.installation import Finding


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(workspace: opt.WorkspaceDir = ".", as_json: opt.AsJson = False, debug: opt.Debug = False) -> None:
    """Check the workspace file, Java, Spark, the database with its roles, the lake, sources, checks and models.

    Each finding states the repair. Starts no Spark and fetches no data; it only tests whether the folders and addresses
    of sources can be reached. Exit code 1 if a check fails.
    """
    from penstock.app import load_workspace
    from penstock.views.installation import Finding, doctor_document

    findings = []
    try:
        ws: Workspace | None = load_workspace(workspace)
        findings.append(Finding("workspace", True, str(ws.settings.root) if ws else ""))
    except PenstockError as error:
        ws = None
        findings.append(Finding("workspace", False, str(error)))
    findings += [_found("java", _java), _found("spark", _spark)]
    if ws is not None:
        checks = {
            "database": _database,
            "roles": health_checks.roles,
            "lake": _lake,
            "agreement": _agreement,
            "sources": health_checks.source_kinds,
            "places": health_checks.source_places,
            "checks": health_checks.check_expressions,
            "breakers": _breakers,
        }
        if ws.settings.models:
            checks["models"] = _models
        if ws.settings.lineage is not None:
            checks["lineage"] = _lineage
        for name, check in checks.items():
            findings.append(_found(name, lambda check=check, ws=ws: check(ws)))  # type: ignore[misc]
    document = doctor_document(findings)

    def draw(console: Console) -> None:
        from rich.text import Text

        marks = {True: Text("ok", "green"), False: Text("broken", "red")}
        console.print(table(None, ("check", "", "detail"), [(f.check, marks[f.ok], f.detail) for f in findings]))

    show(document, as_json, draw)
    if not document["ok"]:
        raise typer.Exit(ExitCode.FAILED)


def _found(name: str, check: Callable[[], str]) -> Finding:
    from penstock.views.installation import Finding

    try:
        return Finding(name, True, check())
    except PenstockError as error:
        return Finding(name, False, str(error))


def _java() -> str:
    from penstock.pipeline.session import require_java

    return require_java()


def _spark() -> str:
    from importlib.metadata import version

    from penstock.pipeline.session import archive_of_classes

    try:
        archive = archive_of_classes()
    except PenstockError:  # no Java, which is a check of its own
        archive = None
    wanted = archive is not None and not archive.exists and archive.obstacle is None
    hint = "; `penstock spark prepare` makes it start seconds earlier" if wanted else ""
    return f"pyspark {version('pyspark')}{hint}"


def _database(ws: Workspace) -> str:
    ws.context.require_schema()
    return str(ws.context.database)


def _lake(ws: Workspace) -> str:
    from penstock.partition import new_ulid

    probe = f"doctor/{new_ulid()}"
    if not ws.context.lake.create(probe, b"penstock doctor") or ws.context.lake.create(probe, b"again"):
        raise PenstockError(
            f"{ws.context.lake.url} does not honour create-if-absent: Penstock cannot seal runs there safely"
        )
    ws.context.lake.delete([probe])
    return f"{ws.context.lake.url}: can write, read and create-if-absent"


def _agreement(ws: Workspace) -> str:
    from penstock.warehouse.mismatch import messages

    ws.context.require_schema()
    if found := ws.context.mismatches(everything=True):
        raise PenstockError("; ".join(messages(found)))
    return "the lake and the state database belong together, and every table is at its recorded version"


def _models(ws: Workspace) -> str:
    """Parse the SQL of models. Only a run can check the columns against Spark."""
    from penstock.pipeline.model import checked_sql

    ws.context.require_schema()
    if unreadable := ws.context.unreadable_models:
        raise PenstockError("; ".join(unreadable.values()))
    in_sql = {name: model for name, model in ws.settings.models.items() if model.python is None}
    health_checks.run_all(
        lambda name=name, model=model: checked_sql(model, str(ws.context.contracts[name].options["code"]))  # type: ignore[misc]
        for name, model in in_sql.items()
    )
    return ", ".join(ws.settings.models)


def _lineage(ws: Workspace) -> str:
    from penstock.observe.lineage import require_openlineage

    require_openlineage()
    return f"runs send events to {ws.settings.lineage.where}" if ws.settings.lineage else ""


def _breakers(ws: Workspace) -> str:
    ws.context.require_schema()
    if source_errors := ws.partitions.source_errors():
        repair = "repair it, then `penstock run` or `penstock control close-breaker`"
        raise PenstockError(f"{'; '.join(source_errors)}; {repair}")
    return "no source is blocked"
