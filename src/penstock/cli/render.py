"""Output of a command: its document as JSON, or text for people."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.observe import logs
from penstock.views.document import Document, encode

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.partition import PartitionKey
    from penstock.warehouse.mismatch import Mismatch

log = logging.getLogger(__name__)

LISTED = 100  # a preview names at most this many partitions


def show(document: Document, as_json: bool, text: Callable[[Console], None]) -> None:
    """Print `document` as JSON, or call `text` to draw it."""
    if as_json:
        sys.stdout.buffer.write(encode(document, indent=True))
        sys.stdout.flush()
    else:
        text(console())


def show_line(document: Document) -> None:
    """Print `document` as one line of JSON, and flush it."""
    sys.stdout.buffer.write(encode(document))
    sys.stdout.flush()


def note(message: str) -> None:
    """Print a line for people to stderr, so that stdout holds only the result. In a JSON log it is a line of it."""
    import typer

    if logs.writes_json():
        log.info("note", extra={"facts": {"message": message}})
    else:
        typer.echo(logs.hide_secrets(message), err=True)


def draw_more(console: Console, shown: int, total: int, following: str | None) -> None:
    """Print how much of a long list is shown, and the option that continues it."""
    more = f"; continue with --after {following}" if following else ""
    console.print(f"{shown:,} of {total:,}{more}", soft_wrap=True)  # one line, so that the key can be copied


def draw_mismatches(console: Console, found: Sequence[Mismatch]) -> None:
    """Print the disagreements between the lake and the state database."""
    from penstock.warehouse.mismatch import messages

    for line in messages(found):
        console.print(line, style="red")


def draw_keys(console: Console, keys: Sequence[PartitionKey], total: int | None = None) -> None:
    """Print the first partitions of a change, one per line. `total` counts all of them if `keys` has only some."""
    for key in keys[:LISTED]:
        console.print(f"  {key}")
    if (more := (len(keys) if total is None else total) - LISTED) > 0:
        console.print(f"  ... and {more:,} more")


def console() -> Console:
    """Return a console on stdout that never cuts or breaks a word, however narrow the terminal is.

    It prints text unchanged: names, reasons and errors come from outside and may look like markup or emoji codes.
    """
    from rich.console import Console
    from rich.text import Text

    from penstock.cli.text_tables import longest_word

    class WholeWords(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            lines = [line for text in objects if isinstance(text, str | Text) for line in str(text).splitlines()]
            fits = max(map(longest_word, lines), default=0) <= self.width and not options.get("soft_wrap")
            super().print(*objects, **{"crop": False, "overflow": "fold" if fits else "ignore", **options})

    # Without a terminal (pipes, CI) lines are wide, unless COLUMNS is set.
    narrow = sys.stdout.isatty() or "COLUMNS" in os.environ
    return WholeWords(highlight=False, markup=False, emoji=False, width=None if narrow else 200)
