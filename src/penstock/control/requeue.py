"""Plans an operator's retry in pages, so that a million failed partitions are never in memory at once."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Self

from penstock.partition import PartitionKey
from penstock.state.records import FailedPartition

SCANNED = 100_000  # expected partitions that one query reads
MOVED = 10_000  # partitions that one transaction requeues


class NotRetried(StrEnum):
    """Why a failed partition is not requeued."""

    NO_RAW = "no_raw"  # its attempts left neither a sealed run nor an extraction error
    TERMINAL = "terminal"  # an operator marked it as terminal
    FROZEN = "frozen"  # its source no longer keeps the day


@dataclass(frozen=True, slots=True)
class RetryPage:
    """A page of failed partitions: those that are requeued, and those that are refused, by cause."""

    wanted: Sequence[PartitionKey]
    refused: Mapping[NotRetried, Sequence[PartitionKey]]


def classify_failed(
    failed: Iterable[FailedPartition], frozen: Container[PartitionKey], *, without_raw: bool
) -> RetryPage:
    """Split failed partitions into those that a retry requeues and those that it refuses. `without_raw` also requeues
    partitions whose attempts left neither raw data nor an extraction error."""
    wanted: list[PartitionKey] = []
    refused: dict[NotRetried, list[PartitionKey]] = {why: [] for why in NotRetried}
    for one in failed:
        if one.key in frozen:
            refused[NotRetried.FROZEN].append(one.key)
        elif one.marked:
            refused[NotRetried.TERMINAL].append(one.key)
        elif one.left_nothing and not without_raw:
            refused[NotRetried.NO_RAW].append(one.key)
        else:
            wanted.append(one.key)
    return RetryPage(wanted, refused)


@dataclass(slots=True)
class RetryPreview:
    """The number of partitions that a retry requeues and refuses, and the first `listed` of each. The retry requeues no
    partition whose last attempt ended after `moment`, so it requeues only partitions that were counted here."""

    listed: int
    moment: datetime
    total: int = 0
    keys: list[PartitionKey] = field(default_factory=list)
    refused: dict[NotRetried, list[PartitionKey]] = field(default_factory=lambda: {why: [] for why in NotRetried})
    refusals: dict[NotRetried, int] = field(default_factory=lambda: dict.fromkeys(NotRetried, 0))

    def add(self, page: RetryPage) -> Self:
        """Add a page to the counts and lists."""
        self.total += len(page.wanted)
        self.keys += page.wanted[: self.listed - len(self.keys)]
        for why, found in page.refused.items():
            self.refusals[why] += len(found)
            self.refused[why] += found[: self.listed - len(self.refused[why])]
        return self
