"""The log: its two formats, its registered events, and the options of every command."""

from __future__ import annotations

import ast
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
import typer.main

import penstock
from penstock.cli.main import app
from penstock.errors import ErrorClass
from penstock.flow.attempt_log import log_rejected
from penstock.lifecycle import Stage
from penstock.log_fields import current_log_fields, log_fields
from penstock.observe import logs
from penstock.observe.log_events import LOG_EVENTS
from penstock.observe.logs import JsonFormatter, PlainFormatter
from penstock.partition import AttemptKey, RunId
from penstock.redaction import SECRETS
from penstock.state.records import Rejected
from support.cli import in_process
from support.workspaces import key, write_workspace

ROOT = Path(penstock.__file__).parent
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
ELSEWHERE = {"library.message", "command.interrupted"}  # written by the formatter and by the signal handler


def record(event: str = "note", /, name: str = "penstock.tests", **facts: Any) -> logging.LogRecord:
    made = logging.LogRecord(name, logging.WARNING, __file__, 1, event, (), None)
    made.facts = facts
    return made


def line(made: logging.LogRecord) -> dict[str, Any]:
    text = JsonFormatter().format(made)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_json_line_has_its_head_the_fields_of_the_work_and_the_facts() -> None:
    with log_fields(run_id="R1", worker="W1"), log_fields(run_id="R2"):
        found = line(record("stage.finished", stage="load", partitions=3))
    assert found.pop("at").endswith("+00:00")
    assert found == {
        "level": "warning", "event": "stage.finished", "logger": "penstock.tests", "run_id": "R2", "worker": "W1",
        "stage": "load", "partitions": 3,
    }  # fmt: skip
    assert current_log_fields() == {}


def test_a_fact_replaces_neither_the_event_nor_its_time() -> None:
    found = line(record("note", event="other", at="never", level="low", logger="x", message="m"))
    assert (found["event"], found["level"], found["logger"]) == ("note", "warning", "penstock.tests")
    assert found["at"] != "never"


def test_any_fact_can_be_written() -> None:
    found = line(record("note", place=Path("/lake"), keys={"b"}, by={1: object}, text="two\nlines"))
    assert (found["place"], found["keys"], found["text"]) == ("/lake", ["b"], "two\nlines")


def test_odd_values_are_written_and_lose_no_line() -> None:
    found = line(record("note", file="part-\udcff.csv", number=2**70, by={("a", 1): 2}))
    assert (found["event"], found["file"], found["number"]) == ("note", "part-\udcff.csv", 2**70)
    broken = record("%d items", name="library")
    broken.args = ("hunter2-hunter2",)
    SECRETS.remember("hunter2-hunter2")
    try:
        assert line(broken)["message"] == "%d items ('***',)"
    finally:
        SECRETS.forget()


def test_a_line_that_cannot_be_written_shows_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = logs._StderrHandler(logs.LogFormat.JSON)
    monkeypatch.setattr(handler, "format", lambda made: 1 // 0)
    handler.handle(record("hunter2-hunter2"))
    assert capsys.readouterr().err == ""


def test_a_line_of_a_library_has_a_stable_event() -> None:
    found = line(record("disk %s is full", name="botocore"))
    assert (found["event"], found["logger"], found["message"]) == ("library.message", "botocore", "disk %s is full")


def test_a_plain_line_is_read_by_people() -> None:
    with log_fields(run_id="R1"):
        text = PlainFormatter().format(record("round.failed", error="no\nanswer", failures=2))
    assert text[19:] == 'Z warning round.failed run_id=R1 error="no answer" failures=2'


@pytest.mark.parametrize("formatter", [JsonFormatter(), PlainFormatter()])
def test_a_traceback_is_written_without_secrets(formatter: logging.Formatter) -> None:
    SECRETS.remember("hunter2-hunter2")
    try:
        raise ValueError("hunter2-hunter2")
    except ValueError:
        made = record("order.broken", hidden={"deep": ["hunter2-hunter2"]})
        made.exc_info = sys.exc_info()
        text = formatter.format(made)
    finally:
        SECRETS.forget()
    assert "ValueError: ***" in text
    assert "hunter2" not in text


def test_a_thread_has_the_fields_of_the_work_that_started_it() -> None:
    with log_fields(run_id="R1"):
        context = copy_context()
    assert context.run(current_log_fields) == {"run_id": "R1"}


def test_closed_attempts_are_one_line_for_each_source_and_class_of_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "penstock")

    def rejected(number: int, error_class: ErrorClass) -> Rejected:
        attempt = AttemptKey(key(number), RunId("01J00000000000000000000001"))
        return Rejected(attempt, "worker", Stage.VALIDATE, error_class, f"error {number}")

    log_rejected([*(rejected(n, ErrorClass.DATA) for n in range(1, 500)), rejected(500, ErrorClass.TRANSIENT)])
    assert [(record.message, record.__dict__["facts"]) for record in caplog.records] == [
        ("attempts.rejected", {"source": "demo", "stage": "validate", "error_class": "data", "attempts": 499,
                               "partition": str(key(1)), "error": "error 1"}),
        ("attempts.rejected", {"source": "demo", "stage": "validate", "error_class": "transient", "attempts": 1,
                               "partition": str(key(500)), "error": "error 500"}),
    ]  # fmt: skip


# --- events -----------------------------------------------------------------------------------------------------------


def log_calls(tree: ast.AST) -> Iterator[tuple[int, ast.Call]]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="log" | "access_log" | "logger"), attr=level)):
                if level in LEVELS:
                    yield node.lineno, node


def fault(call: ast.Call) -> str | None:
    """Why a call is no line of the log: its event must be registered, and everything else be in its facts."""
    match call.args:
        case [ast.Constant(value=str(event))]:
            if event not in LOG_EVENTS:
                return f"{event!r} is not registered in observe/log_events.py"
        case _:
            return "the only argument must be an event; facts belong into extra"
    unknown = [word.arg for word in call.keywords if word.arg not in ("extra", "exc_info")]
    return f"unknown arguments {unknown}" if unknown else None


def calls() -> Iterator[tuple[str, ast.Call]]:
    for file in sorted(ROOT.rglob("*.py")):
        for number, call in log_calls(ast.parse(file.read_text())):
            yield f"{file.relative_to(ROOT)}:{number}", call


def test_every_log_call_writes_a_registered_event() -> None:
    found = {place: reason for place, call in calls() if (reason := fault(call))}
    assert found == {}


def test_every_registered_event_is_written_and_has_a_sentence() -> None:
    used = {str(call.args[0].value) for _, call in calls() if isinstance(call.args[0], ast.Constant)}
    assert set(LOG_EVENTS) - used == ELSEWHERE
    assert [name for name, meaning in LOG_EVENTS.items() if not meaning.endswith(".")] == []


@pytest.mark.parametrize(
    "source",
    [
        "log.info('unheard.of')",
        "log.error('note: %s', x)",
        "log.warning(f'note {x}')",
        "log.info('note', stacklevel=2)",
    ],
)
def test_the_check_itself_sees_every_wrong_call(source: str) -> None:
    [(_, call)] = log_calls(ast.parse(source))
    assert fault(call)
    [(_, good)] = log_calls(ast.parse("log.info('note', extra={'facts': {}})"))
    assert fault(good) is None


def test_the_loop_and_the_server_print_nothing_to_stderr_themselves() -> None:
    """`note` and the log write their lines."""
    for name in ("cli/control.py", "cli/serve.py", "control/serve.py", "http/server.py", "app/rounds.py"):
        tree = ast.parse((ROOT / name).read_text())
        printing = [
            ast.unparse(node)
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "typer.echo", "sys.stderr.write")
        ]
        assert printing == [], name


# --- options ----------------------------------------------------------------------------------------------------------


def commands(command: Any, path: str = "penstock") -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
    for name, child in (children or {}).items():
        yield from commands(child, f"{path} {name}")


def test_every_command_has_the_options_of_the_log() -> None:
    found = dict(commands(typer.main.get_command(app)))
    assert len(found) > 60
    wanted = {"--log-format", "--log-level", "--debug"}
    lacking = {
        path: missing
        for path, command in found.items()
        if (missing := wanted - {name for parameter in command.params for name in parameter.opts})
    }
    assert lacking == {}


def test_an_error_is_a_line_of_json_or_of_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = in_process("status", workspace=tmp_path / "nowhere")
    assert plain.stderr.startswith("penstock: there is no penstock.yaml")
    as_json = in_process("status", "--log-format", "json", workspace=tmp_path / "nowhere")
    [found] = [json.loads(text) for text in as_json.stderr.splitlines()]
    assert (found["event"], found["exit_code"], as_json.code) == ("command.failed", 1, 1)
    monkeypatch.setenv("PENSTOCK_LOG_FORMAT", "json")
    assert in_process("status", workspace=tmp_path / "nowhere").stderr.startswith('{"at":')
    assert in_process("status", "--log-format", "plain", workspace=tmp_path / "nowhere").stderr == plain.stderr


def test_a_level_leaves_out_lines(tmp_path: Path) -> None:
    folder = write_workspace(tmp_path)
    assert in_process("db", "migrate", workspace=folder).code == 0
    told = in_process("ledger", "rebuild", "--log-format", "json", workspace=folder)
    assert [json.loads(text)["event"] for text in told.stderr.splitlines()] == ["note"]
    silent = in_process("ledger", "rebuild", "--log-format", "json", "--log-level", "warning", workspace=folder)
    assert (silent.code, silent.stderr) == (0, "")


def test_warnings_threads_and_uncaught_errors_are_lines_of_json() -> None:
    program = (
        "import logging, threading, warnings\n"
        "from penstock.observe.logs import LogFormat, LogLevel, configure\n"
        "configure(LogFormat.JSON, LogLevel.INFO)\n"
        "warnings.warn('old\\nand slow')\n"
        "logging.getLogger('some.library').error('full')\n"
        "logging.getLogger('some.library').info('left out')\n"
        "thread = threading.Thread(target=lambda: 1 / 0)\n"
        "thread.start(); thread.join()\n"
        "raise KeyError('absent')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    lines = [json.loads(text) for text in done.stderr.splitlines()]
    assert [(found["event"], found["logger"]) for found in lines] == [
        ("library.message", "py.warnings"),
        ("library.message", "some.library"),
        ("thread.broken", "penstock.observe.logs"),
        ("command.broken", "penstock.observe.logs"),
    ]
    assert "KeyError: 'absent'" in lines[-1]["traceback"]


def test_an_interrupt_is_a_line_of_json() -> None:
    program = (
        "import os, signal\n"
        "from penstock import interrupts\n"
        "from penstock.observe.logs import LogFormat, LogLevel, configure\n"
        "interrupts.install()\n"
        "configure(LogFormat.JSON, LogLevel.INFO)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    found = json.loads(done.stderr)
    assert (done.returncode, found["event"], found["message"]) == (130, "command.interrupted", "interrupted")


def test_a_handler_writes_to_the_present_stderr(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    in_process("status", "--log-format", "json", workspace=tmp_path)
    later = io.StringIO()
    monkeypatch.setattr(sys, "stderr", later)
    logging.getLogger("penstock.tests").warning("note")
    assert json.loads(later.getvalue())["event"] == "note"
    assert in_process("status", workspace=tmp_path).stderr.startswith("penstock: ")
