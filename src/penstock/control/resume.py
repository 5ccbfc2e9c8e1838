"""Determines from the ledger which partitions of a dead run are left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.config.settings import Settings
from penstock.contract.contract import Contract
from penstock.control.plan import asked_for
from penstock.errors import ActRefused, ErrorClass
from penstock.flow.run_state import RunState
from penstock.lifecycle import Outcome, PlanReason, Stage
from penstock.partition import AssetKind, PartitionKey
from penstock.state.records import Cancelled, Issued


@dataclass(frozen=True, slots=True)
class LeftOver:
    """The partitions that a dead run did not finish."""

    unissued: list[PartitionKey]  # planned, without an attempt
    fetched: list[Issued]  # sealed, without a verdict


def left_over(state: RunState, adopted: Sequence[Issued]) -> LeftOver:
    """Split the unfinished partitions of a run by their progress."""
    mine = {str(item.attempt.partition): item for item in adopted}
    unissued = [PartitionKey.parse(key) for key in state.waiting(Stage.EXTRACT) if key not in mine]
    # Whatever the state of its validation, the payload of a fetched partition is sealed.
    fetched = [item for key, item in mine.items() if state.states(key).get(Stage.EXTRACT) == Outcome.SUCCEEDED]
    return LeftOver(unissued, fetched)


def still_current(
    adopted: Sequence[Issued], settings: Settings, contracts: Mapping[str, Contract]
) -> tuple[list[Issued], list[Issued]]:
    """Split attempts into those that can continue, and those whose contract, query or customer changed."""
    customers = {customer.id for customer in settings.customers}
    current: list[Issued] = []
    outdated: list[Issued] = []
    for item in adopted:
        key = item.attempt.partition
        contract = contracts.get(key.query_name)
        same = contract is not None and contract.fingerprint == item.contract_fingerprint
        known = key.kind is AssetKind.DERIVED or key.customer_id in customers
        (current if same and known else outdated).append(item)
    return current, outdated


def outdated_closings(outdated: Sequence[Issued], worker_token: str) -> list[Cancelled]:
    """Cancel outdated attempts: an attempt is validated by the contract that it was issued with, or not at all."""
    reason = "its contract, query or customer changed while no worker held the run: it is planned again"
    return [Cancelled(i.attempt, worker_token, Stage.EXTRACT, ErrorClass.CONFIG, reason) for i in outdated]


def reasons_of(filters: Mapping[str, Any]) -> Sequence[PlanReason]:
    """The reasons for which the run planned its partitions. Raises ActRefused for a round of the control loop."""
    if filters.get("round"):
        raise ActRefused("a round of the control loop is not resumed: the next round plans its partitions again")
    return asked_for(bool(filters.get("reprocess")))
