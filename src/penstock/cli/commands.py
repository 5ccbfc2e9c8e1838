"""The sub-commands of `penstock` and their modules, in the order of `penstock --help`.

A call imports only the module of its command. Help, completion and unknown commands need all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module

import typer

from penstock.cli.log_options import add_log_options

# The module in penstock.cli, and the commands that it registers.
MODULES: dict[str, tuple[str, ...]] = {
    "init": ("init",),
    "doctor": ("doctor",),
    "customers": ("customers",),
    "run": ("run",),
    "runs": ("runs",),
    "validate": ("validate",),
    "state": ("state",),
    "status": ("status",),
    "top": ("top",),
    "partitions": ("missing", "failed", "stale"),
    "why": ("why",),
    "backfill": ("backfill",),
    "control": ("control",),
    "serve": ("serve",),
    "tokens": ("tokens",),
    "alerts": ("alerts",),
    "warehouse": ("warehouse",),
    "recover": ("backup", "recover"),
    "read": ("read", "sql"),
    "snapshot": ("snapshot",),
    "ready": ("ready",),
    "late": ("late",),
    "raw": ("raw",),
    "contract": ("contract",),
    "ledger": ("ledger",),
    "lineage": ("lineage",),
    "dbt": ("dbt",),
    "source": ("source",),
    "audit": ("audit",),
    "db": ("db",),
    "spark": ("spark",),
}
_MODULE_OF = {command: module for module, commands in MODULES.items() for command in commands}


def called_module(arguments: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """Return the module of the command that a call names. None for help, completion and unknown commands."""
    is_completion = any(name.startswith("_") and name.endswith("_COMPLETE") for name in environ)
    return None if is_completion or not arguments else _MODULE_OF.get(arguments[0])


def register(app: typer.Typer, module: str | None = None) -> typer.Typer:
    """Add the commands of one module, or of all modules, to `app` and return it."""
    for name in MODULES if module is None else (module,):
        import_module(f"penstock.cli.{name}").register(app)
    add_log_options(app)
    return app
