"""SIGINT and SIGTERM end a command in the same way: with KeyboardInterrupt, one line on stderr and exit code 130.

Imports almost nothing: the handlers must be there before anything else is imported.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from penstock.errors import ExitCode

_SHOW_CURSOR = "\x1b[?25h"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _State:
    working = False
    held = 0
    pending = False
    raised = False
    said = False


def install() -> None:
    """From now on both signals raise KeyboardInterrupt in the main thread."""
    for number in _SIGNALS:
        signal.signal(number, interrupt)


def begin_work() -> None:
    """From now on the process has something to clean up: a worker, open attempts, a JVM or unfinished files."""
    _State.working = True


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """The handler: raises KeyboardInterrupt, or later if the moment is held. Before work begins it ends the process at
    once: an exception in the middle of an import may be lost, or end as another one."""
    if not _State.working:
        ignore()
        if sys.stderr.isatty():
            sys.stderr.write(_SHOW_CURSOR)  # a progress bar may have hidden it
        say("interrupted")
        os._exit(ExitCode.INTERRUPTED)
    if _State.held:
        _State.pending = True
        return
    # py4j logs the interrupt with its stack; the command says one line. The module may be half imported at this moment.
    if disable := getattr(sys.modules.get("logging"), "disable", None):
        disable()
    _raise()


def was_raised() -> bool:
    """Whether an interrupt was raised. An error that comes after it may be the interrupt itself: a library that was
    calling back turns it into an error of its own."""
    return _State.raised


@contextmanager
def held() -> Iterator[None]:
    """An interrupt that comes meanwhile is raised at the end: a process that was started is known by then."""
    _State.held += 1
    try:
        yield
    finally:
        _State.held -= 1
    if _State.pending and not _State.held:
        _State.pending = False
        _raise()


@contextmanager
def kept() -> Iterator[None]:
    """Restores the handler of SIGINT behind a library that sets its own, unless it is Python's."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not signal.default_int_handler and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _raise() -> NoReturn:
    _State.raised = True
    raise KeyboardInterrupt


def say(message: str) -> None:
    """The line that tells that the command was interrupted; the first one counts."""
    if not _State.said:
        _State.said = True
        sys.stderr.write(f"penstock: {message}\n")
        sys.stderr.flush()


def ignore() -> None:
    """The process is about to end: a further signal changes nothing."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
