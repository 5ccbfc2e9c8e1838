"""A process that runs commands of `penstock` one after the other, so that they share one Spark Connect session.

It reads one JSON list of arguments per line, and answers each with one JSON line: exit code, stdout, stderr.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.cli import Ended, in_process


class CommandProcess:
    """The process, seen from a test."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, *arguments: str, workspace: Path) -> Ended:
        """Run a command to its end, whatever its exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(workspace), *arguments]) + "\n")
        self._process.stdin.flush()
        return Ended(*json.loads(self._process.stdout.readline()))


@contextmanager
def command_process() -> Iterator[CommandProcess]:
    """Start the process; it ends with the block."""
    line = [sys.executable, "-c", "from support.command_process import serve; serve()"]
    environment = {"PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    ) as process:
        try:
            yield CommandProcess(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)


def serve() -> None:
    """Run the commands that come on standard input."""
    answers = sys.stdout
    for line in sys.stdin:
        workspace, *arguments = json.loads(line)
        ended = in_process(*arguments, workspace=Path(workspace))
        answers.write(json.dumps(list(ended)) + "\n")
        answers.flush()
