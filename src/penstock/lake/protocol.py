"""What every lake promises, in the words of an object store. Paths are relative, with forward slashes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol, Self, TypeAlias

from penstock.errors import ErrorClass, TerminalError, TransientError, UsageError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

HELD_BYTES = 8 * 1024 * 1024  # what one writer keeps in memory before it starts to send
TEMPORARY = ".tmp-"  # how the names of unfinished local files start: no object may be called so

Blobs: TypeAlias = list[bytes | None]  # an alias, because inside a lake the word `list` is a verb


class LakeObjectMissing(TerminalError):
    """There is no object under this path."""

    error_class = ErrorClass.DATA
    remedy = "`penstock recover` shows what else is missing, and how to rebuild it."

    def __init__(self, url: str, path: str) -> None:
        super().__init__(url, path)

    @property
    def path(self) -> str:
        path: str = self.args[1]
        return path

    def __str__(self) -> str:
        return f"there is no object {self.args[1]} in the lake {self.args[0]}"


class LakeUnavailable(TransientError):
    """The storage did not answer, or could not do it now. Whether a write happened is not known."""

    remedy = "Run the command again when the storage responds; `penstock doctor` checks it."


class LakeRefused(TerminalError):
    """The storage answered, and said no: credentials, permissions, a bucket that does not exist."""

    error_class = ErrorClass.CONFIG
    remedy = "Correct the credentials, the permissions or the bucket of `lake`; `penstock doctor` checks them."


class Entry(NamedTuple):
    path: str
    size: int


class LakeWriter(Protocol):
    """One object in the making. Nobody sees it before `commit`; leaving without commit leaves nothing behind."""

    def write(self, data: bytes, /) -> None: ...

    def commit(self) -> None:
        """Make the whole object visible at once, in place of an older one of that name."""

    def discard(self) -> None:
        """Forget it. Does nothing after a commit."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Lake(Protocol):
    """A lake is a value: it can be pickled, compared and opened again anywhere, and holds nothing open until used.

    A reader sees an object whole or not at all.
    """

    @property
    def url(self) -> str: ...

    @property
    def opens_by_path(self) -> bool:
        """Whether engines that are handed `uri(...)` open the file themselves, and take its name as it is written."""

    def create(self, path: str, data: bytes) -> bool:
        """Create if absent: True for exactly one caller, for ever; False when the object exists already."""

    def writer(self, path: str) -> LakeWriter: ...

    def read(self, path: str) -> bytes: ...

    def read_many(self, paths: Sequence[str]) -> Blobs:
        """The objects in the order asked for; None where there is none."""

    def open(self, path: str) -> BinaryIO:
        """The object as a seekable stream, read in pieces."""

    def exists(self, path: str) -> bool: ...

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Every object below the folder `prefix`, at any depth, in no promised order."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete these objects; one that is missing already is fine."""

    def sync(self) -> None:
        """All that was written before this call survives a power cut."""

    def filesystem(self) -> tuple[FileSystem, str]:
        """The Arrow filesystem, and the path of the lake's root in it."""

    def storage_options(self) -> dict[str, str]:
        """What delta-rs must be told to open `uri(...)`. Never credentials: those it reads from the environment."""

    def uri(self, path: str) -> str: ...


def checked(path: str) -> str:
    """The path, if it stays inside the lake and means the same on every kind of storage."""
    probe = f"/{path}/"
    if "//" in probe or "/./" in probe or "/../" in probe or "\\" in probe or f"/{TEMPORARY}" in probe:
        raise UsageError(f"{path!r} is not a path in a lake: write folder/name, relative, without '.', '..' or '\\'")
    if not path.isprintable():
        raise UsageError(f"{path!r} is not a path in a lake: it has characters that cannot be printed")
    return path
