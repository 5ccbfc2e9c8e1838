"""`penstock top`: a live view of runs, stages, rates, errors, quotas and orders."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from penstock import interrupts
from penstock.cli import options as opt
from penstock.cli.render import show
from penstock.errors import TransientError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.views.document import Document

Wait = Callable[[float], bool]  # waits so many seconds; True if the user quits


def register(app: typer.Typer) -> None:
    app.command("top")(top)


def top(
    every: Annotated[
        str, typer.Option("--every", metavar="D", help="Time between two readings, for example 2s.")
    ] = "2s",
    once: Annotated[bool, typer.Option("--once", help="Print the present state and end.")] = False,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Watch the work in progress: runs with their stages and rates, recent errors, quota, orders, control loops.

    Everything comes from the state database, so work on other machines is shown, too. On a terminal the view is
    refreshed until q or Ctrl-C; without one it prints the lines again and again. --json prints one document and ends.
    """
    from penstock.app import open_workspace
    from penstock.config.values import duration
    from penstock.views.activity import activity_document

    seconds = duration(every).total_seconds()
    if seconds <= 0:
        raise UsageError("--every must be longer than nothing")
    ws = open_workspace(workspace)
    name = f"{ws.settings.tenant}/{ws.settings.workspace}"

    def read() -> Document:
        return activity_document(ws.activity.now())

    if once or as_json:
        document = read()
        show(document, as_json, lambda console: _print(console, document, name))
    elif sys.stdout.isatty():
        _watch(read, name, seconds)
    else:
        _repeat(read, name, seconds)


def _print(console: Console, document: Document, name: str) -> None:
    from penstock.cli.activity_screen import screen

    for line in screen(document, name, None):
        console.print(line)


def _repeat(read: Callable[[], Document], name: str, seconds: float) -> None:
    """Print the lines until Ctrl-C."""
    from penstock.cli.render import console

    interrupts.begin_work()
    try:
        while True:
            _print(console(), read(), name)
            sys.stdout.flush()
            time.sleep(seconds)
    except KeyboardInterrupt:
        return


def _watch(read: Callable[[], Document], name: str, seconds: float) -> None:
    """Refresh the screen until q or Ctrl-C. The terminal is as before afterwards."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from penstock.cli.activity_screen import screen

    console = Console(highlight=False, markup=False, emoji=False)

    def draw() -> Group:
        keys = Text(f"every {seconds:g}s; q quits", "bright_black")
        try:
            lines = [*screen(read(), name, console.height), keys]
        except TransientError as error:  # the next reading may succeed
            lines = [Text(str(error), "red"), keys]
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"  # a wrapped line would push others off the screen
        return Group(*lines)

    interrupts.begin_work()  # the terminal has to be restored
    live = Live(console=console, screen=True, auto_refresh=False)
    try:
        with _keys() as wait:
            is_over = False
            while not is_over:
                drawn = draw()
                with interrupts.delayed():  # an interrupt while Rich switches the screen would leave it switched
                    live.start()
                    live.update(drawn, refresh=True)
                is_over = wait(seconds)
    except KeyboardInterrupt:
        return
    finally:
        live.stop()


@contextmanager
def _keys() -> Iterator[Wait]:
    """A function that waits for q. Without a terminal for input it only waits."""
    if not sys.stdin.isatty():
        yield _sleep
        return
    import os
    import select
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def wait(seconds: float) -> bool:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            ready, _, _ = select.select([terminal], [], [], left)
            if ready and ((typed := os.read(terminal, 64)) == b"" or b"q" in typed.lower()):
                return True
        return False

    try:
        tty.setcbreak(terminal)
        yield wait
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False
