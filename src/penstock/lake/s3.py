"""A lake in S3-compatible storage. Credentials and endpoint come from the AWS environment variables and are never
stored or printed."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast

from penstock.errors import ConfigError, PenstockError
from penstock.lake.protocol import (
    HELD_BYTES,
    Blobs,
    Entry,
    LakeObjectMissing,
    LakeRefused,
    LakeUnavailable,
    LakeWriter,
    checked,
)

if TYPE_CHECKING:
    from obstore import WritableFile
    from obstore.store import S3Store
    from pyarrow.fs import FileSystem

_REQUESTS_IN_FLIGHT = 64  # at 30 ms each, two thousand in a second
_READ_AHEAD = 4 * 1024 * 1024
_PART_BYTES = 5 * 1024 * 1024  # the minimum of S3; two buffered parts stay near HELD_BYTES
_SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_LOGIN_IN_ADDRESS = re.compile(r"//[^/@\s]+@")


class S3Lake:
    """Implements `Lake`. Its state is the address alone: each process creates its own client on first use."""

    __slots__ = ("_bucket", "_client", "_prefix")

    def __init__(self, bucket: str, prefix: str) -> None:
        if find_spec("obstore") is None:
            raise ConfigError("a lake in S3 needs the package obstore: install penstock[s3]")
        self._bucket = bucket
        self._prefix = prefix
        self._client: S3Store | None = None

    @property
    def url(self) -> str:
        return "s3://" + self._base()

    @property
    def opens_by_path(self) -> bool:
        return False  # DuckDB needs an extension for it, and Spark a jar

    @property
    def requests_in_flight(self) -> int:
        return _REQUESTS_IN_FLIGHT

    def __reduce__(self) -> tuple[type[S3Lake], tuple[str, str]]:
        return S3Lake, (self._bucket, self._prefix)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, S3Lake) and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __repr__(self) -> str:
        return f"S3Lake({self.url!r})"

    def create(self, path: str, data: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._translated_errors("create", path, missing_is_refusal=True):
            try:
                self._store().put(checked(path), data, mode="create")
            except (AlreadyExistsError, PreconditionError):
                # S3 also reports a conflict with a request in progress, which may fail: nothing exists then.
                if self._is_stored(path):
                    return False
                raise LakeUnavailable(
                    f"{self.url}/{path} is being created by another request: repeat the work"
                ) from None
        return True

    def _is_stored(self, path: str) -> bool:
        try:
            self._store().head(checked(path))
        except FileNotFoundError:
            return False
        return True

    def writer(self, path: str) -> LakeWriter:
        return _S3Writer(self, checked(path))

    def read(self, path: str) -> bytes:
        with self._translated_errors("read", path):
            return self._store().get(checked(path)).bytes().to_bytes()

    def read_many(self, paths: Sequence[str]) -> Blobs:
        if not paths:
            return []
        self._store()  # creates the client once, before the threads start
        with ThreadPoolExecutor(min(_REQUESTS_IN_FLIGHT, len(paths))) as pool:
            return list(pool.map(self._read_if_there, paths))

    def _read_if_there(self, path: str) -> bytes | None:
        try:
            return self.read(path)
        except LakeObjectMissing:
            return None

    def open(self, path: str) -> BinaryIO:
        with self._translated_errors("open", path):
            size = self._store().head(checked(path))["size"]
        return io.BufferedReader(_S3Stream(self, path, size), _READ_AHEAD)

    def exists(self, path: str) -> bool:
        try:
            with self._translated_errors("look for", path):
                self._store().head(checked(path))
        except LakeObjectMissing:
            return False
        return True

    def list(self, prefix: str = "") -> Iterator[Entry]:
        folder = prefix.rstrip("/")
        with self._translated_errors("list", prefix):
            for chunk in self._store().list(checked(folder) if folder else None, chunk_size=1000):
                for entry in chunk:
                    yield Entry(entry["path"], entry["size"])

    def delete(self, paths: Iterable[str]) -> None:
        targets = [checked(path) for path in paths]
        if not targets:
            return
        with self._translated_errors("delete", targets[0] if len(targets) == 1 else f"{len(targets)} objects"):
            try:
                self._store().delete(targets)
            except FileNotFoundError:  # some S3-compatible servers report it; the objects are gone
                return

    def sync(self) -> None:
        """Does nothing: S3 confirms a write only when it is durable."""

    def filesystem(self) -> tuple[FileSystem, str]:
        from pyarrow.fs import S3FileSystem

        _silence_sdk()
        # Without the delay a file below 10 MB costs three requests instead of one. Errors are raised by close.
        options: dict[str, Any] = {"region": _region(), "allow_delayed_open": True}
        if endpoint := _endpoint():
            scheme, _, address = endpoint.partition("://")
            options |= {"scheme": scheme, "endpoint_override": address.rstrip("/")}
        return S3FileSystem(**options), self._base()

    def storage_options(self) -> dict[str, str]:
        options = {"AWS_REGION": _region()}
        if endpoint := _endpoint():
            options["AWS_ENDPOINT_URL"] = endpoint
            if endpoint.startswith("http://"):
                options["AWS_ALLOW_HTTP"] = "true"
        return options

    def uri(self, path: str) -> str:
        return f"{self.url}/{checked(path)}"

    def _base(self) -> str:
        return f"{self._bucket}/{self._prefix}" if self._prefix else self._bucket

    def _store(self) -> S3Store:
        if self._client is None:
            self._client = _connect(self._bucket, self._prefix)
        return self._client

    @contextmanager
    def _translated_errors(self, verb: str, path: str, *, missing_is_refusal: bool = False) -> Iterator[None]:
        """Translates errors of the client into errors of the lake, without credentials in their text."""
        from obstore.exceptions import BaseError

        try:
            yield
        except FileNotFoundError as error:
            if missing_is_refusal:  # a write gets "not found" only if the bucket is missing
                raise LakeRefused(f"cannot {verb} {path}: there is no bucket {self._bucket}; create it") from error
            raise LakeObjectMissing(self.url, path) from error
        except (BaseError, OSError) as error:
            raise self._translated(verb, path, error) from _if_without_secrets(error)

    def _translated(self, verb: str, path: str, error: Exception) -> PenstockError:
        from obstore.exceptions import NotSupportedError, PermissionDeniedError, UnauthenticatedError

        text = f"cannot {verb} {path or 'the root'} in the lake {self.url}"
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            return LakeRefused(f"{text}: the storage refuses our credentials; check AWS_* in the environment")
        if isinstance(error, NotSupportedError):
            return LakeRefused(f"{text}: the storage cannot do that")
        if "NoSuchBucket" in str(error):
            return LakeRefused(f"{text}: there is no such bucket; create it")
        return LakeUnavailable(f"{text}: {_message(error)}")


class _S3Writer:
    """Sends a small object in one request at commit, and a large one as a multipart upload that commit completes."""

    def __init__(self, lake: S3Lake, path: str) -> None:
        self._lake = lake
        self._path = path
        self._held: list[bytes] = []
        self._size = 0
        self._parts: WritableFile | None = None

    def write(self, data: bytes, /) -> None:
        if self._parts is None:
            self._held.append(data)
            self._size += len(data)
            if self._size < HELD_BYTES:
                return
            self._start_parts()
            data = b"".join(self._held)
            self._held.clear()
        self._send(data)

    def _start_parts(self) -> None:
        from obstore import open_writer

        self._parts = open_writer(self._lake._store(), self._path, buffer_size=_PART_BYTES, max_concurrency=1)

    def _send(self, data: bytes) -> None:
        assert self._parts is not None
        with self._lake._translated_errors("write", self._path, missing_is_refusal=True):
            self._parts.write(data)

    def commit(self) -> None:
        with self._lake._translated_errors("write", self._path, missing_is_refusal=True):
            if self._parts is None:
                self._lake._store().put(self._path, b"".join(self._held), use_multipart=False)
            else:
                self._parts.close()
        self._parts = None
        self._held.clear()

    def discard(self) -> None:
        self._held.clear()
        parts, self._parts = self._parts, None
        if parts is not None:
            # Closing would complete the upload. This client aborts it if the block ends with an error.
            unwanted = RuntimeError("discarded")
            with self._lake._translated_errors("discard", self._path):
                parts.__exit__(type(unwanted), unwanted, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.discard()


class _S3Stream(io.RawIOBase):
    """Reads an object by ranges: a slow consumer causes no request timeout. While a sequential consumer uses a range,
    the next one is fetched, so memory is two ranges."""

    def __init__(self, lake: S3Lake, path: str, size: int) -> None:
        self._lake = lake
        self._path = path
        self._size = size
        self._at = 0
        self._ended_at = -1  # where the last range ended
        self._ahead: tuple[int, Future[bytes]] | None = None  # the next range, and where it begins
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        length = min(len(buffer), self._size - self._at)
        if length <= 0:
            return 0
        is_sequential, ahead = self._at == self._ended_at, self._ahead
        self._ahead = None
        if ahead is not None and ahead[0] == self._at:
            data = ahead[1].result()[:length]
        else:
            data = self._fetch(self._at, length)
        memoryview(buffer)[: len(data)] = data
        self._at = self._ended_at = self._at + len(data)
        following = min(length, self._size - self._at)
        if is_sequential and following > 0:
            self._ahead = (self._at, self._thread.submit(self._fetch, self._at, following))
        return len(data)

    def _fetch(self, start: int, length: int) -> bytes:
        with self._lake._translated_errors("read", self._path):
            return bytes(self._lake._store().get_range(self._path, start=start, length=length))

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        super().close()


def _connect(bucket: str, prefix: str) -> S3Store:
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    options: dict[str, Any] = {"region": _region()}
    endpoint = _endpoint()
    if endpoint:
        options["endpoint"] = endpoint
    plain = bool(endpoint) and endpoint.startswith("http://")
    try:
        return S3Store(bucket, prefix=prefix or None, client_options={"allow_http": plain}, config=cast(Any, options))
    except (BaseError, ValueError) as error:
        raise ConfigError(f"cannot open s3://{bucket}: {_message(error)}") from _if_without_secrets(error)


def _silence_sdk() -> None:
    """Turn off the log that the AWS SDK in pyarrow writes to standard output, unless ARROW_S3_LOG_LEVEL is set."""
    import pyarrow as pa
    from pyarrow.fs import S3LogLevel, initialize_s3

    if "ARROW_S3_LOG_LEVEL" in os.environ:
        return
    try:
        initialize_s3(S3LogLevel.Off)
    except pa.ArrowInvalid:  # S3 is initialised already in this process
        pass


def _endpoint() -> str:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""


def _region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def _message(error: Exception) -> str:
    """The first line of the client's message, without the server's document and without credentials."""
    text = _LOGIN_IN_ADDRESS.sub("//", str(error).partition("\n")[0].partition("<")[0]).strip(" :")
    for name in _SECRETS:
        if value := os.environ.get(name):
            text = text.replace(value, "***")
    return text


def _if_without_secrets(error: Exception) -> Exception | None:
    """The error as a cause; None if its text would put a credential into a traceback."""
    text = str(error)
    leaks = any(value in text for name in _SECRETS if (value := os.environ.get(name)))
    return None if leaks or _LOGIN_IN_ADDRESS.search(text) else error
