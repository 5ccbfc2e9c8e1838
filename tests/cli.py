"""The command line as a user has it: a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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
