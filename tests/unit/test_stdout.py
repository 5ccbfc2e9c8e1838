"""Standard output has only the result of a command."""

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


_BUSY_THREAD = """
import sys, time
import pyarrow, pyarrow.csv
from penstock.cli import entry_point

class Slow:
    closed = False
    reads = 0
    def read(self, size=-1):
        self.reads += 1
        if self.reads > 2:
            time.sleep(0.5)
        return b"a,b\\n" + b"1,2\\n" * 1000
    readable = lambda self: True
    writable = seekable = lambda self: False
    flush = close = lambda self: None

reading = pyarrow.csv.open_csv(
    pyarrow.PythonFile(Slow(), mode="r"), read_options=pyarrow.csv.ReadOptions(block_size=2000)
)
sys.argv = ["penstock", *sys.argv[1:]]
entry_point.main()
"""


def test_a_native_thread_that_is_still_busy_does_not_abort_the_command() -> None:
    line = [sys.executable, "-c", _BUSY_THREAD]
    done = subprocess.run([*line, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("penstock ")
    assert subprocess.run([*line, "no-such-command"], capture_output=True, check=False).returncode == 2


def test_an_answer_that_cannot_be_written_is_an_error_without_a_traceback() -> None:
    line = [sys.executable, "-m", "penstock", "--help"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    piped = ["bash", "-c", '"$@" | true; exit ${PIPESTATUS[0]}', "bash", *line]
    assert subprocess.run(piped, capture_output=True, text=True, check=False).stderr == ""
