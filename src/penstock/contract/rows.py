"""Reads the Parquet payloads of models and compares their columns with the contract."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.contract.complaint import Complaint
from penstock.contract.contract import Contract
from penstock.contract.parse import Parsed
from penstock.contract.schema import arrow_schema


def read_many(payloads: Sequence[bytes], contract: Contract) -> Parsed:
    """Return the rows of several Parquet payloads, and complaints about payloads that do not match the contract."""
    wanted = arrow_schema(contract.fields)
    tables: list[pa.Table] = []
    complaints: dict[int, list[Complaint]] = {}
    for index, payload in enumerate(payloads):
        try:
            found = pq.read_table(pa.BufferReader(payload))
        except pa.ArrowException as error:
            complaints[index] = [Complaint("payload", f"it is not Parquet: {error}", 1)]
            found = wanted.empty_table()
        if index not in complaints and (complaint := _other_columns(found.schema, wanted)):
            complaints[index] = [complaint]
            found = wanted.empty_table()
        tables.append(found.cast(wanted))
    sizes = [table.num_rows for table in tables]
    owner = np.repeat(np.arange(len(tables), dtype=np.int32), sizes)
    lines = [np.arange(1, size + 1, dtype=np.int32) for size in sizes]
    whole = pa.concat_tables(tables) if tables else wanted.empty_table()
    return Parsed(whole, owner, np.concatenate(lines) if lines else np.empty(0, np.int32), complaints)


def read_piece(rows: pa.RecordBatch, contract: Contract, first_line: int) -> Parsed:
    """Return the rows of one batch of a payload that is too large for memory."""
    wanted = arrow_schema(contract.fields)
    owner = np.zeros(rows.num_rows, np.int32)
    lines = np.arange(first_line, first_line + rows.num_rows, dtype=np.int32)
    if complaint := _other_columns(rows.schema, wanted):
        return Parsed(wanted.empty_table(), owner[:0], lines[:0], {0: [complaint]})
    return Parsed(pa.Table.from_batches([rows]).cast(wanted), owner, lines, {})


def _other_columns(found: pa.Schema, wanted: pa.Schema) -> Complaint | None:
    if found.names == wanted.names and found.types == wanted.types:
        return None
    columns = ", ".join(f"{field.name} {field.type}" for field in found)
    return Complaint("schema", f"its columns are {columns}, not those of the contract", 1)
