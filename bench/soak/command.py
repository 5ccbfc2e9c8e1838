"""`penstock` as a soak starts it: with a fake clock for this process only."""

from __future__ import annotations

import os
import threading
import time
from typing import Any


def keep_fake_clock_to_this_process() -> None:
    """The JVM hangs under libfaketime, so that children get the right clock. libfaketime also breaks `time.sleep` when
    the monotonic clock is right (EINVAL); waiting for an event is not affected."""
    if os.environ.pop("LD_PRELOAD", None):
        time.sleep = _sleep


def _sleep(seconds: Any, /) -> None:
    threading.Event().wait(max(0.0, seconds))


if __name__ == "__main__":
    keep_fake_clock_to_this_process()
    from penstock.cli.main import main

    main()
