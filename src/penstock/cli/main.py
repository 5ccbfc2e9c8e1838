"""The `penstock` command: its sub-commands, and the one place where errors become words and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from penstock import __version__, interrupts
from penstock.cli import (
    audit,
    backfill,
    contract,
    control,
    customers,
    db,
    doctor,
    init,
    ledger,
    lineage,
    raw,
    read,
    ready,
    recover,
    run,
    runs,
    spark,
    state,
    status,
    validate,
    warehouse,
)
from penstock.errors import ExitCode, PenstockError, TransientError, UsageError

app = typer.Typer(
    name="penstock",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="""Partition authority for Spark pipelines: which slice of data is safe to read, which run it is, and why.

Start with `penstock init my-workspace`, then `penstock run`. Commands marked * start Spark; the others answer at once.

Exit codes:

"""
    + "\n".join(f"- {code.value}: {code.meaning}" for code in ExitCode),
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


_WORK = (init, doctor, customers, run, runs, validate, state, status, backfill, control)
_DATA = (warehouse, recover, read, ready, raw, contract)
for _module in (*_WORK, *_DATA, ledger, lineage, audit, db, spark):
    _module.register(app)


def main() -> None:
    """Run the command line; each error becomes one line on stderr and one of the ExitCodes."""
    try:
        _refuse_undecodable(sys.argv[1:])
        app()  # ends in SystemExit; usage errors are shown by Typer itself, with exit code 2
    except PenstockError as error:
        if interrupts.was_raised():
            _interrupted()
        if "--debug" in sys.argv:
            raise
        later = " (try again later)" if isinstance(error, TransientError) else ""
        typer.echo(f"penstock: {error}{later}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains once more at exit
    except OSError as error:
        if interrupts.was_raised():
            _interrupted()
        if "--debug" in sys.argv:
            raise
        typer.echo(f"penstock: {error}", err=True)
        sys.exit(ExitCode.FAILED)
    except KeyboardInterrupt:
        _interrupted()
    except SystemExit as ended:
        if ended.code == ExitCode.INTERRUPTED:  # Typer's answer to KeyboardInterrupt, without a word
            _interrupted()
        raise
    except Exception:
        if interrupts.was_raised():
            _interrupted()
        raise


def _refuse_undecodable(arguments: Sequence[str]) -> None:
    """Bytes that are no UTF-8 could neither be stored nor shown."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            shown = os.fsencode(argument).decode(errors="backslashreplace")
            raise UsageError(f"the argument {shown} is not valid UTF-8") from None


def _interrupted() -> NoReturn:
    """One line, no JVM left behind, ExitCode.INTERRUPTED."""
    interrupts.ignore()
    if session := sys.modules.get("penstock.pipeline.session"):
        session.end_jvm()
    interrupts.print_once("interrupted")
    sys.exit(ExitCode.INTERRUPTED)
