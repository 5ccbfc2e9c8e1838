"""`penstock doctor`: checks of everything that a run needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import health_checks
from penstock.cli import options as opt
from penstock.cli.render import note, show
from penstock.cli.text_tables import table
from penstock.errors import ExitCode, PenstockError
from penstock.plural import counted

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.app import Workspace
    from penstock.pipeline.executor_probe import ExecutorReport
    from penstock.views.installation import Finding


_MOST_TASKS = 4096  # of the probe of a cluster


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    cluster: Annotated[
        bool,
        typer.Option("--cluster", help="Also start Spark and check every executor: Python, packages, lake, clock."),
    ] = False,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Check the workspace file, Java, Spark, the database with its roles, the lake, sources, checks and models.

    Each finding states the repair. Fetches no data; it only tests whether the folders and addresses of sources can be
    reached. Only --cluster starts Spark: it runs one task on every core of the executors. Exit code 1 if a check fails.
    """
    from penstock.app import load_workspace
    from penstock.views.installation import Finding, doctor_document

    findings = []
    executors: list[ExecutorReport] = []
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
        if cluster:
            note(f"starting Spark on {ws.settings.spark.where}")
            findings.append(_found("cluster", lambda ws=ws: _cluster(ws, executors)))  # type: ignore[misc]
    document = doctor_document(findings, executors if cluster else None)

    def draw(console: Console) -> None:
        from rich.text import Text

        marks = {True: Text("ok", "green"), False: Text("broken", "red")}
        console.print(table(None, ("check", "", "detail"), [(f.check, marks[f.ok], f.detail) for f in findings]))
        if executors:
            rows = [(one.host, marks[one.ok], one.python, one.executable) for one in executors]
            console.print(table("executors", ("host", "", "python", "interpreter"), rows))

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
    from penstock.pipeline.jvm import require_java

    return require_java()


def _spark() -> str:
    from penstock.pipeline.jvm import archive_of_classes
    from penstock.pipeline.spark_versions import installed, is_tested, tested

    version = installed()
    untested = "" if is_tested(version) else f", which is not tested (tested: {tested()})"
    try:
        archive = archive_of_classes()
    except PenstockError:  # no Java, which is a check of its own
        archive = None
    wanted = archive is not None and not archive.exists and archive.obstacle is None
    hint = "; `penstock spark prepare` makes it start seconds earlier" if wanted else ""
    return f"pyspark {version}{untested}{hint}"


def _cluster(ws: Workspace, executors: list[ExecutorReport]) -> str:
    """Start Spark, and probe the executors. Appends their reports to `executors`."""
    from penstock.pipeline.executor_probe import Probe, probe_executors, require_fit
    from penstock.pipeline.executor_watch import wait_for_executors
    from penstock.pipeline.session import start_session

    session, probe = start_session(ws.settings.spark), Probe.of(ws.settings, sources=True)
    if not ws.settings.spark.is_local and (context := getattr(session, "_sc", None)) is not None:
        wait_for_executors(context)
    executors += probe_executors(session, probe, _MOST_TASKS)
    require_fit(executors, ws.settings.spark.where)
    hosts = counted(len({one.host for one in executors}), "host")
    state = "; the state database is a SQLite file, which only this host uses" if _is_sqlite(ws) else ""
    return f"{ws.settings.spark.where}: executors on {hosts} can do the work{state}"


def _is_sqlite(ws: Workspace) -> bool:
    return ws.context.database.dialect == "sqlite"


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
