"""Text tables for terminals of any width. No word is cut or broken: keys and run ids can be copied from the output."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table
    from rich.text import Text

_GAP = 2  # between two columns
_NARROWEST = 20  # text beside a name in a block


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows under column names. Drawn as a table, or as one block per row if the longest words of the columns do not fit
    on one line."""

    title: str | None
    columns: Sequence[str]
    rows: Sequence[Sequence[Text]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        if self.title:
            yield Text(self.title, "italic", overflow="ignore")
        widths = self._widths(options.max_width)
        if widths is None:
            yield from self._blocks(options.max_width)
        else:
            yield self._table(widths)

    def _widths(self, most: int) -> list[int] | None:
        """Return the width of each column: at least its longest word, and more if there is room. None if the longest
        words do not fit on one line."""
        cells = [[name, *(row[at].plain for row in self.rows)] for at, name in enumerate(self.columns)]
        widths = [max(longest_word(text) for text in column) for column in cells]
        room = most - sum(widths) - _GAP * (len(widths) - 1)
        if room < 0:
            return None
        lacking = [max(_longest_line(text) for text in column) - w for column, w in zip(cells, widths, strict=True)]
        narrowest_first = sorted(range(len(widths)), key=lambda at: lacking[at])
        for served, at in enumerate(narrowest_first):
            share = min(lacking[at], room // (len(narrowest_first) - served))
            widths[at] += share
            room -= share
        return widths

    def _table(self, widths: Sequence[int]) -> Table:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        drawn = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
        for name, width in zip(self.columns, widths, strict=True):
            drawn.add_column(Text(name), width=width, overflow="fold")
        for row in self.rows:
            drawn.add_row(*row)
        return drawn

    def _blocks(self, most: int) -> Iterable[Text]:
        from rich.text import Text

        indent = max((len(name) for name in self.columns[1:]), default=0) + 4
        room = max(most - indent, _NARROWEST)
        yield Text(self.columns[0], "bold", overflow="ignore")
        yield Text("─" * min(most, max(len(self.columns[0]), 20)))
        for row in self.rows:
            yield Text(row[0].plain, "bold", overflow="ignore")
            for name, cell in zip(self.columns[1:], row[1:], strict=True):
                lines = textwrap.wrap(cell.plain, room, break_long_words=False, break_on_hyphens=False)
                for at, line in enumerate(lines):
                    yield Text(f"{f'  {name}' if at == 0 else '':<{indent}}{line}", cell.style, overflow="ignore")


def table(title: str | None, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> TextTable:
    from rich.text import Text

    cells = [[cell if isinstance(cell, Text) else Text(shown(cell)) for cell in row] for row in rows]
    return TextTable(title, columns, cells)


def shown(value: Any) -> str:
    """Return a value as text for people."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def longest_word(text: str) -> int:
    """Return the width of the longest word of a text, including the indent of the text."""
    from rich.cells import cell_len

    return len(text) - len(text.lstrip()) + max(map(cell_len, text.split()), default=0)


def _longest_line(text: str) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, text.splitlines()), default=0)
