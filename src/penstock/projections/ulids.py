"""ULIDs of events: stored by position in arrays, and the timestamps that they contain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_DIGITS = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUE = np.zeros(256, np.int64)
_VALUE[np.frombuffer(_DIGITS, np.uint8)] = np.arange(32)
_POWERS = 32 ** np.arange(9, -1, -1, dtype=np.int64)


class EventIds:
    """The ids of events, by their positions."""

    def __init__(self) -> None:
        self._positions = np.empty(0, np.int64)  # in order
        self._ids = pa.array([], pa.string())
        self._more: list[tuple[NDArray[np.int64], pa.Array]] = []
        self._waiting = 0  # number of unsorted ids

    def add(self, positions: Sequence[int], ids: Sequence[str]) -> None:
        """Add ids. Some may be known: a reader of an active run gets the newest events again."""
        if not positions:
            return
        self._more.append((np.array(positions, np.int64), pa.array(ids, pa.string())))
        self._waiting += len(positions)
        if self._waiting > len(self._positions):
            self._sort_in()

    def at(self, positions: NDArray[np.int64]) -> pa.Array:
        """Return the ids of the events at these positions, all of which must be known; null for position 0."""
        self._sort_in()
        found = np.searchsorted(self._positions, positions)
        return self._ids.take(pa.array(found, mask=positions == 0))

    def _sort_in(self) -> None:
        if not self._more:
            return
        every = np.concatenate([self._positions, *(positions for positions, _ in self._more)])
        ids = pa.concat_arrays([self._ids, *(ids for _, ids in self._more)])
        self._positions, first = np.unique(every, return_index=True)
        self._ids, self._more, self._waiting = ids.take(pa.array(first)), [], 0


def moments(ulids: pa.Array) -> pa.Array:
    """Return the timestamps of ULIDs: the first ten digits count milliseconds. Null for null."""
    filled = pc.fill_null(ulids, "0" * 26)
    digits = np.frombuffer("".join(filled.to_pylist()).encode(), np.uint8).reshape(-1, 26)[:, :10]
    milliseconds = _VALUE[digits] @ _POWERS
    return pa.array(milliseconds, pa.timestamp("ms", tz="UTC"), mask=np.asarray(ulids.is_null()))
