"""The JSON document of rows: {"items": [...], "total": n}, written as a stream of Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO

from penstock.errors import UsageError
from penstock.views.arrow_values import json_value, python_values

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.partition import PartitionKey


def read_metadata(
    table: str, settled_until: date | None, as_of: str | None, withdrawn_inputs: Sequence[PartitionKey]
) -> dict[str, Any]:
    """The facts about the rows of a table that a document states beside them. Days after `settled_until` are
    provisional."""
    return {
        "table": table,
        "settled_until": settled_until,
        "as_of": as_of,
        "withdrawn_inputs": [str(key) for key in withdrawn_inputs],
    }


def write_rows_document(
    reader: pa.RecordBatchReader, target: BinaryIO, metadata: Mapping[str, Any] | None = None
) -> None:
    """Write the rows as one document. Raises UsageError if two columns have the same name."""
    import orjson

    names = reader.schema.names
    if len(set(names)) < len(names):
        raise UsageError(f"two columns have the same name ({', '.join(names)}): rename one with AS")
    total = 0
    batches = iter(reader)
    first = next(batches, None)  # a query that fails at once writes nothing
    target.write(b'{"items":[')
    for batch in chain([] if first is None else [first], batches):
        for row in python_rows(batch):
            target.write(b",\n" if total else b"\n")
            target.write(orjson.dumps(dict(zip(names, row, strict=True)), default=json_value))
            total += 1
    about = b',"metadata":' + orjson.dumps(dict(metadata)) if metadata else b""
    target.write(b'\n],"total":%d%s}\n' % (total, about))


def python_rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Iterate over the rows of a batch as tuples of Python values."""
    return zip(*(python_values(column) for column in batch.columns), strict=True)


def json_text(value: Any) -> str | None:
    """Return a value as JSON text; None stays None."""
    import orjson

    return None if value is None else orjson.dumps(value, default=json_value).decode()
