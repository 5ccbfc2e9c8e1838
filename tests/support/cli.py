"""The command line as a user runs it: in its own process."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from support.made_workspaces import remember


def penstock(*arguments: str, workspace: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `penstock` to its end, whatever its exit code."""
    if workspace:
        remember(workspace)
    where = ["--workspace", str(workspace)] if workspace else []
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments, *where],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
        timeout=300,
    )


def answer(*arguments: str, workspace: Path, code: int = 0, **environment: str) -> dict[str, Any]:
    """The JSON document that a command prints; nothing else may be on stdout."""
    done = penstock(*arguments, "--json", workspace=workspace, **environment)
    assert done.returncode == code, done.stderr + done.stdout
    document: dict[str, Any] = json.loads(done.stdout)
    return document


class Ended(NamedTuple):
    """How a command ended in this process."""

    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.stdout)
        return found


def in_process(*arguments: str, workspace: Path, stdin: str | None = None) -> Ended:
    """Run a command in this process, which is fast; only for commands that start no Spark. `stdin` is the input of a
    terminal; without it there is no terminal."""
    from penstock.cli.main import main

    written = (io.BytesIO(), io.BytesIO())
    out, err = (io.TextIOWrapper(buffer, write_through=True) for buffer in written)
    typed = _Terminal(stdin) if stdin is not None else io.StringIO()
    code = 0
    with (
        patch.object(sys, "argv", ["penstock", *arguments, "--workspace", str(workspace)]),
        patch.multiple(sys, stdin=typed, stdout=out, stderr=err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Ended(code, *(buffer.getvalue().decode() for buffer in written))


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True
