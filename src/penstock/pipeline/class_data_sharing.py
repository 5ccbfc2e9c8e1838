"""Class data sharing: the JVM maps Spark's classes from one archive file instead of loading them from a hundred jars.

`penstock spark prepare` makes a JVM write the archive when it exits; later JVMs start in half the time. The archive
belongs to one Java and one Spark; the JVM verifies whether it fits, and starts without it if not.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from penstock.errors import ConfigError, PenstockError

_PLAIN_PATH = re.compile(r"[\w./+-]+")  # any other path would need quoting in the JVM's options
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"  # otherwise the JVM prints skipped classes to stdout
_TIMEOUT_SECONDS = 180
_LEFT_OVER_SECONDS = 3600


class ClassArchive:
    """The archive file for one Java and one Spark; it may not exist yet."""

    def __init__(self, folder: Path, java: str, spark: str) -> None:
        digest = hashlib.sha256(f"{java}\n{spark}".encode()).hexdigest()[:16]
        self.path = folder / f"spark-{digest}.jsa"
        self._new = folder / f"spark-{digest}.{os.getpid()}.new"

    @property
    def exists(self) -> bool:
        return self.path.is_file() and _is_safe(self.path) and self.obstacle is None

    @property
    def obstacle(self) -> str | None:
        """Why the file cannot be stored in its folder; None if it can."""
        folder = self.path.parent
        if not _PLAIN_PATH.fullmatch(str(self.path)):
            return "its path has characters that the JVM's options do not allow"
        if folder.exists() and not _is_safe(folder):
            return "users other than its owner may write to it"
        return None

    def use_options(self) -> str:
        """The JVM options to use the file; empty if it does not exist."""
        return f"-XX:SharedArchiveFile={self.path} {_QUIET}" if self.exists else ""

    def write_options(self) -> str:
        """The JVM options to write the file on exit."""
        folder = self.path.parent
        try:
            for one in (folder.parent, folder):
                one.mkdir(mode=0o700, exist_ok=True)
            obstacle = self.obstacle or (None if os.access(folder, os.W_OK) else "it cannot be written to")
        except OSError as error:
            obstacle = error.strerror
        if obstacle:
            raise ConfigError(f"the class archive cannot be stored in {folder}: {obstacle}")
        return f"-XX:ArchiveClassesAtExit={self._new} {_QUIET}"

    def keep(self, jvm: subprocess.Popen[bytes]) -> int:
        """End a JVM that writes the file, rename the file to its final name, and return its size in bytes."""
        try:
            if jvm.stdin is not None:
                jvm.stdin.close()  # which ends it
            if jvm.wait(_TIMEOUT_SECONDS) != 0 or not self._new.exists():
                raise PenstockError("the JVM did not write its classes: Spark starts as slowly as before")
            os.replace(self._new, self.path)
        except subprocess.TimeoutExpired as error:
            raise PenstockError(f"the JVM did not end within {_TIMEOUT_SECONDS} s") from error
        finally:
            self.discard(jvm)
        return self.path.stat().st_size

    def discard(self, jvm: subprocess.Popen[bytes]) -> None:
        """End the JVM if it still runs, and delete partly written files, older ones of other processes included."""
        if jvm.poll() is None:
            jvm.kill()
            jvm.wait()
        before = time.time() - _LEFT_OVER_SECONDS
        for left in self.path.parent.glob("spark-*.new"):
            with suppress(OSError):
                if left == self._new or left.stat().st_mtime < before:
                    left.unlink()


def class_archive(java: str, jars: Path) -> ClassArchive | None:
    """The archive for a Java (the output of `java -version`) and the jars of a Spark; None if this JVM or Spark does
    not support it. It is stored in the virtual environment, or else in the user's cache."""
    if "Server VM" not in java or "sharing" not in java:  # a JVM without a shared archive of its own supports no other
        return None
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(sys.prefix, "var") if sys.prefix != sys.base_prefix else Path(caches)
    try:
        return ClassArchive(folder / "penstock", java, f"{jars} {int(jars.stat().st_mtime)}")
    except OSError:
        return None


def _is_safe(path: Path) -> bool:
    """Whether it is a regular file or folder that no other user can write to."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return not stat.S_ISLNK(found.st_mode) and found.st_uid in (os.getuid(), 0) and not found.st_mode & 0o022
