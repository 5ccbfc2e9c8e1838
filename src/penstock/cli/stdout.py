"""Reserves standard output for the result of the command."""

from __future__ import annotations

import io
import os
import sys


def reserve_stdout() -> None:
    """Let only Python's `sys.stdout` write to standard output. Native libraries and child processes that write to file
    descriptor 1 (the AWS SDK inside pyarrow, the JVM) write to standard error after this call."""
    try:
        descriptor = os.dup(1)
    except OSError:  # standard output is closed
        return
    try:
        sys.stdout.flush()
        os.dup2(2, 1)
    except OSError:  # standard error is closed
        os.close(descriptor)
        return
    original = sys.stdout
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(descriptor, "w")),
        encoding=original.encoding,
        errors=original.errors,
        line_buffering=os.isatty(descriptor),
    )
