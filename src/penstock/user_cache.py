"""A cache of files that belong to one user: values that can be computed again, and that hold no secret.

The cache never fails a command. A folder or a file that another user owns or may write to, a damaged file and a folder
that cannot be written to are ignored. Files have no executable content: callers store JSON or Parquet.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

VARIABLE = "PENSTOCK_CACHE"  # a folder, or `off`
OFF = "off"
_OURS = re.compile(r"[a-z]+-[0-9a-f]+|\.[0-9a-f]{32}\.new")  # entries, and files that are being written
_DIGEST_BYTES = 32
_MOST_FILES = 64
_MOST_BYTES = 256 * 1024 * 1024
_LARGEST_FILE = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class UserCache:
    """The files of the cache, by name. Without a folder it holds nothing."""

    folder: Path | None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> UserCache:
        """The cache of this user: `$PENSTOCK_CACHE`, or `penstock/commands` in the user's cache folder."""
        chosen = environ.get(VARIABLE)
        if chosen:
            return cls(None if chosen == OFF else Path(chosen))
        caches = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        return cls(Path(caches, "penstock", "commands") if os.path.isabs(caches) else None)

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none that is complete and belongs to this user."""
        if self.folder is None:
            return None
        try:
            with _own_folder(self.folder) as folder:
                return _read_own(folder, name)
        except (OSError, ValueError):
            return None

    def write(self, name: str, data: bytes) -> None:
        """Replace a file atomically, and delete the oldest files beyond the limits. Does nothing if that fails."""
        if self.folder is None or len(data) > _LARGEST_FILE:
            return
        with suppress(OSError, ValueError):
            self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError):
                self.folder.mkdir(mode=0o700)
            with _own_folder(self.folder) as folder:
                _replace(folder, name, hashlib.sha256(data).digest() + data)
                _prune(folder)


@contextmanager
def _own_folder(path: Path) -> Iterator[int]:
    """A descriptor of the folder. Raises ValueError unless only this user may write to it. All files are opened
    relative to the descriptor, so that the folder cannot be exchanged after the check."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _require_own(os.fstat(folder))
        yield folder
    finally:
        os.close(folder)


def _require_own(found: os.stat_result) -> None:
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
        raise ValueError("another user may have written it")


def _read_own(folder: int, name: str) -> bytes | None:
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    with open(file, "rb") as opened:
        found = os.fstat(file)
        _require_own(found)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST_FILE + _DIGEST_BYTES:
            return None
        digest, data = opened.read(_DIGEST_BYTES), opened.read()
    return data if hashlib.sha256(data).digest() == digest else None


def _replace(folder: int, name: str, data: bytes) -> None:
    temporary = f".{uuid4().hex}.new"
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        with open(file, "wb") as opened:
            opened.write(data)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _prune(folder: int) -> None:
    """Delete the oldest entries beyond the limits, and what killed processes left. Other files of the folder stay: the
    user chooses it."""
    ours = [name for name in os.listdir(folder) if _OURS.fullmatch(name)]
    found = sorted(
        ((os.stat(name, dir_fd=folder, follow_symlinks=False), name) for name in ours),
        key=lambda item: item[0].st_mtime,
        reverse=True,
    )
    total = 0
    for number, (known, name) in enumerate(found, start=1):
        total += known.st_size
        if number > _MOST_FILES or total > _MOST_BYTES:
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
