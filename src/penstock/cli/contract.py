"""`penstock contract`: contracts of queries: show, check, infer, export and import."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import options as opt
from penstock.cli.render import note, show
from penstock.cli.text_tables import table
from penstock.errors import ExitCode, UsageError
from penstock.plural import counted

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.config.assets import Query
    from penstock.pipeline.contract_trial import Trial

contract = typer.Typer(no_args_is_help=True, help="Contracts of queries: show, check, infer, export and import.")

QueryName = Annotated[str, typer.Argument(metavar="NAME", help="A query of the workspace.")]
Payload = Annotated[Path | None, typer.Option("--payload", metavar="F", help="A file with one JSON object per line.")]


def register(app: typer.Typer) -> None:
    app.add_typer(contract, name="contract")


@contract.command("check")
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A workspace file, a file with queries, or ODCS.")],
    payload: Annotated[Path, typer.Option("--payload", metavar="F", help="A file with one JSON object per line.")],
    query: Annotated[
        str | None, typer.Option("--query", metavar="NAME", help="The query, if the file has several.")
    ] = None,
    date: Annotated[str | None, typer.Option("--date", metavar="D", help="The day of the rows.")] = None,
    no_expressions: Annotated[
        bool, typer.Option("--no-expressions", help="Skip checks that need Spark, such as expressions.")
    ] = False,
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Check a file with rows against a contract, without a workspace. *

    Starts Spark only for checks that need it, such as expressions. Checks against other runs and tables are listed as
    skipped. Exit code 1 if the rows would be rejected.
    """
    from penstock.contract.contract import Contract
    from penstock.partition import day
    from penstock.pipeline.contract_trial import needs_spark, try_contract
    from penstock.views.contracts import trial_document

    name, chosen = _one(_queries(file)[0], query, file)
    tried = Contract.of(chosen)
    if not payload.is_file():
        raise UsageError(f"there is no file {payload}")
    spark_checks = needs_spark(tried)
    if spark_checks and not no_expressions:
        note(f"starting Spark for {', '.join(spark_checks)}; --no-expressions skips them")
    trial = try_contract(tried, payload, day(date) if date else None, None if no_expressions else _session)
    show(trial_document(name, tried, trial), as_json, lambda console: _draw_trial(console, name, trial))
    if not trial.is_acceptable:
        raise typer.Exit(ExitCode.FAILED)


def _session() -> Any:
    from penstock.config.settings import SparkSettings
    from penstock.pipeline.session import start_session

    return start_session(SparkSettings())


def _draw_trial(console: Console, name: str, trial: Trial) -> None:
    from rich.text import Text

    if trial.complaints:
        rows = [(c.check, c.severity, c.count, c.line, c.message, c.example) for c in trial.complaints]
        console.print(table(None, ("check", "severity", "rows", "line", "what is wrong", "example"), rows))
    for check in trial.skipped:
        console.print(f"not tried: {check}")
    verdict = ("would be accepted", "green") if trial.is_acceptable else ("would be rejected", "red")
    console.print(Text.assemble(f"{counted(trial.rows, 'row')} of {name} ", verdict))


@contract.command("infer")
def infer(
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="source/customer_id/query_name/YYYY-MM-DD")] = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="This run instead of the authoritative one.")
    ] = None,
    payload: Payload = None,
    name: Annotated[
        str | None, typer.Option("--name", help="The name of the query (default: from the key or file).")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--source", help="The source of the query (default: from the key).")
    ] = None,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Infer fields and checks from the rows of a raw run or a file, as YAML that a workspace can include."""
    from penstock.config.assets import query_to_mapping
    from penstock.config.loading import name_after
    from penstock.contract.documents import as_yaml, checked_query
    from penstock.contract.infer import infer as propose
    from penstock.partition import PartitionKey
    from penstock.views.contracts import proposal_document

    if (key is None) == (payload is None):
        raise UsageError("name either a partition or a --payload file")
    if payload is not None:
        proposal = propose(_lines(payload))
        called, from_ = name_after(payload), "source"
    else:
        from penstock.app import open_workspace
        from penstock.partition import run_id

        partition = PartitionKey.parse(str(key))
        ws = open_workspace(workspace)
        proposal = propose(ws.raw.lines_of(partition, run_id(run), actor) if run else ws.raw.lines(partition))
        called, from_ = partition.query_name, partition.source
    called = name or called
    query = query_to_mapping(checked_query(called, proposal.as_query(source or from_), "the proposal"))
    notes = [f"proposed from {counted(proposal.rows, 'row')}", *proposal.notes]
    text = as_yaml({called: query}, notes)
    document = proposal_document(called, query, proposal.rows, proposal.notes, text)
    show(document, as_json, lambda _console: typer.echo(text, nl=False))


@contract.command("show")
def show_contract(
    name: QueryName, workspace: opt.WorkspaceDir = ".", as_json: opt.AsJson = False, debug: opt.Debug = False
) -> None:
    """Show the contract of a query with its table and code version. Values that equal their default are left out."""
    from penstock.config.assets import query_to_mapping
    from penstock.contract.contract import Contract
    from penstock.contract.documents import as_yaml
    from penstock.views.contracts import contract_document

    query = _query(workspace, name)
    found = Contract.of(query)
    written = query_to_mapping(query)
    notes = [f"table {found.table}, code version {found.fingerprint}"]
    text = as_yaml({name: written}, notes)
    show(contract_document(name, found), as_json, lambda _console: typer.echo(text, nl=False))


@contract.command("export")
def export(
    name: QueryName,
    kind: Annotated[str, typer.Option("--format", help="odcs, the Open Data Contract Standard.")] = "odcs",
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Export the contract of a query as a data contract for other tools."""
    from penstock.contract.documents import dumped
    from penstock.contract.odcs import to_odcs
    from penstock.views.contracts import odcs_document

    if kind != "odcs":
        raise UsageError(f"--format {kind!r} is unknown: use odcs")
    exported = to_odcs(_query(workspace, name))
    show(odcs_document(exported), as_json, lambda _console: typer.echo(dumped(exported), nl=False))


@contract.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A data contract in the Open Data Contract Standard.")],
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Import a data contract as queries for a workspace. Comments list the parts without a counterpart."""
    from penstock.config.assets import query_to_mapping
    from penstock.contract.documents import as_yaml
    from penstock.views.contracts import import_document

    queries, notes = _queries(file)
    written = {name: query_to_mapping(query) for name, query in queries.items()}
    text = as_yaml(written, notes)
    show(import_document(written, notes, text), as_json, lambda _console: typer.echo(text, nl=False))


def _query(workspace: str, name: str) -> Query:
    from penstock.app import load_workspace

    return load_workspace(workspace).settings.query(name)


def _queries(file: Path) -> tuple[dict[str, Query], list[str]]:
    from penstock.contract.documents import queries_in
    from penstock.source.registry import hooks_of

    if not file.is_file():
        raise UsageError(f"there is no file {file}")
    return queries_in(file, os.environ, hooks_of)


def _one(queries: dict[str, Query], name: str | None, file: Path) -> tuple[str, Query]:
    known = ", ".join(queries) or "none"
    if name is None and len(queries) != 1:
        raise UsageError(f"{file} has {counted(len(queries), 'query', 'queries')}: choose one with --query ({known})")
    if name is not None and name not in queries:
        raise UsageError(f"{file} has no query {name!r} (queries: {known})")
    return next((n, q) for n, q in queries.items() if name in (None, n))


def _lines(payload: Path) -> Iterator[bytes]:
    try:
        with payload.open("rb") as file:
            yield from (line.rstrip(b"\r\n") for line in file)
    except OSError as error:
        raise UsageError(f"cannot read {payload}: {error.strerror}") from error
