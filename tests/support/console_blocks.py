"""Runs the `console` blocks of documentation pages and compares their output with what the page shows."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path


def commands_of(block: str) -> list[tuple[str, str]]:
    """Return each command of a `console` block, which stands after `$ `, with the output that the block shows."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def outputs_of(commands: list[tuple[str, str]], folder: Path, timeout: float = 300) -> list[str]:
    """Run the commands in one shell, as a reader does, and return their outputs. The shell ends what it started."""
    mark = "--- next ---"
    lines = ["set -e", "trap 'kill $(jobs -p) 2> /dev/null || true' EXIT"]
    lines += [line for command, _ in commands for line in (command, f"echo '{mark}'")]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        cwd=folder,
        env={"PYTHONPATH": "", **os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split(f"{mark}\n")[:-1]


def fits(expected: str, found: str, flags: int = doctest.ELLIPSIS) -> bool:
    """Whether the output is as shown, where `...` stands for anything. Without shown output there must be none."""
    return doctest.OutputChecker().check_output(expected, found, flags)
