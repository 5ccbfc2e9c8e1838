"""The control loop: runs rounds until it is stopped. Transient errors, such as a lost database, are waited out."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from penstock.errors import TransientError
from penstock.pipeline.job_errors import ClusterUnfit

_LONGEST_PAUSE = 60.0
_POLL_SECONDS = 2.0  # how often the loop looks for orders between rounds

log = logging.getLogger(__name__)


def serve(
    tick: Callable[[], Mapping[str, Any]],
    every: timedelta,
    stop: threading.Event,
    rounds: int | None = None,
    is_called: Callable[[], bool] = lambda: False,
) -> None:
    """Call `tick` until `stop` is set, or for a number of rounds. `tick` returns the facts of its round; if `waiting`
    is among them and not 0, the next round begins at once, and within seconds after `is_called` returns True. A cluster
    that worked in an earlier round and does not any more is waited for."""
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
            failed = {"error": str(error), "failures": failures, "retry_in_seconds": pause}
            log.warning("round.failed", extra={"facts": failed})
            stop.wait(pause)
            continue
        failures, worked = 0, True
        rounds = None if rounds is None else rounds - 1
        log.info("round.finished", extra={"facts": facts})
        if not facts.get("waiting") and rounds != 0:
            _pause(every.total_seconds() - (time.monotonic() - began), stop, is_called)


def _pause(seconds: float, stop: threading.Event, is_called: Callable[[], bool]) -> None:
    """Wait until the time is over, `stop` is set or `is_called` returns True."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not stop.wait(min(left, _POLL_SECONDS)):
        try:
            if is_called():
                return
        except TransientError:  # the next round reports it
            return
