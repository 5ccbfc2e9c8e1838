"""Progress of long-running work on stderr: bars on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from penstock.cli.render import note
from penstock.observe import logs
from penstock.observe.progress import LineListener, LogListener
from penstock.plural import counted

LARGE_PLAN = 10_000  # expected partitions; smaller plans take no noticeable time


class RunProgress:
    """Shows the stages of a run. Implements ProgressListener."""

    def __init__(self) -> None:
        self._live: Any = None
        self._bars: dict[str, tuple[Any, int]] = {}
        self._planning: Any = None
        self._lines = LogListener() if logs.writes_json() else LineListener(note)

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and not logs.writes_json():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

            self._live = Progress(
                TextColumn("{task.description:<10}"),
                BarColumn(bar_width=40),
                TaskProgressColumn(),
                TextColumn("{task.fields[count]}"),
                TimeElapsedColumn(),
                console=Console(stderr=True, markup=False, emoji=False),
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.planned()
        if self._live is not None:
            self._live.stop()

    def say(self, message: str) -> None:
        if self._live is not None:
            self._live.console.print(message)
        else:
            self._lines.say(message)

    def plan(self, expected: int) -> None:
        """Show that planning begins; the first stage ends it. Its length is unknown, so the bar shows no percentage."""
        if self._live is None or expected < LARGE_PLAN:
            self.say("planning")
            return
        self._planning = self._live.add_task("plan", total=None, count=f"{counted(expected)} expected")

    def planned(self) -> None:
        """Remove the bar of planning."""
        if self._planning is not None:
            self._live.remove_task(self._planning)
            self._planning = None

    def stage(self, name: str, partitions: int) -> Callable[[float], None]:
        self.planned()
        if self._live is None:
            return self._lines.stage(name, partitions)
        return self._bar(name, partitions)

    def _bar(self, name: str, partitions: int) -> Callable[[float], None]:
        """Add the partitions of one batch to the bar of its stage."""
        if name not in self._bars:
            self._bars[name] = (self._live.add_task(name, total=0, count=""), 0)
        task, before = self._bars[name]
        self._bars[name] = (task, before + partitions)
        self._live.update(task, total=before + partitions, count=counted(before + partitions))
        return lambda share: self._live.update(task, completed=before + share * partitions)
