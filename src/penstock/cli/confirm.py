"""Confirmation of changes: above 20 partitions --yes or a prompt, above 10,000 also --force."""

from __future__ import annotations

import sys

import typer

from penstock.errors import UsageError
from penstock.plural import counted

ASK_ABOVE = 20


def confirm(what: str, count: int, *, yes: bool, force: bool, noun: str = "partition") -> None:
    """Return if the change is confirmed. Prompts on a terminal; raises UsageError if an option is missing."""
    from penstock.control.select import FORCE_ABOVE

    change = f"{what} {counted(count, noun)}"
    if count > FORCE_ABOVE and not force:
        raise UsageError(f"{change} is more than {FORCE_ABOVE:,}: narrow the filters or add --force")
    if count <= ASK_ABOVE or yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{change} needs a confirmation: add --yes (--dry-run previews it)")
    if not typer.confirm(f"{change}?", err=True):
        raise typer.Abort
