"""Log lines about closed attempts: one for each source, stage and class of error, never one for each partition."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.state.records import Cancelled, Rejected

log = logging.getLogger(__name__)


def log_rejected(closings: Sequence[Rejected]) -> None:
    """Log rejected attempts."""
    for facts in _groups(closings):
        log.info("attempts.rejected", extra={"facts": facts})


def log_cancelled(closings: Sequence[Cancelled]) -> None:
    """Log attempts that were closed without a verdict."""
    for facts in _groups(closings):
        log.info("attempts.cancelled", extra={"facts": facts})


def _groups(closings: Sequence[Rejected | Cancelled]) -> list[dict[str, str | int]]:
    groups: dict[tuple[str, str, str], list[Rejected | Cancelled]] = {}
    for closing in closings:
        name = (closing.attempt.partition.source, closing.stage.value, closing.error_class.value)
        groups.setdefault(name, []).append(closing)
    return [
        {
            "source": source,
            "stage": stage,
            "error_class": error_class,
            "attempts": len(found),
            "partition": str(found[0].attempt.partition),
            "error": found[0].error_message,
        }
        for (source, stage, error_class), found in groups.items()
    ]
