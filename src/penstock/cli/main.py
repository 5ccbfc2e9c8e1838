"""The `penstock` command: its sub-commands, and the conversion of errors to messages and exit codes."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from penstock import __version__, interrupts
from penstock.arrow_pandas import refuse_pandas
from penstock.cli.commands import called_module, register
from penstock.errors import ExitCode, PenstockError, TransientError, UsageError
from penstock.observe import logs

log = logging.getLogger(__name__)

_HELP = """Partition authority for Spark pipelines: which partition is safe to read, from which run, and why.

Start with `penstock init my-workspace`, then `penstock run`. Commands marked * start Spark; no other command does.

Exit codes:

""" + "\n".join(f"- {code.value}: {code.meaning}" for code in ExitCode)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


def root(
    _version_flag: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def make_app(module: str | None = None) -> typer.Typer:
    """Return the command line with the commands of one module, or with all commands."""
    app = typer.Typer(
        name="penstock", no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False, help=_HELP
    )
    app.callback()(root)
    return register(app, module)


def __getattr__(name: str) -> typer.Typer:
    """`app` is the command line with all commands, made at its first use."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()["app"] = make_app()
    return found


def main() -> None:
    """Run the command line. Converts each error to one line on stderr and an ExitCode; `--debug` re-raises it."""
    try:
        _refuse_undecodable(sys.argv[1:])
        refuse_pandas()
        app = make_app(called_module(sys.argv[1:], os.environ))
        app()  # ends in SystemExit; usage errors are shown by Typer itself, with exit code 2
    except PenstockError as error:
        if interrupts.was_raised():
            _interrupted()
        if "--debug" in sys.argv:
            raise
        _report(error, error.exit_code)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python reports the error again at exit
    except OSError as error:
        if interrupts.was_raised():
            _interrupted()
        if "--debug" in sys.argv:
            raise
        _report(error, ExitCode.FAILED)
        sys.exit(ExitCode.FAILED)
    except KeyboardInterrupt:
        _interrupted()
    except SystemExit as ended:
        if ended.code == ExitCode.INTERRUPTED:  # Typer converts KeyboardInterrupt without a message
            _interrupted()
        raise
    except Exception:
        if interrupts.was_raised():
            _interrupted()
        raise


def _report(error: Exception, code: int) -> None:
    """Print the error of a command, in the format of the log, without secrets."""
    if logs.writes_json():
        log.error("command.failed", extra={"facts": {"error": str(error), "exit_code": int(code)}})
        return
    later = " (try again later)" if isinstance(error, TransientError) else ""
    typer.echo(f"penstock: {logs.hide_secrets(str(error))}{later}", err=True)


def _refuse_undecodable(arguments: Sequence[str]) -> None:
    """Raise UsageError for bytes that are not UTF-8: they can be neither stored nor shown."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            shown = os.fsencode(argument).decode(errors="backslashreplace")
            raise UsageError(f"the argument {shown} is not valid UTF-8") from None


def _interrupted() -> NoReturn:
    """End the JVM, print one line, and exit with ExitCode.INTERRUPTED."""
    interrupts.ignore()
    if jvm := sys.modules.get("penstock.pipeline.jvm"):
        jvm.end_jvm()
    interrupts.print_once("interrupted")
    sys.exit(ExitCode.INTERRUPTED)
