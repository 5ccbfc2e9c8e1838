"""Standard output has the answer of a command and nothing else."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import os, subprocess, sys
from penstock.cli.stdout import reserve_stdout
reserve_stdout()
os.write(1, b"a library in C\\n")
subprocess.run(["echo", "a child process"], check=True)
print("the answer", flush=True)
sys.stdout.buffer.write(b"in bytes\\n")
"""


def test_what_native_code_and_children_write_goes_to_standard_error() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "the answer\nin bytes\n"
    assert done.stderr == "a library in C\na child process\n"


def test_a_command_without_standard_output_still_ends_as_it_should() -> None:
    line = [sys.executable, "-m", "penstock", "--version"]
    assert subprocess.run(["sh", "-c", '"$@" >&-', "sh", *line], check=False).returncode in (0, 1)
    assert subprocess.run(["sh", "-c", '"$@" 2>&-', "sh", *line], capture_output=True, check=False).returncode == 0
