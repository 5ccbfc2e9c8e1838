"""What the runner asks before it issues attempts of a source, and tells after the source has answered."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from penstock.state.records import Observation


class Gate(StrEnum):
    OPEN = "all"  # everything may be issued
    PROBE = "probe"  # one partition, to see whether the source has recovered
    SHUT = "none"


class Guard(Protocol):
    def gate(self, source: str) -> Gate: ...

    def trouble(self, source: str) -> str | None:
        """Why not everything is issued, in words; None when everything is."""

    def probes(self, source: str) -> int:
        """How many probes the source was sent since its trouble began."""

    def observe(self, source: str, seen: Observation) -> None: ...
