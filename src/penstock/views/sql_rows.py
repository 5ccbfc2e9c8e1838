"""Document of the result of a SQL statement: columns with types, and rows as text, up to a size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import UsageError
from penstock.views.arrow_values import json_value
from penstock.views.document import Document
from penstock.views.rows import python_rows

if TYPE_CHECKING:
    import pyarrow as pa

MOST_COLUMNS = 1000
MOST_CHARACTERS = 1000  # of one value
MOST_BYTES = 4_000_000  # of all values, with an allowance for the markup of each
_CELL_BYTES = 24


def sql_document(reader: pa.RecordBatchReader, most_rows: int) -> Document:
    """The first rows of a result. `cut` is the limit that ended them (`rows` or `size`), or None; `cut_values` counts
    the long values that are shortened. Raises UsageError for a result with too many columns."""
    if len(reader.schema) > MOST_COLUMNS:
        raise UsageError(f"the result has {len(reader.schema):,} columns: select at most {MOST_COLUMNS:,}")
    rows: list[list[str | None]] = []
    cut, size, cut_values = None, 0, 0
    for row in (row for batch in reader for row in python_rows(batch)):
        if len(rows) == most_rows:
            cut = "rows"
            break
        texts = [value_text(value) for value in row]
        cut_values += sum(text is not None and len(text) > MOST_CHARACTERS for text in texts)
        texts = [shortened(text) for text in texts]
        size += sum(_CELL_BYTES + len(text or "") for text in texts)
        if size > MOST_BYTES:
            cut = "size"
            break
        rows.append(texts)
    columns = [{"name": field.name, "type": str(field.type), "is_number": _is_number(field)} for field in reader.schema]
    return Document({"columns": columns, "rows": rows, "cut": cut, "cut_values": cut_values})


def sql_problem(message: str) -> Document:
    """The reason why a statement has no result."""
    return Document({"problem": message})


def value_text(value: Any) -> str | None:
    """A value as text; None for NULL."""
    import orjson

    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case list() | dict() | tuple():
            try:
                return orjson.dumps(value, json_value, orjson.OPT_NON_STR_KEYS).decode()
            except TypeError:  # a number beyond 64 bits
                return str(value)
        case bytes():
            return str(json_value(value))
        case _:
            return str(value)


def shortened(text: str | None) -> str | None:
    """The text, or its beginning and an ellipsis if it is too long for a page."""
    return text if text is None or len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "…"


def _is_number(field: pa.Field) -> bool:
    import pyarrow as pa

    kind = field.type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
