"""`--log-format` and `--log-level`, which every command has. They are added where commands are registered."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from penstock.observe.logs import LogFormat, LogLevel, configure

# Commands that run until they are stopped: their log is read by programs, unless it goes to a terminal.
SERVICES = {("serve",), ("control", "serve")}

_Format = Annotated[
    LogFormat | None,
    typer.Option(
        "--log-format",
        envvar="PENSTOCK_LOG_FORMAT",
        metavar="FORMAT",
        help="How the log is written: json or plain (default: plain; json for services without a terminal).",
    ),
]
_Level = Annotated[
    LogLevel | None,
    typer.Option(
        "--log-level",
        envvar="PENSTOCK_LOG_LEVEL",
        metavar="LEVEL",
        help="The least important lines: debug, info, warning or error (default: info for json and services).",
    ),
]


def add_log_options(app: typer.Typer, path: tuple[str, ...] = ()) -> None:
    """Give every command of `app` the options of the log, which are applied before the command is called."""
    for info in app.registered_commands:
        assert info.callback is not None
        if not hasattr(info.callback, "has_log_options"):
            name = info.name or info.callback.__name__.replace("_", "-")
            info.callback = _with_log_options(info.callback, is_service=(*path, name) in SERVICES)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_log_options(group.typer_instance, (*path, str(group.name)))


def _with_log_options(command: Callable[..., Any], *, is_service: bool) -> Callable[..., Any]:
    @wraps(command)
    def logged(*, log_format: LogFormat | None, log_level: LogLevel | None, **values: Any) -> Any:
        as_json = is_service and not sys.stderr.isatty()
        chosen = log_format or (LogFormat.JSON if as_json else LogFormat.PLAIN)
        is_detailed = is_service or chosen is LogFormat.JSON
        configure(chosen, log_level or (LogLevel.INFO if is_detailed else LogLevel.WARNING))
        return command(**values)

    own = inspect.signature(command, eval_str=True).parameters.values()
    kind = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter("log_format", kind, default=None, annotation=_Format),
        inspect.Parameter("log_level", kind, default=None, annotation=_Level),
    ]
    logged.__signature__ = inspect.Signature([*(one.replace(kind=kind) for one in own), *added])  # type: ignore[attr-defined]
    logged.has_log_options = True  # type: ignore[attr-defined]
    return logged
