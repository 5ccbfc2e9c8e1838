"""What the versions of tables consist of. A version never changes, so its log is read once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import pyarrow as pa

from penstock.lake import Lake
from penstock.warehouse.tables import MONTH, DataFile, Table

_KEPT = 64  # versions, of all tables together: readers ask for the newest ones


@dataclass(frozen=True, slots=True)
class Contents:
    """The columns of a table's files, and the files in table order."""

    columns: pa.Schema
    files: tuple[DataFile, ...]


class Versions:
    """The versions of the tables in a lake, for all threads of a process; lives no longer than whoever opened it."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._kept: OrderedDict[tuple[str, int], Contents] = OrderedDict()
        self._lock = threading.Lock()

    def contents(self, name: str, location: str, version: int) -> Contents:
        with self._lock:
            if found := self._kept.get((location, version)):
                self._kept.move_to_end((location, version))
                return found
        found = self._read(name, location, version)
        with self._lock:
            self._kept[location, version] = found
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found

    def _read(self, name: str, location: str, version: int) -> Contents:
        table = Table(self.lake, name, location, version)
        columns = pa.schema([field for field in table.arrow_schema() if field.name != MONTH])
        return Contents(columns, tuple(sorted(table.files(), key=lambda file: (file.month, file.first))))
