"""Tables and their rows: those of the trusted run of each partition."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import TYPE_CHECKING

from penstock.http.calls import Call, Reply
from penstock.http.parameters import CUSTOMER, DATE, SINCE, UNTIL, Parameter, in_path, selection_of
from penstock.http.problems import bad_request
from penstock.http.routes import PREFIX, Access, Route
from penstock.http.schemas.tables import Rows, Tables
from penstock.views.document import Document

if TYPE_CHECKING:
    import pyarrow as pa

_TABLE = in_path("name", "A table: source.query_name.", r"^[a-z][a-z0-9_]{0,62}\.[a-z][a-z0-9_]{0,62}$")
_COLUMNS = Parameter("column", "Only these columns.", repeats=True)
_VERSION = Parameter("schema_version", "Only rows of this schema version.")
_ROWS = Parameter("limit", "At most this many rows.", "number", default=100, least=0, most=10_000)


def list_tables(call: Call) -> Document:
    """List tables with their fields, published schema versions, first day and inputs."""
    from penstock.partition import MODELS
    from penstock.views.tables import tables_document

    ws = call.workspace
    contracts = list(ws.context.contracts.values())
    settled = {contract.asset: ws.partitions.settled_until(contract.asset) for contract in contracts}
    models = {f"{MODELS}.{model.name}": model for model in ws.settings.models.values()}
    return tables_document(contracts, ws.maintenance.tables(), settled, ws.partitions.first_expected(), models)


def list_rows(call: Call) -> Reply:
    """Return the first rows of a table for the filters."""
    import pyarrow as pa

    from penstock.control.select import refuse_unknown
    from penstock.views.rows import read_metadata, write_rows_document

    ws, name = call.workspace, call.path["name"]
    ws.context.require_tables([name])
    with bad_request():
        chosen = selection_of(call.query)
        refuse_unknown(ws.settings, chosen)
        rows = ws.data.vouched(
            name,
            since=chosen.since,
            until=chosen.until,
            customers=chosen.customers,
            columns=call.query["column"],
            schema_version=call.query["schema_version"],
        )
        metadata = read_metadata(name, ws.partitions.settled_until(name), None, rows.withdrawn_inputs)
        content = BytesIO()
        first = pa.RecordBatchReader.from_batches(rows.schema, _first(rows.batches(), call.limit))
        write_rows_document(first, content, metadata)
    return Reply(content=content.getvalue())


def _first(batches: Iterator[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if limit <= 0:
            return
        yield batch.slice(0, limit)
        limit -= batch.num_rows


ROUTES = (
    Route("GET", f"{PREFIX}/tables", list_tables, Access.VIEWER, Tables, "List tables"),
    Route(
        "GET",
        f"{PREFIX}/tables/{{name}}/rows",
        list_rows,
        Access.VIEWER,
        Rows,
        "Rows of a table",
        (_TABLE, CUSTOMER, DATE, SINCE, UNTIL, _COLUMNS, _VERSION, _ROWS),
    ),
)
