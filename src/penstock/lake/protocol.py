"""The protocol of a lake: the operations of an object store. Paths are relative, with forward slashes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol, Self, TypeAlias

from penstock.errors import ErrorClass, TerminalError, TransientError, UsageError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

HELD_BYTES = 8 * 1024 * 1024  # bytes that a writer buffers before it starts to send
TEMPORARY = ".tmp-"  # prefix of the names of temporary local files; no object may have it

Blobs: TypeAlias = list[bytes | None]  # an alias, because `list` is a method of a lake


class LakeObjectMissing(TerminalError):
    """There is no object at this path. Arguments: the URL of the lake and the path."""

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
    """The storage did not respond, or failed for now. A write may or may not have happened."""

    remedy = "Run the command again when the storage responds; `penstock doctor` checks it."


class LakeRefused(TerminalError):
    """The storage refused a request: credentials, permissions, a bucket that does not exist."""

    error_class = ErrorClass.CONFIG
    remedy = "Correct the credentials, the permissions or the bucket of `lake`; `penstock doctor` checks them."


class Entry(NamedTuple):
    """An object in a listing."""

    path: str
    size: int


class LakeWriter(Protocol):
    """Writes one object, which is invisible before `commit`. Leaving the block without a commit discards it."""

    def write(self, data: bytes, /) -> None: ...

    def commit(self) -> None:
        """Make the object visible atomically; replaces an older one at the same path."""

    def discard(self) -> None:
        """Delete the unfinished object. Does nothing after a commit."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Lake(Protocol):
    """A lake is a value: it can be pickled, compared and used in any process, and opens no connection before its first
    use. Objects are atomic: a reader sees a whole object or none.
    """

    @property
    def url(self) -> str: ...

    @property
    def opens_by_path(self) -> bool:
        """Whether DuckDB and Spark can open `uri(...)` themselves, with its name taken literally."""

    @property
    def requests_in_flight(self) -> int:
        """The requests that one process keeps in flight to hide their latency; 1 if requests do not wait."""

    def create(self, path: str, data: bytes) -> bool:
        """Create the object if it does not exist. Returns True for exactly one caller, and False if the object
        exists."""

    def writer(self, path: str) -> LakeWriter: ...

    def read(self, path: str) -> bytes: ...

    def read_many(self, paths: Sequence[str]) -> Blobs:
        """The objects in the order of `paths`; None for each that does not exist."""

    def open(self, path: str) -> BinaryIO:
        """The object as a seekable stream that is read in ranges."""

    def exists(self, path: str) -> bool: ...

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Every object below the folder `prefix`, at any depth, in any order."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete these objects. A missing object is no error."""

    def sync(self) -> None:
        """Make all completed writes durable, so that they survive a power failure."""

    def filesystem(self) -> tuple[FileSystem, str]:
        """The Arrow filesystem, and the path of the lake's root in it."""

    def storage_options(self) -> dict[str, str]:
        """The options with which delta-rs opens `uri(...)`, without credentials: it reads those from the
        environment."""

    def uri(self, path: str) -> str: ...


def checked(path: str) -> str:
    """The path, if it stays inside the lake and is valid on every kind of storage. Raises UsageError otherwise."""
    probe = f"/{path}/"
    if "//" in probe or "/./" in probe or "/../" in probe or "\\" in probe or f"/{TEMPORARY}" in probe:
        raise UsageError(f"{path!r} is not a path in a lake: write folder/name, relative, without '.', '..' or '\\'")
    if not path.isprintable():
        raise UsageError(f"{path!r} is not a path in a lake: it has characters that cannot be printed")
    return path
