"""`penstock read` and `penstock sql`: vouched rows only."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from penstock import interrupts
from penstock.cli import completion
from penstock.cli import options as opt
from penstock.cli.values import beyond_python, json_value, python_values
from penstock.errors import UsageError
from penstock.plural import counted

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.warehouse.reader import Vouched

# Standard output by its names in the file system: file descriptor 1 itself is not for answers, see cli/stdout.py.
_STDOUT = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")

FORMATS = ("table", "csv", "parquet", "arrow", "json")

Format = Annotated[str, typer.Option("--format", help="table, csv, parquet, arrow or json.")]
Output = Annotated[Path | None, typer.Option("--output", metavar="F", help="Write to this file instead of stdout.")]
AsOf = Annotated[
    str | None, typer.Option("--as-of", metavar="SNAPSHOT", help="As it was when this snapshot was taken.")
]
UseSpark = Annotated[bool, typer.Option("--spark", help="Read with Spark instead of Arrow or DuckDB. *")]


def register(app: typer.Typer) -> None:
    app.command("read")(read)
    app.command("sql")(sql)
    app.command("snapshot")(snapshot)


@opt.option_groups
def read(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="source.query_name", autocompletion=completion.tables)],
    filters: opt.TableFilters,
    columns: Annotated[str | None, typer.Option("--columns", metavar="A,B", help="Only these columns.")] = None,
    limit: opt.RowLimit = None,
    kind: Format = "table",
    output: Output = None,
    spark: UseSpark = False,
    as_of: AsOf = None,
    schema_version: Annotated[
        str | None, typer.Option("--schema-version", metavar="V", help="Only rows of this schema version.")
    ] = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Rows of a table, as far as they are vouched for: one run per partition, nothing that failed.

    A table is the union of its schema versions, with a column schema_version. Versions in which a column has types that
    do not fit (long and string) are refused together: --schema-version reads one of them.
    """
    from penstock.app import open_reader

    ws = open_reader(workspace)
    chosen = filters.selection()
    ws.check(chosen)  # refuses unknown customers
    names = tuple(part.strip() for part in columns.split(",")) if columns is not None else ()
    vouched = ws.vouched(
        name,
        since=chosen.since,
        until=chosen.until,
        customers=chosen.customers,
        columns=names,
        as_of=as_of,
        schema_version=schema_version,
    )
    if as_of:
        _say_withdrawn(ws.withdrawn_since(as_of, [name]), as_of)
    if spark:
        frame = vouched.spark(ws.session())
        reader = vouched.collected(frame if limit is None else frame.limit(limit)).to_reader()
    else:
        reader = _reader(vouched)
    _say_withdrawn_inputs(vouched)
    facts = {
        "table": name,
        "settled_until": ws.settled_until(name),  # later days are provisional
        "as_of": as_of,
        "withdrawn_inputs": [str(key) for key in vouched.withdrawn_inputs],
    }
    _write(reader, _kind(kind, as_json), output, limit, facts)


def sql(
    statement: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT; tables are source.query_name.")],
    limit: opt.RowLimit = None,
    kind: Format = "table",
    output: Output = None,
    spark: UseSpark = False,
    as_of: AsOf = None,
    schema_version: Annotated[
        list[str] | None,
        typer.Option("--schema-version", metavar="TABLE=V", help="Only rows of this version of a table; repeatable."),
    ] = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """SQL over vouched rows: penstock sql "SELECT customer_id, sum(clicks) FROM demo.campaign_daily GROUP BY 1"."""
    from penstock.app import open_reader

    ws = open_reader(workspace)
    if as_of:
        _say_withdrawn(ws.withdrawn_since(as_of, ws.tables), as_of)
    query = ws.spark_sql if spark else ws.sql
    versions = _table_versions(schema_version or ())
    reader = query(statement, as_of=as_of, opened=_say_withdrawn_inputs, schema_versions=versions)
    _write(reader, _kind(kind, as_json), output, limit)


def snapshot(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="How to call it; by default the present moment.")
    ] = None,
    expires: Annotated[str, typer.Option("--expires", metavar="D", help="How long it can be read: 30d.")] = "30d",
    listed: Annotated[bool, typer.Option("--list", help="Only show the snapshots that there are.")] = False,
    drop: Annotated[bool, typer.Option("--drop", help="Forget the snapshot of this name.")] = False,
    actor: opt.ActorName = None,
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Name the present state of the whole warehouse, to read it later with --as-of. What is demoted after that is left
    out even then."""
    from penstock.app import open_workspace
    from penstock.cli.render import listing, show
    from penstock.cli.text_tables import table
    from penstock.config.values import duration

    ws = open_workspace(workspace)
    if drop and name is None:
        raise UsageError("name the snapshot that is to be forgotten")
    if listed or drop:
        if drop and name is not None:
            ws.drop_snapshot(name, actor=actor)
        found = ws.snapshots.all()
        items = [{"snapshot": s.name, "created_at": s.created_at, "expires_at": s.expires_at} for s in found]
        rows = [tuple(item.values()) for item in items]
        show(
            listing(items, len(items)),
            as_json,
            lambda console: console.print(table(None, ("snapshot", "created", "expires"), rows)),
        )
        return
    made = ws.snapshot(name or f"{ws.now():%Y%m%d-%H%M%S}", duration(expires), actor=actor)
    tables = [{"table": head.name, "version": head.version} for _, head in made.tables]
    document = {"snapshot": made.name, "created_at": made.created_at, "expires_at": made.expires_at, "tables": tables}
    until = f"{made.expires_at:%Y-%m-%d %H:%M} UTC"
    words = f"snapshot {made.name}: {counted(len(tables), 'table')}, readable until {until}"
    show(document, as_json, lambda console: console.print(words))


def _table_versions(texts: Iterable[str]) -> dict[str, str]:
    versions: dict[str, str] = {}
    for name, version in map(_table_version, texts):
        if versions.setdefault(name, version) != version:
            raise UsageError(f"--schema-version names two versions of {name}: {versions[name]} and {version}; name one")
    return versions


def _table_version(text: str) -> tuple[str, str]:
    name, _, version = text.partition("=")
    if not name or not version:
        raise UsageError(f"--schema-version {text!r} names no table: write demo.campaign_daily=v2")
    return name, version


def _say_withdrawn(partitions: int, as_of: str) -> None:
    if partitions:
        typer.echo(f"penstock: leaves out {counted(partitions)} demoted since {as_of}", err=True)


def _say_withdrawn_inputs(vouched: Vouched) -> None:
    hidden = vouched.hidden_inputs
    shown = [key for key in vouched.withdrawn_inputs if key not in set(hidden)]
    for keys, what in ((shown, "not ready"), (hidden, "left out")):
        if keys:
            was, be, them = ("was", "is", "it") if len(keys) == 1 else ("were", "are", "them")
            typer.echo(
                f"penstock: {counted(len(keys))} of {keys[0].asset} {was} made from runs that were demoted since and"
                f" {be} {what}; the next `penstock run` makes {them} again: `penstock why {keys[0]}`",
                err=True,
            )


def _reader(vouched: Any) -> pa.RecordBatchReader:
    import pyarrow as pa

    return pa.RecordBatchReader.from_batches(vouched.schema, vouched.batches())


def _kind(kind: str, as_json: bool) -> str:
    if kind not in FORMATS:
        raise UsageError(f"--format {kind!r} is unknown: use {', '.join(FORMATS)}")
    return "json" if as_json else kind


def _write(
    reader: pa.RecordBatchReader,
    kind: str,
    output: Path | None,
    limit: int | None,
    facts: Mapping[str, Any] | None = None,
) -> None:
    output = None if str(output) in _STDOUT else output
    if kind == "table" and output is None:
        _draw(reader, 50 if limit is None else limit)
        return
    if kind == "table":
        raise UsageError("--output needs a --format: csv, parquet, arrow or json")
    if output is None:
        if kind in ("parquet", "arrow") and sys.stdout.isatty():
            raise UsageError(f"{kind} is binary: name a file with --output, or send it through a pipe")
        _encode(_limited(reader, limit), kind, sys.stdout.buffer, facts)
        sys.stdout.flush()
        return
    _write_file(_limited(reader, limit), kind, output, facts)


def _write_file(reader: pa.RecordBatchReader, kind: str, output: Path, facts: Mapping[str, Any] | None) -> None:
    """Written beside its place and renamed, so that a reader of the file never sees half of it."""
    output = output.resolve()  # what a link points to is written, the link stays
    special = output.exists() and not output.is_file()  # a pipe or a device cannot be replaced, only written to
    unfinished = output if special else output.with_name(f".{output.name}.part")
    _import_writer(kind)
    interrupts.begin_work()
    try:
        target = unfinished.open("wb")
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}") from error
    try:
        with target:
            _encode(reader, kind, target, facts)
        if not special:
            unfinished.replace(output)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror or error}") from error
    finally:
        if not special:
            unfinished.unlink(missing_ok=True)


def _import_writer(kind: str) -> None:
    """An interrupt in the middle of an import may be lost: what the writer needs is imported before work begins."""
    import importlib

    importlib.import_module({"csv": "pyarrow.csv", "parquet": "pyarrow.parquet", "json": "orjson"}.get(kind, "pyarrow"))


def _limited(reader: pa.RecordBatchReader, limit: int | None) -> pa.RecordBatchReader:
    import pyarrow as pa

    if limit is None:
        return reader

    def head() -> Any:
        left = limit
        for batch in reader:
            if left <= 0:
                return
            yield batch.slice(0, left)
            left -= batch.num_rows

    return pa.RecordBatchReader.from_batches(reader.schema, head())


def _encode(reader: pa.RecordBatchReader, kind: str, target: BinaryIO, facts: Mapping[str, Any] | None) -> None:
    import pyarrow as pa

    try:
        _encode_as(reader, kind, target, facts)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise UsageError(f"these columns cannot be written as {kind}: {error}") from error


def _encode_as(reader: pa.RecordBatchReader, kind: str, target: BinaryIO, facts: Mapping[str, Any] | None) -> None:
    import pyarrow as pa

    if kind == "csv":
        from pyarrow import csv

        if odd := [f.name for f in reader.schema if pa.types.is_interval(f.type)]:
            raise UsageError(f"these columns cannot be written as csv: {', '.join(odd)}; use json, parquet or arrow")
        flat = pa.schema([pa.field(f.name, pa.string()) if _is_odd(f.type) else f for f in reader.schema])
        with csv.CSVWriter(target, flat) as writer:
            for batch in reader:
                writer.write(_flattened(batch, flat))
    elif kind == "parquet":
        from pyarrow import parquet

        with parquet.ParquetWriter(target, reader.schema, compression="zstd") as out:
            for batch in reader:
                out.write_batch(batch)
    elif kind == "arrow":
        with pa.ipc.new_stream(target, reader.schema) as stream:
            for batch in reader:
                stream.write_batch(batch)
    else:
        _encode_json(reader, target, facts)


def _is_odd(kind: pa.DataType) -> bool:
    """Whether CSV has no way to write values of this type."""
    import pyarrow as pa

    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return pa.types.is_nested(kind) or binary or isinstance(kind, pa.BaseExtensionType)


def _flattened(batch: pa.RecordBatch, flat: pa.Schema) -> pa.RecordBatch:
    """Arrays and structs as JSON text and bytes as Base64, for formats that know neither."""
    import pyarrow as pa

    columns = []
    for column, field in zip(batch.columns, flat, strict=True):
        if beyond_python(column):
            raise UsageError(
                f"these columns cannot be written as csv: {field.name} has infinite values, or years or hours beyond"
                " the calendar; cast it to VARCHAR, or use json, parquet or arrow"
            )
        odd = _is_odd(column.type)
        columns.append(pa.array(map(_as_text, python_values(column)), pa.string()) if odd else column)
    return pa.RecordBatch.from_arrays(columns, schema=flat)


def _as_text(value: Any) -> str | None:
    return str(json_value(value)) if isinstance(value, bytes) else _as_json(value)


def _as_json(value: Any) -> str | None:
    import orjson

    return None if value is None else orjson.dumps(value, default=json_value).decode()


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    return zip(*(python_values(column) for column in batch.columns), strict=True)


def _encode_json(reader: pa.RecordBatchReader, target: BinaryIO, facts: Mapping[str, Any] | None) -> None:
    """One document {"items": [...], "total": n}, written as a stream; `facts` about the rows come as metadata."""
    import orjson

    if len(set(reader.schema.names)) < len(reader.schema.names):
        raise UsageError(f"two columns have the same name ({', '.join(reader.schema.names)}): rename one with AS")
    total = 0
    batches = iter(reader)
    first = next(batches, None)  # what fails at once leaves nothing behind
    target.write(b'{"items":[')
    for batch in chain([] if first is None else [first], batches):
        for row in _rows(batch):
            target.write(b",\n" if total else b"\n")
            target.write(orjson.dumps(dict(zip(reader.schema.names, row, strict=True)), default=json_value))
            total += 1
    metadata = b',"metadata":' + orjson.dumps(dict(facts)) if facts else b""
    target.write(b'\n],"total":%d%s}\n' % (total, metadata))


def _draw(reader: pa.RecordBatchReader, limit: int) -> None:
    from penstock.cli.render import console, note
    from penstock.cli.text_tables import table

    rows: list[list[Any]] = []
    more = False
    for batch in reader:
        for row in _rows(batch):
            if len(rows) >= limit:
                more = True
                break
            rows.append([_cell(value) for value in row])
        if more:
            break
    console().print(table(None, reader.schema.names, rows))
    if more:
        note(f"the first {counted(limit, 'row')}; --limit shows more, --output F --format csv writes them all")


def _cell(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, list | dict):
        return _as_json(value)
    if isinstance(value, bytes | tuple):
        return str(json_value(value))
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
