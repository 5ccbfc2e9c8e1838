"""The command that does the same as an action of a page, with its partitions and options."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.control.action_kinds import ActionKind

_FILTERS = ("source", "customer", "query", "since", "until", "status")
_REASON = ("reason",)

# The command of each action: its words, the fields that are arguments, and those that are options.
COMMANDS: Mapping[ActionKind, tuple[str, Sequence[str], Sequence[str]]] = {
    ActionKind.RETRY: ("state retry", ("key",), (*_FILTERS, "without_raw")),
    ActionKind.MARK_TERMINAL: ("state mark-terminal", ("key",), (*_FILTERS, *_REASON)),
    ActionKind.CLEAR_TERMINAL: ("state clear-terminal", ("key",), _FILTERS),
    ActionKind.PAUSE: ("state pause", ("key",), (*_FILTERS, *_REASON)),
    ActionKind.RESUME: ("state resume", ("key",), _FILTERS),
    ActionKind.DEMOTE: ("state demote", ("key",), _REASON),
    ActionKind.ROLLBACK: ("state rollback", ("key",), ("run_id", *_REASON)),
    ActionKind.APPROVE: ("state approve", ("key",), ("run_id", *_REASON)),
    ActionKind.BACKFILL: (
        "backfill create",
        ("key",),
        (*_FILTERS[:-1], "reprocess", "chunk_size", "priority", "max_chunks"),
    ),
    ActionKind.BACKFILL_PAUSE: ("backfill pause", ("backfill_id",), ()),
    ActionKind.BACKFILL_RESUME: ("backfill resume", ("backfill_id",), ()),
    ActionKind.BACKFILL_CANCEL: ("backfill cancel", ("backfill_id",), ()),
    ActionKind.BACKFILL_RETRY_FAILED: ("backfill retry-failed", ("backfill_id",), ("without_raw",)),
    ActionKind.CLOSE_BREAKER: ("control close-breaker", ("source",), ()),
    ActionKind.CANCEL_RUN: ("runs cancel", ("run_id",), ()),
    ActionKind.RUN: ("run", ("key",), (*_FILTERS, "reprocess")),
    ActionKind.RESUME_RUN: ("runs resume", ("run_id",), ()),
    ActionKind.VALIDATE: ("validate", ("key",), _FILTERS),
    ActionKind.RECONCILE: ("warehouse reconcile", (), ()),
    ActionKind.COMPACT: ("warehouse compact", ("table",), ()),
}
_WITHOUT_PREVIEW = (ActionKind.RESUME_RUN,)  # their commands have no --dry-run
_SHOWN = 20  # values of one field: a longer line helps nobody


def command_line(act: ActionKind, values: Mapping[str, Any], *, preview: bool = False) -> str:
    """The command for the fields of a form. A field with many values is shortened by `...`.

    >>> command_line(ActionKind.RETRY, {"status": "failed"})
    'penstock state retry --status failed'
    """
    words, arguments, options = COMMANDS[act]
    line = [f"penstock {words}"]
    for name in arguments:
        line += _quoted(values.get(name)) or ([name.removesuffix("_id").upper()] if name != "key" else [])
    for name in options:
        option = {"rollback run_id": "--to", "approve run_id": "--run"}.get(
            f"{act} {name}", f"--{name.replace('_', '-')}"
        )
        if values.get(name) is True:
            line.append(option)
        else:
            line += [f"{option} {text}" for text in _quoted(values.get(name))]
    if preview and act not in _WITHOUT_PREVIEW:
        line.append("--dry-run")
    return " ".join(line)


def _quoted(value: Any) -> list[str]:
    """The texts of a value, quoted for a shell."""
    if value is None or value is False:
        return []
    texts = [str(one) for one in value] if isinstance(value, (list, tuple)) else [str(value)]
    shown = [shlex.quote(text) for text in texts[:_SHOWN] if text]
    return shown + ["..."] * (len(texts) > _SHOWN)
