"""The control loop: round after round, until somebody asks it to stop. A database that is away is waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from penstock.errors import TransientError

_LONGEST_PAUSE = 60.0

Say = Callable[[str, Mapping[str, Any]], None]  # an event and its facts, for the log


def serve(
    tick: Callable[[], Mapping[str, Any]], every: timedelta, stop: threading.Event, say: Say, rounds: int | None = None
) -> None:
    """Call `tick` again and again. It answers with the facts of its round; `waiting` says that more is due at once."""
    failures = 0
    while not stop.is_set() and rounds != 0:
        began = time.monotonic()
        try:
            facts = tick()
        except TransientError as error:
            failures += 1
            pause = min(_LONGEST_PAUSE, 2.0 ** min(failures, 10))
            say("round.failed", {"error": str(error), "failures": failures, "retry_in_seconds": pause})
            stop.wait(pause)
            continue
        failures = 0
        rounds = None if rounds is None else rounds - 1
        say("round.finished", facts)
        if not facts.get("waiting") and rounds != 0:
            stop.wait(max(0.0, every.total_seconds() - (time.monotonic() - began)))
