"""`penstock source`: a package for a source of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import options as opt
from penstock.cli.render import show


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Sources of your own.")
    group.command("new")(new)
    group.callback()(_group)
    app.add_typer(group, name="source")


def _group() -> None:
    """Sources of your own."""


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The kind of the source: letters, digits, underscores.")],
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="The new folder; penstock-NAME by default.")
    ] = None,
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Create a package with a source class, its tests and its entry point. Refuses a folder that exists.

    The class calls a web service day by day, classifies errors and counts its requests; the tests run it with a local
    server and `penstock.testing.SourceSuite`. Change both to your service.
    """
    from penstock.app.source_kit import write_source_package
    from penstock.views.installation import source_package_document

    where = folder or Path(f"penstock-{name}")
    files = write_source_package(where, name)
    document = source_package_document(name, where, files)

    def draw(console: object) -> None:
        typer.echo("\n".join(f"created {file}" for file in files))
        typer.echo(f"next: cd {where} && pip install -e '.[test]' && pytest")

    show(document, as_json, draw)
