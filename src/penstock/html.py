"""HTML fragments of values, for notebooks: escaped, without scripts, bounded in size, readable in light and dark.

Text and borders have the colour of the page. Coloured marks have colours that contrast with white and with black.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

MOST_CHARACTERS = 300  # of one value
MOST_ROWS = 50  # of one table
MOST_COLUMNS = 30

_LINE = "1px solid rgba(128,128,128,.4)"
_TABLE = 'style="border-collapse:collapse"'
_CELL = f'style="border-bottom:{_LINE};padding:2px 8px;text-align:left;vertical-align:top"'
_MARKS = 'style="font-family:monospace;white-space:pre;padding:0 8px;text-align:left"'

# By display status, and for partitions whose every attempt failed.
COLOURS = {
    "materialized": "#1a8f3c",
    "materialized_but_last_attempt_failed": "#a87400",
    "stale": "#1583a3",
    "unavailable": "#b04ad0",
    "never_materialized": "#7a7a7a",
    "failed": "#d9363e",
}


def text(value: Any) -> str:
    """A value as escaped text of at most 300 characters; an empty text for None."""
    found = "" if value is None else str(value)
    return escape(found if len(found) <= MOST_CHARACTERS else f"{found[:MOST_CHARACTERS]}…")


def fragment(title: str, *parts: str) -> str:
    """The parts, which are HTML, under a title, which is text."""
    return f'<div style="font-size:90%"><p><b>{text(title)}</b></p>{"".join(parts)}</div>'


def paragraph(line: str) -> str:
    return f"<p>{text(line)}</p>"


def items(lines: Sequence[str]) -> str:
    """A list of at most 50 texts; nothing for an empty one."""
    listed = "".join(f"<li>{text(line)}</li>" for line in lines[:MOST_ROWS])
    return f"<ul>{listed}</ul>{_more(len(lines) - MOST_ROWS, 'lines')}" if lines else ""


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], total: int | None = None) -> str:
    """A table of at most 50 rows and 30 columns. `total` is the number of all rows if `rows` may have fewer."""
    rows = list(rows)
    body = "".join(_row("td", row) for row in rows[:MOST_ROWS])
    shown = f"<table {_TABLE}><thead>{_row('th', columns)}</thead><tbody>{body}</tbody></table>"
    total = len(rows) if total is None else total
    return shown + _more(total - min(len(rows), MOST_ROWS), "rows") + _more(len(columns) - MOST_COLUMNS, "columns")


def mark(character: str, colour: str, meaning: str) -> str:
    """One or more marks of the same meaning, which a pointer over them shows."""
    return f'<span style="color:{colour}" title="{text(meaning)}">{text(character)}</span>'


def marked_rows(rows: Iterable[tuple[str, str]]) -> str:
    """Labels, which are text, each beside its marks, which are HTML."""
    body = "".join(f"<tr><td {_MARKS}>{text(label)}</td><td {_MARKS}>{marks}</td></tr>" for label, marks in rows)
    return f"<table {_TABLE}><tbody>{body}</tbody></table>"


def _row(tag: str, cells: Sequence[Any]) -> str:
    return f"<tr>{''.join(f'<{tag} {_CELL}>{text(cell)}</{tag}>' for cell in cells[:MOST_COLUMNS])}</tr>"


def _more(number: int, noun: str) -> str:
    return f"<p>... and {number:,} more {noun}</p>" if number > 0 else ""
