"""The `penstock` command: its sub-commands, and the one place where errors become words and exit codes."""

from __future__ import annotations

import sys
from typing import Annotated

import click
import typer

from penstock import __version__
from penstock.cli import audit, db, doctor, init, read, run, state, status, warehouse
from penstock.errors import PenstockError, TransientError

app = typer.Typer(
    name="penstock",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="""Partition authority for Spark pipelines: which slice of data is safe to read, which run it is, and why.

Start with `penstock init my-workspace`, then `penstock run`. Those marked * start Spark; the others answer at once.""",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def root(
    _version_flag: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


for _module in (init, doctor, run, state, status, warehouse, read, audit, db):
    _module.register(app)


def main() -> None:
    """Exit codes: 0 done, 1 an error or some partitions failed, 2 usage, 75 try again later."""
    try:
        code = app(standalone_mode=False)
    except click.exceptions.ClickException as error:
        error.show()
        code = error.exit_code
    except click.exceptions.Abort:
        typer.echo("stopped", err=True)
        code = 1
    except PenstockError as error:
        if "--debug" in sys.argv:
            raise
        later = " (try again later)" if isinstance(error, TransientError) else ""
        typer.echo(f"penstock: {error}{later}", err=True)
        code = error.exit_code
    except KeyboardInterrupt:
        typer.echo("interrupted: what was open has been cancelled and can be run again", err=True)
        code = 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away; that is its right
        code = 0
    sys.exit(code if isinstance(code, int) else 0)
