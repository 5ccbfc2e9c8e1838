"""Installs Debian packages that tests need. Several test processes may need one at the same time."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def installed(package: str, find: Callable[[], T | None], *options: str) -> T:
    """What `find` finds; if it finds nothing, after the package is installed with these options of apt-get. Raises
    RuntimeError if that is not possible: not as root, or without apt."""
    with (Path(tempfile.gettempdir()) / f"penstock-tests-apt-{os.geteuid()}.lock").open("w") as lock:
        # Also for the first look: programs are there before the package is set up (the account of PostgreSQL is made
        # last), and apt refuses a second process instead of waiting.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (found := find()) is not None:
            return found
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise RuntimeError(f"{package} is not installed: install it (Debian: apt-get install {package})")
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update", "-q"], ["install", "-q", "-y", *options, package]):
            subprocess.run(["apt-get", *words], check=True, env=env, stdout=subprocess.DEVNULL)
        found = find()
    if found is None:
        raise RuntimeError(f"apt-get installed {package}, but its programs are not found")
    return found
