"""The control loop: runs rounds until it is stopped. Transient errors, such as a lost database, are waited out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from penstock.errors import TransientError
from penstock.pipeline.job_errors import ClusterUnfit

_LONGEST_PAUSE = 60.0

LogEvent = Callable[[str, Mapping[str, Any]], None]  # an event and its facts


def serve(
    tick: Callable[[], Mapping[str, Any]],
    every: timedelta,
    stop: threading.Event,
    log_event: LogEvent,
    rounds: int | None = None,
) -> None:
    """Call `tick` until `stop` is set, or for a number of rounds. `tick` returns the facts of its round; if `waiting`
    is among them and not 0, the next round begins at once. A cluster that worked in an earlier round and does not any
    more is waited for."""
    failures, worked = 0, False
    while not stop.is_set() and rounds != 0:
        began = time.monotonic()
        try:
            facts = tick()
        except (TransientError, ClusterUnfit) as error:
            if isinstance(error, ClusterUnfit) and not worked:
                raise
            failures += 1
            pause = min(_LONGEST_PAUSE, 2.0 ** min(failures, 10))
            log_event("round.failed", {"error": str(error), "failures": failures, "retry_in_seconds": pause})
            stop.wait(pause)
            continue
        failures, worked = 0, True
        rounds = None if rounds is None else rounds - 1
        log_event("round.finished", facts)
        if not facts.get("waiting") and rounds != 0:
            stop.wait(max(0.0, every.total_seconds() - (time.monotonic() - began)))
