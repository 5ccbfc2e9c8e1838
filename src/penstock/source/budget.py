"""The request budget of one worker task: a pace, and a portion of the requests that the driver claimed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from penstock.errors import QuotaUsedUp


@dataclass(frozen=True, slots=True)
class RequestClaim:
    """Requests of a counted quota that the driver claimed for one job. Worker tasks get portions of it."""

    claim_id: str
    source: str
    requests: int
    expires_at: float  # seconds since the epoch: a request after it would count in the next window
    renews: str  # when the window renews, for messages


class Budget:
    """The share of one worker task. Thread-safe.

    Without a claim the number of requests is not limited. With one, only requests that `allow` added may be spent, and
    none after the claim has expired.
    """

    def __init__(
        self,
        per_second: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        claim: RequestClaim | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._gap = 0.0 if per_second is None else 1 / per_second
        self._clock = clock
        self._sleep = sleep
        self._claim = claim
        self._wall = wall
        self._left = 0
        self._unreported = 0
        self._free_at = clock()
        self._lock = Lock()

    def spend(self, requests: int = 1) -> None:
        """Wait until the next request may be sent. Unused capacity is not saved up: sources punish bursts. Raises
        QuotaUsedUp if no claimed request is left, or if the claim has expired; then the request must not be sent."""
        if self._claim is not None:
            self._count(self._claim, requests)
        if not self._gap:
            return
        with self._lock:
            now = self._clock()
            start = max(now, self._free_at)
            self._free_at = start + requests * self._gap
        if start > now:
            self._sleep(start - now)
            if self._claim is not None:
                self._require_valid(self._claim)

    def allow(self, requests: int) -> None:
        """Add a portion of the claim."""
        with self._lock:
            self._left += requests

    def forfeit(self, requests: int) -> None:
        """Report these requests as spent: another attempt of this task may have sent them."""
        with self._lock:
            self._unreported += requests

    def take_spent(self) -> int:
        """The number of requests since the last call, for the driver, which returns the rest of its claim."""
        with self._lock:
            spent, self._unreported = self._unreported, 0
            return spent

    def _count(self, claim: RequestClaim, requests: int) -> None:
        with self._lock:
            self._require_valid(claim)
            if self._left < requests:
                raise QuotaUsedUp(f"the requests that were claimed of the quota of {claim.source} are used up")
            self._left -= requests
            self._unreported += requests

    def _require_valid(self, claim: RequestClaim) -> None:
        seconds = claim.expires_at - self._wall()
        if seconds <= 0:
            raise QuotaUsedUp(f"the window of the quota of {claim.source} ended at {claim.renews}", 0.0)
