"""The magics `%%penstock_sql` and `%penstock_sql` of IPython. IPython passes its shell, so it is not imported."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import UsageError
from penstock.html import MOST_ROWS, fragment, table

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.app.reader import Reader

_USAGE = "%%penstock_sql [--workspace DIR] [--as pandas|polars|arrow|spark] [--as-of SNAPSHOT] [NAME]"
_OPTION = re.compile(r"\s*--(workspace|as-of|as)(?:\s*=\s*|\s+)(\"[^\"]*\"|'[^']*'|\S+)(?=\s|$)")
_NAME = re.compile(r"[A-Za-z_]\w*")


class Shell(Protocol):
    """The part of IPython's shell that the magics use."""

    user_ns: dict[str, Any]

    def register_magic_function(self, func: Callable[..., Any], magic_kind: str, magic_name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Request:
    """The options of a magic, and the text after them: a name, or a statement."""

    rest: str
    options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, line: str) -> Request:
        """Parse the line of a magic. Raises UsageError for an unknown option, or one that is given twice."""
        options: dict[str, str] = {}
        while found := _OPTION.match(line):
            name, value = found[1], found[2]
            if name in options:
                raise UsageError(f"--{name} is given twice; usage: {_USAGE}")
            options[name] = value[1:-1] if value[0] in "\"'" and value[0] == value[-1] else value
            line = line[found.end() :]
        if line.lstrip().startswith("--"):
            raise UsageError(f"unknown option {line.split()[0]}, or one without a value; usage: {_USAGE}")
        if (kind := options.get("as")) is not None and kind not in _RESULTS:
            raise UsageError(f"--as {kind!r} is unknown: use {', '.join(_RESULTS)}")
        return cls(line.strip(), options)


class RowsPreview:
    """The first rows of a result, for display."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        from penstock.views.rows import python_rows

        self.columns: list[str] = reader.schema.names
        self.rows: list[tuple[Any, ...]] = []
        self.has_more = False
        for batch in reader:
            room = MOST_ROWS - len(self.rows)
            self.rows += python_rows(batch.slice(0, room))
            if batch.num_rows > room:
                self.has_more = True
                break

    def __repr__(self) -> str:
        lines = ["\t".join(self.columns), *("\t".join(map(str, row)) for row in self.rows)]
        return "\n".join([*lines, *(["..."] if self.has_more else [])])

    def _repr_html_(self) -> str:
        if self.has_more:
            title = f"the first {len(self.rows)} rows; `%%penstock_sql NAME` assigns all of them to a variable"
        else:
            title = f"{len(self.rows)} row{'' if len(self.rows) == 1 else 's'}"
        return fragment(title, table(self.columns, self.rows))


def register(shell: Shell) -> None:
    """Add the magics to a shell of IPython."""

    def penstock_sql(line: str, cell: str | None = None) -> Any:
        """Execute one SELECT over the trusted rows of a workspace.

        %%penstock_sql [--workspace DIR] [--as pandas|polars|arrow|spark] [--as-of SNAPSHOT] [NAME]

        Shows the first rows. With NAME the result is assigned to the variable, with --as it has that type (default:
        pandas). As a line magic, the statement follows the options, and the result is the value of the line.
        """
        return execute(shell, line, cell)

    shell.register_magic_function(penstock_sql, "line_cell", "penstock_sql")


def execute(shell: Shell, line: str, cell: str | None) -> Any:
    """Execute the magic: without a cell, the statement is in the line. Returns the value to display."""
    request = Request.parse(line)
    if cell is None:
        return _result(request, request.rest, request.options.get("as"))
    if not request.rest:
        return _result(request, cell, request.options.get("as"))
    if not _NAME.fullmatch(request.rest):
        raise UsageError(f"{request.rest!r} is not the name of a variable; usage: {_USAGE}")
    shell.user_ns[request.rest] = _result(request, cell, request.options.get("as", "pandas"))
    return None


def _result(request: Request, statement: str, kind: str | None) -> Any:
    """The result of the statement as `kind`; its first rows if there is none. Raises UsageError for a statement that is
    not a SELECT."""
    import penstock

    reader = penstock.reader(request.options.get("workspace", "."))
    try:
        rows = reader.sql(statement, request.options.get("as-of"))
        return RowsPreview(rows) if kind is None else _RESULTS[kind](reader, rows)
    finally:
        reader.close()


def _arrow(_reader: Reader, rows: pa.RecordBatchReader) -> Any:
    return rows.read_all()


def _pandas(_reader: Reader, rows: pa.RecordBatchReader) -> Any:
    return rows.read_pandas()


def _polars(_reader: Reader, rows: pa.RecordBatchReader) -> Any:
    try:
        import polars
    except ImportError as error:
        raise UsageError("--as polars needs the package polars: install penstock[polars]") from error
    return polars.from_arrow(rows.read_all())


def _spark(reader: Reader, rows: pa.RecordBatchReader) -> Any:
    """The result in the active session of the notebook, or in the one that the workspace file describes."""
    from pyspark.sql import SparkSession

    from penstock.spark_frames import frame_of

    return frame_of(SparkSession.getActiveSession() or reader.session(), rows.read_all())


_RESULTS: dict[str, Callable[[Reader, pa.RecordBatchReader], Any]] = {
    "pandas": _pandas,
    "polars": _polars,
    "arrow": _arrow,
    "spark": _spark,
}
