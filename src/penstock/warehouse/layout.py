"""Layout of a warehouse table: its folder, its columns and the order of its rows. The same for every table format."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = "warehouse"
MONTH = "_month"
RUN = "_run_id"
KEY_NAMES = ("customer_id", "logical_date")

SortKey = tuple[date, str]  # (logical_date, customer_id): the order of rows inside a table


def location(source: str, query_name: str, schema_version: str) -> str:
    """The folder of a table below the root of the lake."""
    return f"{FOLDER}/{source}/{query_name}/{schema_version}"


def table_name(folder: str) -> str:
    """`source.query_name.schema_version` of the table in a folder."""
    return folder.removeprefix(f"{FOLDER}/").replace("/", ".")


def key_columns() -> tuple[pa.Field, ...]:
    """The columns that identify the partition of a row inside a table."""
    import pyarrow as pa

    return tuple(pa.field(name, kind) for name, kind in zip(KEY_NAMES, (pa.string(), pa.date32()), strict=True))


def file_schema(fields: pa.Schema) -> pa.Schema:
    """The columns of a data file: key, the contract's fields, run. The month is only in the name of its folder."""
    import pyarrow as pa

    return pa.schema([*key_columns(), *fields, pa.field(RUN, pa.string())])


def table_schema(fields: pa.Schema) -> pa.Schema:
    """The columns of a table: those of its files, and the month by which it is partitioned."""
    import pyarrow as pa

    return pa.schema([*file_schema(fields), pa.field(MONTH, pa.string())])


def month_of(day: date) -> str:
    return f"{day:%Y-%m}"


def rebuild_hint(table: str) -> str:
    """The command that rebuilds the damaged table `source.query_name.schema_version`."""
    return f"`penstock recover --from database --table {table.rpartition('.')[0]}` rebuilds it from raw"
