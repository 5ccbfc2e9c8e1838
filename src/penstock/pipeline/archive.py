"""Spark's classes, kept ready between processes: the JVM maps them from one file instead of loading a hundred jars.

`penstock spark prepare` lets a JVM write the file when it ends; those after it start in half the time. The file belongs
to one Java and one Spark; the JVM itself looks whether it fits, and does without it if not.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from penstock.errors import ConfigError, PenstockError

_PLAIN_PATH = re.compile(r"[\w./+-]+")  # anything else would have to be quoted on its way to the JVM
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"  # or the JVM says on stdout what it leaves out
_PATIENCE_SECONDS = 180


class ClassArchive:
    """The file for one Java and one Spark, which may not be there yet."""

    def __init__(self, folder: Path, java: str, spark: str) -> None:
        digest = hashlib.sha256(f"{java}\n{spark}".encode()).hexdigest()[:16]
        self.path = folder / f"spark-{digest}.jsa"
        self._new = folder / f"spark-{digest}.{os.getpid()}.new"

    @property
    def is_there(self) -> bool:
        return self.path.exists() and _is_safe(self.path.parent)

    def using(self) -> str:
        """What tells a JVM to use the file; nothing if it is not there."""
        return f"-XX:SharedArchiveFile={self.path} {_QUIET}" if self.is_there else ""

    def making(self) -> str:
        """What tells a JVM to write the file when it ends."""
        folder = self.path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"Spark's classes cannot be kept in {folder}: {error.strerror}") from error
        if not _PLAIN_PATH.fullmatch(str(self.path)):
            raise ConfigError(f"Spark's classes cannot be kept in {folder}: its name is too odd for the JVM's options")
        if not _is_safe(folder) or not os.access(folder, os.W_OK):
            raise ConfigError(
                f"Spark's classes cannot be kept in {folder}: it must be ours to write, and nobody else's"
            )
        return f"-XX:ArchiveClassesAtExit={self._new} {_QUIET}"

    def keep(self, jvm: subprocess.Popen[bytes]) -> int:
        """Let a JVM that was told to make the file end, and give what it wrote its name; says how many bytes. Files for
        other versions are deleted."""
        try:
            if jvm.stdin is not None:
                jvm.stdin.close()  # which ends it
            if jvm.wait(_PATIENCE_SECONDS) != 0 or not self._new.exists():
                raise PenstockError("the JVM did not write its classes: Spark starts as slowly as before")
            for old in self.path.parent.glob("spark-*.jsa"):
                old.unlink(missing_ok=True)
            os.replace(self._new, self.path)
        except subprocess.TimeoutExpired as error:
            raise PenstockError(f"the JVM did not end within {_PATIENCE_SECONDS} s") from error
        finally:
            for left in self.path.parent.glob("spark-*.new"):
                with suppress(OSError):
                    left.unlink()
        return self.path.stat().st_size


def class_archive(java: str, spark: Path) -> ClassArchive | None:
    """The archive for a Java (its words about its version) and the jars of a Spark; None for a JVM that knows nothing
    of such files. It lies in the virtual environment, and goes with it; without one, in the user's cache."""
    if "Server VM" not in java:
        return None
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(sys.prefix, "var") if sys.prefix != sys.base_prefix else Path(caches)
    return ClassArchive(folder / "penstock", java, f"{spark} {spark.stat().st_mtime_ns}")


def _is_safe(folder: Path) -> bool:
    """Whether nobody else could have put a file into it."""
    try:
        found = folder.stat()
    except OSError:
        return False
    return found.st_uid in (os.getuid(), 0) and not found.st_mode & 0o022
