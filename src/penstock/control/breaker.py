"""The circuit breaker of a source: an error of the source itself stops the issuing of attempts.

It opens after a few refused requests, lets single probes through, and closes when one succeeds. A source that responds
to every request with a quota error gets no request before the end of the pause; if only some responses are quota
errors, only their partitions wait.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from penstock.clock import Clock
from penstock.errors import ErrorClass
from penstock.flow.guard import Gate
from penstock.state.breakers import BreakerStore
from penstock.state.records import Breaker, Observation

CONFIRMATIONS = 3  # so many requests must be refused, with none that succeeds, before the breaker opens
PROBES = (timedelta(minutes=5), timedelta(minutes=30), timedelta(hours=2))


def gate(breaker: Breaker, now: datetime, *, by_hand: bool) -> Gate:
    """Which attempts of the source may be issued. A run that a person starts may always probe: they may have fixed the
    cause."""
    pausing = breaker.not_before is not None and now < breaker.not_before
    if breaker.opened_at is None and not pausing:
        return Gate.OPEN
    may_probe = not pausing and (breaker.probe_at is None or now >= breaker.probe_at)
    return Gate.PROBE if by_hand or may_probe else Gate.SHUT


def observed(breaker: Breaker, seen: Observation, now: datetime) -> Breaker:
    """The breaker after a batch of requests."""
    if seen.succeeded:  # some requests succeed, so the errors of others are not of the source as a whole
        return Breaker(breaker.source)
    if seen.quota_pause is not None:
        breaker = replace(breaker, not_before=now + timedelta(seconds=seen.quota_pause))
    if not seen.refused:  # no request was answered: an open breaker stays open
        return _probed(breaker, now) if breaker.opened_at is not None else breaker
    breaker = replace(
        breaker,
        confirmations=breaker.confirmations + seen.refused,
        error_class=ErrorClass.AUTH,
        error_message=seen.message,
    )
    if breaker.opened_at is None and breaker.confirmations < CONFIRMATIONS:
        return breaker
    return _probed(breaker, now)


def _probed(breaker: Breaker, now: datetime) -> Breaker:
    """The open breaker, with the next probe after a longer pause."""
    probes = breaker.probes + 1
    pause = PROBES[min(probes, len(PROBES)) - 1]
    return replace(breaker, opened_at=breaker.opened_at or now, probes=probes, probe_at=now + pause)


def describe(breaker: Breaker, now: datetime) -> str | None:
    """Why no attempts of the source are issued; None if they are."""
    if breaker.opened_at is not None and breaker.probe_at is not None:
        return (
            f"the breaker of {breaker.source} is open since {breaker.opened_at:%Y-%m-%d %H:%M} UTC:"
            f" {breaker.error_message} (next probe {breaker.probe_at:%H:%M}; `penstock run` probes at once)"
        )
    if breaker.not_before is not None and now < breaker.not_before:
        return (
            f"{breaker.source} asked for a pause until {breaker.not_before:%Y-%m-%d %H:%M:%S} UTC"
            " (`penstock run` probes at once)"
        )
    return None


@dataclass(frozen=True, slots=True)
class BreakerGuard:
    """The breakers of all sources, as a run sees them."""

    store: BreakerStore
    clock: Clock
    by_hand: bool

    def gate(self, source: str) -> Gate:
        return gate(self.store.get(source), self.clock(), by_hand=self.by_hand)

    def source_error(self, source: str) -> str | None:
        return describe(self.store.get(source), self.clock())

    def probes(self, source: str) -> int:
        return self.store.get(source).probes

    def observe(self, source: str, seen: Observation) -> None:
        now = self.clock()
        if seen.refused or seen.quota_pause is not None or self.store.get(source) != Breaker(source):
            self.store.change(source, lambda breaker: observed(breaker, seen, now))
