"""What an operator's retry would move, as a value, and in pages: a million failed partitions are never held at once."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Self

from penstock.partition import PartitionKey
from penstock.state.records import FailedPartition

SCANNED = 100_000  # expected partitions that one question looks at
MOVED = 10_000  # partitions that one transaction moves


class NotRetried(StrEnum):
    """Why a failed partition is not requeued."""

    NO_RAW = "no_raw"  # its attempts left neither a sealed run nor an extraction error
    TERMINAL = "terminal"  # an operator gave it up
    FROZEN = "frozen"  # its source can no longer be asked for the day


@dataclass(frozen=True, slots=True)
class RetryPage:
    """Some failed partitions, sorted out."""

    wanted: Sequence[PartitionKey]
    refused: Mapping[NotRetried, Sequence[PartitionKey]]


def sort_out(failed: Iterable[FailedPartition], frozen: Container[PartitionKey], *, without_raw: bool) -> RetryPage:
    """Which of these a retry may move. `without_raw` also moves those whose attempts left nothing."""
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
    """How many partitions a retry would move and refuses, and the first of each. The retry moves no partition whose
    last attempt ended after `moment`, so it moves nothing that was not counted here."""

    listed: int
    moment: datetime
    total: int = 0
    keys: list[PartitionKey] = field(default_factory=list)
    refused: dict[NotRetried, list[PartitionKey]] = field(default_factory=lambda: {why: [] for why in NotRetried})
    refusals: dict[NotRetried, int] = field(default_factory=lambda: dict.fromkeys(NotRetried, 0))

    def add(self, page: RetryPage) -> Self:
        self.total += len(page.wanted)
        self.keys += page.wanted[: self.listed - len(self.keys)]
        for why, found in page.refused.items():
            self.refusals[why] += len(found)
            self.refused[why] += found[: self.listed - len(self.refused[why])]
        return self
