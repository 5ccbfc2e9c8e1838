"""Progress of long work: a bar on a terminal, plain lines otherwise; always on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import typer


class RunProgress:
    """Shows the stages of a run. Implements the runner's Watcher."""

    def __init__(self) -> None:
        self._live: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

            self._live = Progress(
                TextColumn("{task.description:<10}"),
                BarColumn(bar_width=40),
                TaskProgressColumn(),
                TextColumn("{task.fields[count]} partitions"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, message: str) -> None:
        if self._live is not None:
            self._live.console.print(message)
        else:
            typer.echo(message, err=True)

    def stage(self, name: str, partitions: int) -> Callable[[float], None]:
        if self._live is None:
            typer.echo(f"{name}: {partitions:,} partitions", err=True)
            return _lines(name)
        task = self._live.add_task(name, total=1.0, count=f"{partitions:,}")
        return lambda share: self._live.update(task, completed=share)


def _lines(name: str) -> Callable[[float], None]:
    """A line at each quarter, for logs."""
    told = 0

    def report(share: float) -> None:
        nonlocal told
        quarter = int(share * 4)
        if quarter > told:
            told = quarter
            typer.echo(f"{name}: {quarter * 25} %", err=True)

    return report
