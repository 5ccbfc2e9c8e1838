"""A read-only lake: it refuses every write before a request is sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from penstock.lake.protocol import Blobs, Entry, Lake, LakeRefused

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


@dataclass(frozen=True, slots=True)
class ReadOnlyLake:
    """The read operations of another lake. Writes raise LakeRefused."""

    _lake: Lake

    @property
    def url(self) -> str:
        return self._lake.url

    @property
    def opens_by_path(self) -> bool:
        return self._lake.opens_by_path

    @property
    def requests_in_flight(self) -> int:
        return self._lake.requests_in_flight

    def read(self, path: str) -> bytes:
        return self._lake.read(path)

    def read_many(self, paths: Sequence[str]) -> Blobs:
        return self._lake.read_many(paths)

    def open(self, path: str) -> BinaryIO:
        return self._lake.open(path)

    def exists(self, path: str) -> bool:
        return self._lake.exists(path)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        return self._lake.list(prefix)

    def filesystem(self) -> tuple[FileSystem, str]:
        return self._lake.filesystem()

    def storage_options(self) -> dict[str, str]:
        return self._lake.storage_options()

    def uri(self, path: str) -> str:
        return self._lake.uri(path)

    def create(self, path: str, data: bytes) -> NoReturn:
        self._refuse(path)

    def writer(self, path: str) -> NoReturn:
        self._refuse(path)

    def delete(self, paths: Iterable[str]) -> NoReturn:
        self._refuse(", ".join(paths))

    def sync(self) -> NoReturn:
        self._refuse("anything")

    def _refuse(self, path: str) -> NoReturn:
        raise LakeRefused(f"the lake {self.url} was opened read-only: {path} is not written; use penstock.open(...)")
