"""`penstock read` and `penstock sql`: rows of authoritative runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import completion
from penstock.cli import options as opt
from penstock.cli.render import note
from penstock.errors import UsageError
from penstock.plural import counted

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.warehouse.reader import Vouched

Format = Annotated[str, typer.Option("--format", help="table, csv, parquet, arrow or json.")]
Output = Annotated[Path | None, typer.Option("--output", metavar="F", help="Write to this file instead of stdout.")]
AsOf = Annotated[
    str | None, typer.Option("--as-of", metavar="SNAPSHOT", help="Read the warehouse as of this snapshot.")
]
UseSpark = Annotated[bool, typer.Option("--spark", help="Read with Spark instead of Arrow or DuckDB. *")]


def register(app: typer.Typer) -> None:
    app.command("read")(read)
    app.command("sql")(sql)


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
    """Print the rows of a table: those of the authoritative run of each partition.

    A table is the union of its schema versions, with a column schema_version. Versions that declare a column with
    incompatible types (long and string) cannot be read together: --schema-version selects one of them.
    """
    from penstock.app.reader import open_reader
    from penstock.cli.row_output import check_format, write_rows
    from penstock.views.rows import read_metadata

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
        _warn_withdrawn(ws.withdrawn_since(as_of, [name]), as_of)
    if spark:
        from penstock.pipeline.spark_jobs import progress, translated_errors

        session = ws.session()
        with translated_errors(), progress(session, None):
            frame = vouched.spark(session)
            reader = vouched.collected(frame if limit is None else frame.limit(limit)).to_reader()
    else:
        reader = _reader(vouched)
    _warn_withdrawn_inputs(vouched)
    metadata = read_metadata(name, ws.settled_until(name), as_of, vouched.withdrawn_inputs)
    write_rows(reader, check_format(kind, as_json), output, limit, metadata)


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
    """Run a SELECT on the rows of authoritative runs.

    For example: penstock sql "SELECT customer_id, sum(clicks) FROM demo.campaign_daily GROUP BY 1".
    """
    from penstock.app.reader import open_reader
    from penstock.cli.row_output import check_format, write_rows

    ws = open_reader(workspace)
    if as_of:
        _warn_withdrawn(ws.withdrawn_since(as_of, ws.tables), as_of)
    query = ws.spark_sql if spark else ws.sql
    versions = _table_versions(schema_version or ())
    reader = query(statement, as_of=as_of, opened=_warn_withdrawn_inputs, schema_versions=versions)
    write_rows(reader, check_format(kind, as_json), output, limit)


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


def _warn_withdrawn(partitions: int, as_of: str) -> None:
    if partitions:
        note(f"penstock: leaves out {counted(partitions)} demoted since {as_of}")


def _warn_withdrawn_inputs(vouched: Vouched) -> None:
    hidden = vouched.hidden_inputs
    shown = [key for key in vouched.withdrawn_inputs if key not in set(hidden)]
    for keys, state in ((shown, "not ready"), (hidden, "left out")):
        if keys:
            was, be, them = ("was", "is", "it") if len(keys) == 1 else ("were", "are", "them")
            note(
                f"penstock: {counted(len(keys))} of {keys[0].asset} {was} derived from runs that were demoted since and"
                f" {be} {state}; the next `penstock run` derives {them} again: `penstock why {keys[0]}`"
            )


def _reader(vouched: Vouched) -> pa.RecordBatchReader:
    import pyarrow as pa

    return pa.RecordBatchReader.from_batches(vouched.schema, vouched.batches())
