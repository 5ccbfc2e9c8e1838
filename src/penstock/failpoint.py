"""Named points where a crash test may kill the process, as a power cut would: no handlers, no clean-up.

Set `PENSTOCK_FAILPOINT=name` (or `name:3` for the third time it is reached). An unset point has no measurable cost.
The environment is read once, when the first point is reached.
"""

from __future__ import annotations

import os
import signal
from functools import cache
from itertools import count

_arrivals = count(1)


def reach(name: str) -> None:
    """Kill the process if this is the armed point."""
    armed, turn = _armed()
    if armed == name and next(_arrivals) == turn:
        os.kill(os.getpid(), signal.SIGKILL)


@cache
def _armed() -> tuple[str, int]:
    name, _, turn = os.environ.get("PENSTOCK_FAILPOINT", "").partition(":")
    return name, int(turn or 1)
