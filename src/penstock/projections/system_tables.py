"""The projections as tables for SQL: `system.partition_status` and so on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from penstock.projections.current import Current
from penstock.projections.lateness import NAME as LATENESS
from penstock.projections.status import PARTIAL, joined
from penstock.projections.status_file import FILE, marked, marks, with_spec_columns

_KEY = "source, customer_id, query_name, logical_date"


@dataclass(frozen=True, slots=True)
class SystemTable:
    """Parts of one table; DuckDB concatenates them when it is read."""

    name: str
    parts: Sequence[ds.Dataset | pa.Table]

    def duckdb(self, connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        for number, part in enumerate(self.parts):
            connection.register(f"{self.name}_{number}", part)
        return connection.sql(
            " UNION ALL ".join(f"SELECT * FROM {self.name}_{number}" for number in range(len(self.parts)))
        )

    def arrow(self) -> pa.Table:
        return pa.concat_tables([part if isinstance(part, pa.Table) else part.to_table() for part in self.parts])


def _partition_status(current: Current) -> Sequence[ds.Dataset | pa.Table]:
    """Complete rows: unchanged ones from the files, the others joined with newer events."""
    news, base = current.status_news(), current.whole_status_base()
    if base is None:
        return [with_spec_columns(news, current.owner)]
    if not len(news):
        return [base]
    with duckdb.connect() as connection:
        connection.register("base", base)
        connection.register("news", news)
        kept = connection.sql(f"SELECT * FROM base ANTI JOIN news USING ({_KEY})").to_arrow_table()
        touched = connection.sql(f"SELECT * FROM base SEMI JOIN news USING ({_KEY})").to_arrow_table()
    whole = joined(pa.concat_tables([touched.select(PARTIAL.names).cast(PARTIAL), news]))
    return [kept.select(FILE.names).cast(FILE), marked(whole, marks(touched), current.owner)]


TABLES: dict[str, Callable[[Current], Sequence[ds.Dataset | pa.Table]]] = {
    "runs": lambda current: [current.runs()],
    "tasks": lambda current: current.tasks(),
    "dep_satisfaction": lambda current: current.dep_satisfaction(),
    "partition_status": _partition_status,
}


# Tables that depend on settings as well; `DataService` computes them.
OF_SETTINGS = (LATENESS,)


def table_names() -> list[str]:
    """The names of all projections that SQL can read."""
    return sorted([*TABLES, *OF_SETTINGS])


def system_table(name: str, current: Current) -> SystemTable:
    return SystemTable(name, TABLES[name](current))
