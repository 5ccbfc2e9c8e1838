"""`penstock dbt`: the tables of a workspace as sources of a dbt project."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import options as opt
from penstock.cli.render import show
from penstock.errors import UsageError
from penstock.plural import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from penstock.app.dbt import DbtTable

_FIRST_LINE = "# Written by `penstock dbt sources`, which writes it again after the workspace has changed."
_DIGEST = re.compile(rf"{re.escape(_FIRST_LINE)}\n# sha256 of the lines below: ([0-9a-f]{{64}})\n")


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="The tables of the workspace as sources of a dbt project.")
    group.command("sources")(sources)
    app.add_typer(group, name="dbt")


def sources(
    output: Annotated[Path, typer.Option("--output", metavar="FILE", help="The file to write.")] = Path("sources.yml"),
    name_prefix: Annotated[
        str, typer.Option("--name-prefix", metavar="TEXT", help="Begin the names of the dbt sources with this text.")
    ] = "",
    lake: Annotated[
        str | None,
        typer.Option(
            "--lake",
            metavar="ADDRESS",
            help="The address of the lake for dbt, which may be Jinja (default: that of the workspace).",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file that this command did not write, or that was edited.")
    ] = False,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Write a `sources.yml` for dbt-duckdb: columns, freshness and location of each table.

    Each source of the workspace is a dbt source, and each query and model is a table of it. Run the command again after
    a change of the workspace file, and after the first publication of a schema version. A file without changes is not
    written again.
    """
    from penstock.app import open_workspace
    from penstock.contract.documents import dumped
    from penstock.views.dbt import dbt_document, dbt_sources

    if not re.fullmatch(r"\w*", name_prefix, re.ASCII):
        raise UsageError(f"--name-prefix {name_prefix!r} is not valid: use letters, digits and _")
    if lake is not None and not lake.strip("/ "):
        raise UsageError("--lake is empty: name a folder, s3://bucket/prefix, or a Jinja expression")
    ws = open_workspace(workspace)
    tables, zones = ws.dbt.tables(), {customer.time_zone for customer in ws.settings.customers}
    name = f"{ws.settings.tenant}/{ws.settings.workspace}"
    found = dbt_sources(tables, lake or ws.dbt.lake(), name, zones, name_prefix)
    changed = _write(output, dumped(found), force)
    document = dbt_document(tables, found, output.resolve(), changed)
    show(document, as_json, lambda console: _draw(console, output, changed, len(found["sources"]), tables))


def _write(output: Path, text: str, force: bool) -> bool:
    """Replace the file atomically. Returns False if it has this content already. Raises UsageError if this command did
    not write the present file."""
    from hashlib import sha256

    whole = f"{_FIRST_LINE}\n# sha256 of the lines below: {sha256(text.encode()).hexdigest()}\n{text}"
    target = output.resolve()  # writes the target of a link and keeps the link
    unfinished = target.with_name(f".{target.name}.part")
    try:
        present = target.read_bytes() if target.exists() else None
        if present == whole.encode():
            return False
        if present is not None and not force and not _is_own(present):
            raise UsageError(
                f"{output} was not written by `penstock dbt sources`, or was edited since: name another file with"
                " --output, or replace it with --force"
            )
        try:
            unfinished.write_text(whole, encoding="utf-8")
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}") from error
    return True


def _is_own(content: bytes) -> bool:
    """Whether this command wrote the file, and nobody edited it since."""
    from hashlib import sha256

    text = content.decode("utf-8", errors="replace")
    header = _DIGEST.match(text)
    return header is not None and sha256(text[header.end() :].encode()).hexdigest() == header[1]


def _draw(console: Console, output: Path, changed: bool, sources: int, tables: Sequence[DbtTable]) -> None:
    contents = f"{counted(sources, 'source')}, {counted(len(tables), 'table')}"
    console.print(f"{'wrote' if changed else 'unchanged:'} {output}: {contents}", soft_wrap=True)
    for table in tables:
        if not table.is_published:
            console.print(f"{table.contract.asset} has no published rows yet: dbt cannot read it before its first run")
        if table.omitted:
            console.print(
                f"{table.contract.asset}: without the rows of schema version {', '.join(table.omitted)}, whose columns"
                f" do not fit those of {table.versions[0]}"
            )
