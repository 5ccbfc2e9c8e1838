"""Executes one SQL statement in a process of its own: `python -m penstock.http.sql_process`.

DuckDB checks neither its memory limit nor an interruption inside of every function: `repeat('x', 4000000000)` allocates
4 GB at once. Therefore the kernel enforces both limits on this process. It reads the request from its standard input
and writes the document of the result to its standard output. A timer ends it, also if the server is killed.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.app.reader import Reader
    from penstock.views.document import Document

NO_MEMORY = 3  # the exit code of a process that reached its memory limit
_START_SECONDS = 20  # to open the workspace
_NICE = 5  # the server comes first


@dataclass(frozen=True, slots=True)
class StatementLimits:
    """Limits of one statement."""

    rows: int = 1000
    seconds: float = 10.0
    memory_mib: int = 512  # of DuckDB
    process_mib: int = 1536  # of everything
    threads: int = 2


def main() -> int:
    """Execute the statement of the request and write the document of its result. Returns the exit code."""
    import orjson

    request: dict[str, Any] = orjson.loads(sys.stdin.buffer.read())
    limits = StatementLimits(**request["limits"])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, also inside of a function of DuckDB
    signal.setitimer(signal.ITIMER_REAL, _START_SECONDS + limits.seconds)
    _bound_memory(limits.process_mib)
    try:
        content = _execute(request["folder"], request["statement"], limits)
    except MemoryError:
        return NO_MEMORY
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
    return 0


def _bound_memory(mebibytes: int) -> None:
    """Limit the memory of this process, and let the kernel end it before others."""
    size = mebibytes * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold rows and secrets
    os.nice(_NICE)
    with suppress(OSError):  # only Linux has it
        Path("/proc/self/oom_score_adj").write_text("1000")


def _execute(folder: str, statement: str, limits: StatementLimits) -> bytes:
    import pyarrow as pa

    from penstock.app.reader import open_reader
    from penstock.errors import PenstockError
    from penstock.views.document import encode
    from penstock.views.sql_rows import sql_problem

    pa.set_cpu_count(limits.threads)
    try:
        reader = open_reader(folder)
    except PenstockError as error:
        return encode(sql_problem(str(error)))
    signal.setitimer(signal.ITIMER_REAL, limits.seconds)
    return encode(result_of(reader, statement, limits))


def result_of(reader: Reader, statement: str, limits: StatementLimits) -> Document:
    """The document of the result, or of the reason why there is none. Raises MemoryError if DuckDB has not enough."""
    import duckdb

    from penstock.errors import PenstockError
    from penstock.views.sql_rows import sql_document, sql_problem
    from penstock.warehouse.sql import SqlLimits

    bounds = SqlLimits(limits.rows + 1, limits.memory_mib, limits.threads)
    try:
        return sql_document(reader.sql(statement, limits=bounds), limits.rows)
    except PenstockError as error:
        if isinstance(error.__cause__, (MemoryError, duckdb.OutOfMemoryException)):
            raise MemoryError from error
        return sql_problem(str(error))


if __name__ == "__main__":
    # Without the end of the interpreter: threads of Arrow may still read.
    code = main()
    sys.stderr.flush()
    os._exit(code)
