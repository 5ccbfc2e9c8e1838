"""The log of a process: stdlib logging on stderr, as JSON or plain lines, without secrets.

A log line is an event of `penstock.observe.log_events` with its facts:
`log.info("round.finished", extra={"facts": {"planned": 3}})`. Lines of libraries have the event `library.message`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from types import TracebackType
from typing import Any

from penstock import interrupts
from penstock.log_fields import current_log_fields
from penstock.redaction import SECRETS

log = logging.getLogger(__name__)

_OURS = "penstock"


class LogFormat(StrEnum):
    """How log lines are written."""

    JSON = "json"
    PLAIN = "plain"


class LogLevel(StrEnum):
    """The least important lines that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def configure(log_format: LogFormat, level: LogLevel) -> None:
    """Write the log of this process to stderr. Lines of libraries are written from `warning` on. Errors that nobody
    catches, and with JSON also warnings of Python and the line about an interrupt, become log lines. A repeated call
    replaces the settings of the call before it."""
    SECRETS.forget()
    SECRETS.remember_environment(os.environ)
    root, ours = logging.getLogger(), logging.getLogger(_OURS)
    for handler in [found for found in root.handlers if isinstance(found, _StderrHandler)]:
        root.removeHandler(handler)
    root.addHandler(_StderrHandler(log_format))
    ours.setLevel(level.upper())
    is_json = log_format is LogFormat.JSON
    logging.captureWarnings(is_json)
    sys.excepthook = _log_uncaught if is_json else _print_uncaught
    threading.excepthook = _log_uncaught_in_thread if is_json else threading.__excepthook__
    interrupts.print_with(_print_as_json if is_json else interrupts.print_plain)


def writes_json() -> bool:
    """Whether the log of this process is JSON: then nothing else may be written to stderr."""
    handlers = [found for found in logging.getLogger().handlers if isinstance(found, _StderrHandler)]
    return any(handler.log_format is LogFormat.JSON for handler in handlers)


def hide_secrets(text: str) -> str:
    """The text as it may be shown."""
    return SECRETS.hide(text)


class _StderrHandler(logging.StreamHandler[Any]):
    """Writes to the present `sys.stderr`, which may be replaced after the handler was made."""

    def __init__(self, log_format: LogFormat) -> None:
        logging.Handler.__init__(self)
        self.log_format = log_format
        self.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else PlainFormatter())

    @property
    def stream(self) -> Any:
        return sys.stderr

    @stream.setter
    def stream(self, stream: Any) -> None:
        raise AttributeError("the stream is always sys.stderr")

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore a line that cannot be written. The default writes its arguments, which may hold secrets, to stderr."""


class JsonFormatter(logging.Formatter):
    """One JSON object per line: `at`, `level`, `event`, `logger`, the fields of the present work, and the facts."""

    def format(self, record: logging.LogRecord) -> str:
        import orjson

        # A fact never replaces the first keys.
        line = {**_head(record), **current_log_fields(), **_facts(record), **_head(record)}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        hidden = _without_secrets(line)
        try:
            return orjson.dumps(hidden, default=_shown, option=orjson.OPT_NON_STR_KEYS).decode()
        except TypeError:  # an integer of more than 64 bits, or text that is not valid Unicode
            return json.dumps(_with_text_keys(hidden), default=_shown)


class PlainFormatter(logging.Formatter):
    """One line for people: time, level, event, and `name=value` for each fact; a traceback follows in its own lines."""

    def format(self, record: logging.LogRecord) -> str:
        head, facts = _head(record), {**current_log_fields(), **_facts(record)}
        words = [f"{name}={_quoted(value)}" for name, value in facts.items()]
        text = " ".join([head["at"][:19] + "Z", f"{head['level']:<7}", head["event"], *words])
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return SECRETS.hide(text)


def _head(record: logging.LogRecord) -> dict[str, str]:
    return {
        "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "event": _message(record) if _is_ours(record) else "library.message",
        "logger": record.name,
    }


def _facts(record: logging.LogRecord) -> Mapping[str, Any]:
    if _is_ours(record):
        found: Mapping[str, Any] = getattr(record, "facts", {})
        return found
    return {"message": _message(record).strip()}


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - a library passed arguments that do not fit its message
        return f"{record.msg} {record.args}"


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name == _OURS or record.name.startswith(f"{_OURS}.")


def _without_secrets(value: Any) -> Any:
    if isinstance(value, str):
        return SECRETS.hide(value)
    if isinstance(value, Mapping):
        return {_key(name): _without_secrets(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_without_secrets(item) for item in value]
    return value


def _key(name: Any) -> Any:
    return name if isinstance(name, int | float | None) else _shown(name)


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _with_text_keys(item) for name, item in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list) else value


def _shown(value: Any) -> str:
    return SECRETS.hide(str(value))


def _quoted(value: Any) -> str:
    text = " ".join(str(value).split())
    return f'"{text}"' if " " in text or not text else text


def _print_as_json(message: str) -> None:
    """Write a line although logging is disabled: at an interrupt, no library may log its stack."""
    record = logging.LogRecord(__name__, logging.WARNING, "", 0, "command.interrupted", (), None)
    record.facts = {"message": message}
    sys.stderr.write(JsonFormatter().format(record) + "\n")
    sys.stderr.flush()


def _print_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(SECRETS.hide("".join(traceback.format_exception(kind, error, trace))))


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    log.error("command.broken", extra={"facts": {"error": str(error)}}, exc_info=(kind, error, trace))


def _log_uncaught_in_thread(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_value is not None:
        name = ended.thread.name if ended.thread else None
        facts = {"thread": name, "error": str(ended.exc_value)}
        exc_info = (ended.exc_type, ended.exc_value, ended.exc_traceback)
        log.error("thread.broken", extra={"facts": facts}, exc_info=exc_info)
