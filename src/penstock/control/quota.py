"""The quota of a source in the control plane: which attempts it admits, and the windows with little left."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from penstock.clock import Clock, last_day_over
from penstock.config.settings import Settings
from penstock.control.breaker import BreakerGuard
from penstock.flow.guard import Gate
from penstock.lifecycle import AttemptReason
from penstock.state.quota import QuotaStore, QuotaWindow, SourceQuota
from penstock.state.records import Observation, Planned


def gate(quota: SourceQuota, reserve: float, *, by_hand: bool) -> Gate:
    """Which attempts the quota admits. A run that a person starts may use the reserve."""
    if not quota.left():
        return Gate.SHUT
    return Gate.OPEN if by_hand or quota.left(reserve) else Gate.FRESH


def low(quota: SourceQuota, reserve: float) -> list[QuotaWindow]:
    """The windows of which no more than the reserve for fresh data is left."""
    return [window for window in quota.windows if window.claimed and window.left() <= window.reserved(reserve)]


def is_old(item: Planned, settings: Settings, now: datetime) -> bool:
    """Whether the control loop issues the item for old data: a backfill, or a day before the last `fresh_days`."""
    if item.reason is AttemptReason.BACKFILL:
        return True
    if item.reason not in (AttemptReason.MISSING, AttemptReason.RETRY):
        return False
    over = last_day_over(now, settings.customer(item.key.customer_id).time_zone)
    return item.key.logical_date <= over - timedelta(days=settings.control.fresh_days)


@dataclass(frozen=True, slots=True)
class SourceGuard:
    """The breakers and quotas of all sources, as a run sees them."""

    breakers: BreakerGuard
    quotas: QuotaStore
    settings: Settings
    clock: Clock
    by_hand: bool

    @property
    def reserve(self) -> float:
        return self.settings.control.quota_reserve

    def gate(self, source: str) -> Gate:
        found, quota = self.breakers.gate(source), self.quota(source)
        if found is Gate.SHUT or quota is None:
            return found
        admitted = gate(quota, self.reserve, by_hand=self.by_hand)
        return found if admitted is Gate.OPEN or (admitted is Gate.FRESH and found is Gate.PROBE) else admitted

    def source_error(self, source: str) -> str | None:
        quota = self.quota(source)
        return self.breakers.source_error(source) or (quota.used_up() if quota else None)

    def probes(self, source: str) -> int:
        return self.breakers.probes(source)

    def observe(self, source: str, seen: Observation) -> None:
        self.breakers.observe(source, seen)

    def quota(self, source: str) -> SourceQuota | None:
        settings = self.settings.sources.get(source)
        return self.quotas.read(source, settings.quotas) if settings is not None and settings.quotas else None

    def is_old(self, item: Planned) -> bool:
        return not self.by_hand and is_old(item, self.settings, self.clock())
