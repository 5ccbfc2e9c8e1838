"""Everything that `control serve` and `serve` write to stderr is a line of JSON, if the log is JSON."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from support.api_process import ServerProcess, api_server, started
from support.cli import in_process, penstock
from support.workspaces import write_workspace

# A library that warns and logs while the command works: when it imports the loop.
LIBRARY = """
import logging, sys, warnings

class Noise:
    def find_spec(self, name, path=None, target=None):
        if name in ("penstock.control.serve", "penstock.http.application"):
            warnings.warn("a warning of Python")
            logging.getLogger("some.library").error("an error\\nof a library")

sys.meta_path.insert(0, Noise())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workspace in which nothing is due."""
    later = (datetime.now(UTC) + timedelta(days=2)).date().isoformat()
    made = write_workspace(tmp_path / "ws", query={"start_date": later}, control={"every": "1h"})
    assert in_process("db", "migrate", workspace=made).code == 0
    return made


@pytest.fixture
def noise(tmp_path: Path) -> str:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(LIBRARY)
    return ":".join([str(tmp_path / "site"), *sys.path])


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def await_event(process: ServerProcess, event: str) -> None:
    deadline = time.monotonic() + 60
    while f'"{event}"' not in process.log and f" {event}" not in process.log:
        assert process.process.poll() is None, process.log
        assert time.monotonic() < deadline, process.log
        time.sleep(0.05)


def test_every_line_of_the_loop_is_json_also_of_libraries_and_at_a_signal(folder: Path, noise: str) -> None:
    with started(folder, "control", "serve", "--log-format", "json", PYTHONPATH=noise) as loop:
        await_event(loop, "round.finished")
        assert loop.stop() == 0
        found = lines(loop.log)
    events = [line["event"] for line in found]
    assert events == ["library.message", "library.message", "started", "round.finished", "stopping", "stopped"]
    assert [line["logger"] for line in found[:2]] == ["py.warnings", "some.library"]
    loop_lines = [line for line in found if line["event"] in ("started", "round.finished", "stopped")]
    assert len({line["worker"] for line in loop_lines}) == 1
    assert found[2]["every_seconds"] == 3600.0
    assert (found[3]["planned"], found[3]["waiting"], found[3]["troubles"]) == (0, 0, [])
    assert {tuple(line)[:4] for line in found} == {("at", "level", "event", "logger")}


def test_the_log_of_the_loop_is_json_by_default_without_a_terminal(folder: Path) -> None:
    done = penstock("control", "serve", "--rounds", "1", workspace=folder)
    assert [line["event"] for line in lines(done.stderr)] == ["started", "round.finished", "stopped"]


def test_a_loop_that_cannot_work_says_so_in_json(folder: Path) -> None:
    (folder / "state.db").unlink()
    done = penstock("control", "serve", workspace=folder)
    [line] = lines(done.stderr)
    assert (done.returncode, line["event"], line["exit_code"]) == (1, "command.failed", 1)
    plain = penstock("control", "serve", "--log-format", "plain", workspace=folder)
    assert plain.stderr == f"penstock: {line['error']}\n"


def test_every_line_of_the_server_is_json(folder: Path, noise: str) -> None:
    with api_server(folder, PYTHONPATH=noise) as server:
        assert server.stop() == 0
        found = lines(server.log)
    events = [line["event"] for line in found]
    assert events[:3] == ["library.message", "library.message", "serving"]
    assert found[2]["address"] == server.url


def test_a_plain_log_of_the_loop_is_for_people(folder: Path) -> None:
    done = penstock("control", "serve", "--rounds", "1", "--log-format", "plain", workspace=folder)
    assert [line.split()[1:3] for line in done.stderr.splitlines()] == [
        ["info", "started"],
        ["info", "round.finished"],
        ["info", "stopped"],
    ]
