"""What a run that died left to do, by what its ledger says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.control.plan import ASKED_FOR
from penstock.flow.desk import Desk
from penstock.lifecycle import Stage
from penstock.partition import PartitionKey
from penstock.state.records import Issued


@dataclass(frozen=True, slots=True)
class LeftOver:
    unissued: list[PartitionKey]  # planned, and nobody opened an attempt
    fetched: list[Issued]  # sealed, and nobody passed a verdict


def left_over(desk: Desk, adopted: Sequence[Issued]) -> LeftOver:
    """Partitions by where the run left them."""
    mine = {str(item.attempt.partition): item for item in adopted}
    waiting = [*desk.ready(Stage.VALIDATE), *desk.running(Stage.VALIDATE)]
    unissued = [PartitionKey.parse(key) for key in desk.ready(Stage.EXTRACT) if key not in mine]
    return LeftOver(unissued, [mine[key] for key in waiting if key in mine])


def reasons_of(filters: Mapping[str, Any]) -> tuple[str, ...]:
    """For which reasons the run was given its partitions."""
    return (*ASKED_FOR, "success") if filters.get("reprocess") else ASKED_FOR
