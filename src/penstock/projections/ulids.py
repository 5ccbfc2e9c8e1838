"""The moment that a ULID carries."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_DIGITS = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUE = np.zeros(256, np.int64)
_VALUE[np.frombuffer(_DIGITS, np.uint8)] = np.arange(32)
_POWERS = 32 ** np.arange(9, -1, -1, dtype=np.int64)


def moments(ulids: pa.Array) -> pa.Array:
    """The first ten digits count milliseconds; no ULID, no moment."""
    filled = pc.fill_null(ulids, "0" * 26)
    digits = np.frombuffer("".join(filled.to_pylist()).encode(), np.uint8).reshape(-1, 26)[:, :10]
    milliseconds = _VALUE[digits] @ _POWERS
    return pa.array(milliseconds, pa.timestamp("ms", tz="UTC"), mask=np.asarray(ulids.is_null()))
