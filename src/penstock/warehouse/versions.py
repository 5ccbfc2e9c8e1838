"""A cache of the contents of table versions. A version never changes, so its log is read once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import WarehouseError
from penstock.lake import Lake
from penstock.warehouse.format import DataFile, table_format
from penstock.warehouse.layout import MONTH, rebuild_hint

if TYPE_CHECKING:
    import pyarrow as pa

_Key = tuple[str, int, str | None]  # location, version, publication
_KEPT = 64  # versions of all tables together: readers use the newest ones


@dataclass(frozen=True, slots=True)
class Contents:
    """The columns of the files of a table version, and the files in table order."""

    columns: pa.Schema
    files: tuple[DataFile, ...]


class Versions:
    """Caches the contents of table versions in a lake. Threads may share it."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._kept: OrderedDict[_Key, Contents] = OrderedDict()
        self._lock = threading.Lock()

    def contents(self, name: str, location: str, version: int, publication: str | None = None) -> Contents:
        """The contents of one version. Raises WarehouseError if the version does not contain `publication`: a table
        that was restored or created again has other rows under the same number."""
        key = (location, version, publication)
        with self._lock:
            if found := self._kept.get(key):
                self._kept.move_to_end(key)
                return found
        found = self._read(name, *key)
        with self._lock:
            self._kept[key] = found
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found

    def _read(self, name: str, location: str, version: int, publication: str | None) -> Contents:
        table = table_format(self.lake).open(name, location, version)
        if publication is not None and not table.has_published(publication, version):
            raise WarehouseError(
                f"table {name}: version {version} is not the publication {publication} that the state database"
                f" recorded: the lake was replaced or restored; {rebuild_hint(name)}"
            )
        import pyarrow as pa

        columns = pa.schema([field for field in table.arrow_schema() if field.name != MONTH])
        return Contents(columns, tuple(sorted(table.files(), key=lambda file: (file.month, file.first))))
