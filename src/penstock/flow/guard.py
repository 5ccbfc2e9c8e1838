"""Decides whether attempts of a source may be issued, and records its responses."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from penstock.state.quota import SourceQuota
from penstock.state.records import Observation, Planned


class Gate(StrEnum):
    """Which attempts of a source may be issued."""

    OPEN = "all"
    FRESH = "fresh"  # all but those for old data: the rest of the quota is reserved
    PROBE = "probe"  # one partition, to find out whether the source has recovered
    SHUT = "none"


class Guard(Protocol):
    """The breakers and quotas of all sources, as the runner uses them."""

    @property
    def reserve(self) -> float:
        """The share of a counted quota that attempts for old data leave."""

    def gate(self, source: str) -> Gate:
        """Which attempts of the source may be issued now."""

    def source_error(self, source: str) -> str | None:
        """Why not all attempts are issued; None if all are."""

    def probes(self, source: str) -> int:
        """The number of probes since the breaker opened."""

    def observe(self, source: str, seen: Observation) -> None:
        """Record the responses to a batch of requests."""

    def quota(self, source: str) -> SourceQuota | None:
        """The counted quota of the source; None if it has none."""

    def is_old(self, item: Planned) -> bool:
        """Whether the item is for old data: a backfill or history."""
