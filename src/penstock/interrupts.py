"""SIGINT and SIGTERM end a command in the same way: with KeyboardInterrupt, one line on stderr and exit code 130.

Imports almost nothing: the handlers must be installed before other imports.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from penstock.errors import ExitCode

_SHOW_CURSOR = "\x1b[?25h"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def print_plain(message: str) -> None:
    """Print a line to stderr."""
    sys.stderr.write(f"penstock: {message}\n")
    sys.stderr.flush()


class _State:
    print_line: Callable[[str], None] = staticmethod(print_plain)
    working = False
    held = 0
    pending = False
    raised = False
    printed = False


def install() -> None:
    """Install handlers that raise KeyboardInterrupt in the main thread, for both signals."""
    for number in _SIGNALS:
        signal.signal(number, interrupt)


def begin_work() -> None:
    """Declare that the process has something to clean up: a worker, open attempts, a JVM or unfinished files."""
    _State.working = True


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """Signal handler: raises KeyboardInterrupt, at once or at the end of `delayed`. Before `begin_work` it ends the
    process at once: an exception in the middle of an import may be lost or turned into another one."""
    if not _State.working:
        ignore()
        if sys.stderr.isatty():
            sys.stderr.write(_SHOW_CURSOR)  # a progress bar may have hidden it
        print_once("interrupted")
        os._exit(ExitCode.INTERRUPTED)
    if _State.held:
        _State.pending = True
        return
    # py4j logs the interrupt with its stack; the command prints one line. The module may be half imported now.
    if disable := getattr(sys.modules.get("logging"), "disable", None):
        disable()
    _raise()


def was_raised() -> bool:
    """Whether an interrupt was raised. A later error may be caused by it: a library that was calling back turns the
    interrupt into an error of its own."""
    return _State.raised


@contextmanager
def delayed() -> Iterator[None]:
    """Delay interrupts until the end of the block, so that a process started in it is registered."""
    _State.held += 1
    try:
        yield
    finally:
        _State.held -= 1
    if _State.pending and not _State.held:
        _State.pending = False
        _raise()


@contextmanager
def restored_handler() -> Iterator[None]:
    """Restore the SIGINT handler after a library that installs its own, unless it is Python's default."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not signal.default_int_handler and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _raise() -> NoReturn:
    _State.raised = True
    raise KeyboardInterrupt


def print_once(message: str) -> None:
    """Print the line about the interrupt, once."""
    if not _State.printed:
        _State.printed = True
        _State.print_line(message)


def print_with(print_line: Callable[[str], None]) -> None:
    """Print the line about the interrupt with this function, for example as JSON."""
    _State.print_line = staticmethod(print_line)


def ignore() -> None:
    """Ignore further signals: the process is about to end."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
