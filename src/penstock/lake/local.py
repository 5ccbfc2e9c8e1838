"""A lake in a local folder. Objects appear atomically: written to a temporary file, then linked or renamed."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self

from penstock.errors import PenstockError
from penstock.lake.protocol import (
    HELD_BYTES,
    TEMPORARY,
    Blobs,
    Entry,
    LakeObjectMissing,
    LakeRefused,
    LakeUnavailable,
    LakeWriter,
    checked,
)

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_NOTHING_THERE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_REFUSALS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ENOTSUP}
_PATTERN = re.compile(r"[*?\[\]{}\\^]")  # Hadoop and DuckDB treat these characters as a pattern
_STALE_SECONDS = 24 * 3600  # an unfinished file this old belongs to a dead process


@dataclass(frozen=True, slots=True)
class LocalLake:
    """Implements `Lake` on a file system with atomic links and renames."""

    root: str

    @property
    def url(self) -> str:
        return self.root

    @property
    def opens_by_path(self) -> bool:
        return _PATTERN.search(self.root) is None

    @property
    def requests_in_flight(self) -> int:
        return 1

    def create(self, path: str, data: bytes) -> bool:
        target = f"{self.root}/{checked(path)}"
        try:
            temporary, file = _new_file_beside(target)
            try:
                _write_and_close(file, (data,))
                os.link(temporary, target)  # unlike a rename, a link never replaces
            except FileExistsError:
                return False
            finally:
                os.unlink(temporary)
        except OSError as error:
            raise _translated(self.root, "create", path, error) from error
        return True

    def writer(self, path: str) -> LakeWriter:
        return _LocalWriter(self.root, checked(path))

    def read(self, path: str) -> bytes:
        try:
            with open(f"{self.root}/{checked(path)}", "rb", buffering=0) as file:
                return file.read()
        except _NOTHING_THERE as error:
            raise LakeObjectMissing(self.root, path) from error
        except OSError as error:
            raise _translated(self.root, "read", path, error) from error

    def read_many(self, paths: Sequence[str]) -> Blobs:
        found: Blobs = []
        for path in paths:
            try:
                found.append(self.read(path))
            except LakeObjectMissing:
                found.append(None)
        return found

    def open(self, path: str) -> BinaryIO:
        try:
            return open(f"{self.root}/{checked(path)}", "rb")
        except _NOTHING_THERE as error:
            raise LakeObjectMissing(self.root, path) from error
        except OSError as error:
            raise _translated(self.root, "open", path, error) from error

    def exists(self, path: str) -> bool:
        return os.path.isfile(f"{self.root}/{checked(path)}")

    def list(self, prefix: str = "") -> Iterator[Entry]:
        folder = prefix.rstrip("/")
        below = f"{checked(folder)}/" if folder else ""
        try:
            yield from self._walk(below)
        except OSError as error:
            raise _translated(self.root, "list", prefix, error) from error

    def _walk(self, below: str) -> Iterator[Entry]:
        try:
            with os.scandir(f"{self.root}/{below}") as scan:
                entries = [entry for entry in scan if not entry.name.startswith(TEMPORARY)]
        except _NOTHING_THERE:  # it does not exist, or was deleted during the listing
            return
        for entry in entries:
            if entry.is_dir():
                yield from self._walk(f"{below}{entry.name}/")
                continue
            try:
                size = entry.stat().st_size
            except FileNotFoundError:
                continue
            yield Entry(f"{below}{entry.name}", size)

    def delete(self, paths: Iterable[str]) -> None:
        folders = set()
        for path in paths:
            try:
                os.unlink(f"{self.root}/{checked(path)}")
            except _NOTHING_THERE:
                pass
            except OSError as error:
                raise _translated(self.root, "delete", path, error) from error
            folders.add(os.path.dirname(path))
        for folder in folders:
            self._prune(folder)

    def _prune(self, folder: str) -> None:
        """Remove empty folders upwards: an object store has no empty folders."""
        while folder:
            full = f"{self.root}/{folder}"
            try:
                if not _holds_only_stale_files(full):
                    return
                os.rmdir(full)
            except OSError:  # another process uses or removed it; an empty folder does no harm
                return
            folder = os.path.dirname(folder)

    def sync(self) -> None:
        import ctypes

        syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if syncfs is None:  # not Linux
            os.sync()
            return
        try:
            root = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # nothing was written yet
            return
        except OSError as error:
            raise _translated(self.root, "sync", "", error) from error
        try:
            if syncfs(root) != 0:
                number = ctypes.get_errno()
                raise LakeUnavailable(f"cannot make {self.root} durable: {os.strerror(number)}; repeat the work")
        finally:
            os.close(root)

    def filesystem(self) -> tuple[FileSystem, str]:
        from pyarrow.fs import LocalFileSystem

        return LocalFileSystem(), self.root

    def storage_options(self) -> dict[str, str]:
        return {}

    def uri(self, path: str) -> str:
        return f"{self.root}/{checked(path)}"


class _LocalWriter:
    """Buffers a small object until commit, so that it needs one open, one write and one close."""

    __slots__ = ("_file", "_held", "_path", "_root", "_size", "_temporary")

    def __init__(self, root: str, path: str) -> None:
        self._root = root
        self._path = path
        self._held: list[bytes] = []
        self._size = 0
        self._temporary = ""
        self._file = -1

    def write(self, data: bytes, /) -> None:
        self._held.append(data)
        self._size += len(data)
        if self._size >= HELD_BYTES:
            try:
                self._spill()
            except OSError as error:
                raise _translated(self._root, "write", self._path, error) from error

    def _spill(self) -> None:
        if self._file < 0:
            self._temporary, self._file = _new_file_beside(f"{self._root}/{self._path}")
        _write_all(self._file, self._held)
        self._held.clear()
        self._size = 0

    def commit(self) -> None:
        try:
            self._spill()
            file, self._file = self._file, -1
            os.close(file)
            os.replace(self._temporary, f"{self._root}/{self._path}")
            self._temporary = ""
        except OSError as error:
            raise _translated(self._root, "write", self._path, error) from error

    def discard(self) -> None:
        self._held.clear()
        file, self._file = self._file, -1
        temporary, self._temporary = self._temporary, ""
        try:
            if file >= 0:
                os.close(file)
            if temporary:
                os.unlink(temporary)
        except OSError as error:
            raise _translated(self._root, "discard", self._path, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.discard()


def _new_file_beside(target: str) -> tuple[str, int]:
    """A new temporary file in the target's folder. Creates the folder only if opening the file fails."""
    folder = os.path.dirname(target)
    temporary = f"{folder}/{TEMPORARY}{os.urandom(8).hex()}"
    for _ in range(10):  # a deleting process can prune the new folder before it is used
        try:
            return temporary, os.open(temporary, _NEW_FILE, 0o666)
        except FileNotFoundError:
            _make_folders(folder)
    return temporary, os.open(temporary, _NEW_FILE, 0o666)


def _make_folders(folder: str) -> None:
    """Like os.makedirs, but tries the last folder first: usually only that one is missing."""
    try:
        os.mkdir(folder)
    except FileExistsError:
        pass
    except FileNotFoundError:
        _make_folders(os.path.dirname(folder))
        _make_folders(folder)


def _write_and_close(file: int, blocks: Iterable[bytes]) -> None:
    try:
        _write_all(file, blocks)
    finally:
        os.close(file)


def _write_all(file: int, blocks: Iterable[bytes]) -> None:
    rest = memoryview(b"".join(blocks))
    while rest:
        rest = rest[os.write(file, rest) :]


def _holds_only_stale_files(folder: str) -> bool:
    """Whether the folder is empty after the removal of old temporary files of killed writers."""
    horizon = time.time() - _STALE_SECONDS
    with os.scandir(folder) as scan:
        for entry in scan:
            if not entry.name.startswith(TEMPORARY) or entry.stat().st_mtime > horizon:
                return False
            os.unlink(entry.path)
    return True


def _translated(root: str, verb: str, path: str, error: OSError) -> PenstockError:
    text = f"cannot {verb} {path or 'the root'} in the lake {root}: {error.strerror or error}"
    if error.errno in _REFUSALS:
        return LakeRefused(f"{text}; check the folder's owner and permissions")
    return LakeUnavailable(text)
