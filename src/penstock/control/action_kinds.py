"""The actions that the API previews and applies: how each finds its partitions, and how it changes them.

Previews use the functions behind `--dry-run`. An action by partitions applies exactly those that were previewed and
still match; an action by selector or on one resource is refused if its subject changed since the preview.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from typing import Any

from penstock.control.ranges import in_key_order
from penstock.control.select import Selection
from penstock.errors import UsageError
from penstock.expected import ExpectedRange
from penstock.partition import PartitionKey

LISTED = 100


class ActionKind(StrEnum):
    """An action that can be previewed."""

    RETRY = "retry"
    MARK_TERMINAL = "mark-terminal"
    CLEAR_TERMINAL = "clear-terminal"
    PAUSE = "pause"
    RESUME = "resume"
    DEMOTE = "demote"
    ROLLBACK = "rollback"
    APPROVE = "approve"
    BACKFILL = "backfill"
    BACKFILL_PAUSE = "backfill-pause"
    BACKFILL_RESUME = "backfill-resume"
    BACKFILL_CANCEL = "backfill-cancel"
    BACKFILL_RETRY_FAILED = "backfill-retry-failed"
    CLOSE_BREAKER = "close-breaker"
    CANCEL_RUN = "cancel-run"
    RUN = "run"  # an order; with `reprocess` also for success partitions
    RESUME_RUN = "resume-run"  # an order
    VALIDATE = "validate"  # an order
    RECONCILE = "reconcile"  # an order
    COMPACT = "compact"  # an order


# The partitions of these are stored one by one (as ranges); what changed since the preview is left out.
BY_PARTITIONS = (ActionKind.RETRY, ActionKind.MARK_TERMINAL, ActionKind.CLEAR_TERMINAL)
# These store a selector: partitions that were not in the preview would change, too, so the plan is refused then.
# Orders: `validate` and `run` with `reprocess` work only on the previewed partitions that still match when a control
# loop executes them. The others are standing instructions, which do what is due then.
BY_SELECTOR = (ActionKind.PAUSE, ActionKind.RESUME, ActionKind.BACKFILL)
BY_KEY = (ActionKind.DEMOTE, ActionKind.ROLLBACK, ActionKind.APPROVE)
ORDERED = (
    ActionKind.RUN,
    ActionKind.RESUME_RUN,
    ActionKind.VALIDATE,
    ActionKind.RECONCILE,
    ActionKind.COMPACT,
)

# The options that an action takes, and those that it needs.
OPTIONS: Mapping[ActionKind, tuple[str, ...]] = {
    ActionKind.RETRY: ("without_raw",),
    ActionKind.ROLLBACK: ("run_id",),
    ActionKind.APPROVE: ("run_id",),
    ActionKind.BACKFILL: ("reprocess", "chunk_size", "priority", "max_chunks"),
    ActionKind.BACKFILL_PAUSE: ("backfill_id",),
    ActionKind.BACKFILL_RESUME: ("backfill_id",),
    ActionKind.BACKFILL_CANCEL: ("backfill_id",),
    ActionKind.BACKFILL_RETRY_FAILED: ("backfill_id", "without_raw"),
    ActionKind.CLOSE_BREAKER: ("source",),
    ActionKind.CANCEL_RUN: ("run_id",),
    ActionKind.RUN: ("reprocess",),
    ActionKind.RESUME_RUN: ("run_id",),
    ActionKind.COMPACT: ("tables",),
}
_NEEDED = ("run_id", "backfill_id", "source")
_NEEDS_REASON = (ActionKind.DEMOTE, ActionKind.APPROVE)


def takes_selection(kind: ActionKind) -> bool:
    """Whether the action changes selected partitions, instead of a run, a backfill, a source or tables."""
    subjects = ("backfill_id", "source", "run_id", "tables")
    return kind is not ActionKind.RECONCILE and (kind in BY_KEY or not {*subjects} & {*OPTIONS.get(kind, ())})


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """An action as it is asked for."""

    kind: ActionKind
    selection: Selection
    options: Mapping[str, Any]
    reason: str | None
    actor: str

    def refuse_incomplete(self) -> None:
        """Raise UsageError for options that the action does not take, and for those that are missing."""
        known = OPTIONS.get(self.kind, ())
        if unknown := sorted(set(self.options) - set(known)):
            raise UsageError(f"{self.kind} takes no {', '.join(unknown)} (options: {', '.join(known) or 'none'})")
        if missing := [name for name in known if name in _NEEDED and not self.options.get(name)]:
            raise UsageError(f"{self.kind} needs {', '.join(missing)}")
        if self.kind in _NEEDS_REASON and not self.reason:
            raise UsageError(f"{self.kind} needs a reason, for the audit log and for `penstock why`")
        if self.kind is ActionKind.BACKFILL and self.selection.status is not None:
            raise UsageError(
                "a backfill takes no status: it fetches what is missing, and with reprocess success partitions"
            )
        if self.kind in ORDERED and not takes_selection(self.kind) and self.selection != Selection():
            raise UsageError(f"{self.kind} takes no selection (it takes {', '.join(known) or 'nothing'})")
        if self.kind in BY_KEY and len(self.selection.keys) != 1:
            raise UsageError(f"{self.kind} changes one partition: name its key")

    @property
    def key(self) -> PartitionKey:
        """The partition of an action on one partition."""
        return self.selection.keys[0]


@dataclass(frozen=True, slots=True)
class ActionPreview:
    """What an action would change now."""

    total: int
    keys: Sequence[PartitionKey] = ()  # the first of them
    ranges: Sequence[ExpectedRange] = ()  # all of them, where the plan stores them
    refusals: Mapping[str, int] = field(default_factory=dict)  # partitions that are refused, by reason
    refused: Mapping[str, Sequence[PartitionKey]] = field(default_factory=dict)  # the first of them
    facts: Mapping[str, Any] = field(default_factory=dict)  # about the subject of the action
    fingerprint: str = ""  # changes if the subject changes


def works_on_previewed(kind: ActionKind, options: Mapping[str, Any]) -> bool:
    """Whether an order works only on the partitions that were previewed: it replaces or demotes trusted runs."""
    return kind is ActionKind.VALIDATE or (kind is ActionKind.RUN and bool(options.get("reprocess")))


def digest_of(ranges: Sequence[ExpectedRange]) -> str:
    """Stands for all partitions of ranges that are in key order and do not touch each other."""
    found = hashlib.sha256()
    for span in ranges:
        found.update(f"{span.source}/{span.customer_id}/{span.query_name}/{span.first}..{span.last}\n".encode())
    return found.hexdigest()


def compact(ranges: Sequence[ExpectedRange]) -> dict[str, dict[str, str]]:
    """Ranges as a stored value: by asset and customer, for example "2024-06-01..2024-06-30"."""
    found: dict[str, dict[str, str]] = {}
    for span in in_key_order(ranges):
        mine = found.setdefault(f"{span.source}.{span.query_name}", {})
        text = span.first.isoformat() if span.first == span.last else f"{span.first}..{span.last}"
        mine[span.customer_id] = f"{mine[span.customer_id]} {text}" if span.customer_id in mine else text
    return found


def expand(items: Mapping[str, Mapping[str, str]]) -> list[ExpectedRange]:
    """The ranges that `compact` stored."""
    found = []
    for asset, customers in items.items():
        source, _, query_name = asset.partition(".")
        for customer_id, text in customers.items():
            for part in text.split():
                first, _, last = part.partition("..")
                days = (date.fromisoformat(first), date.fromisoformat(last or first))
                found.append(ExpectedRange(source, customer_id, query_name, *days))
    return in_key_order(found)
