"""What a run that died left to do, by what its ledger says."""

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
    unissued: list[PartitionKey]  # planned, and nobody opened an attempt
    fetched: list[Issued]  # sealed, and nobody passed a verdict


def left_over(state: RunState, adopted: Sequence[Issued]) -> LeftOver:
    """Partitions by where the run left them."""
    mine = {str(item.attempt.partition): item for item in adopted}
    unissued = [PartitionKey.parse(key) for key in state.waiting(Stage.EXTRACT) if key not in mine]
    # Whether its validation is ready, was begun, or still waits for another slice: what was fetched is there.
    fetched = [item for key, item in mine.items() if state.states(key).get(Stage.EXTRACT) == Outcome.SUCCEEDED]
    return LeftOver(unissued, fetched)


def still_current(
    adopted: Sequence[Issued], settings: Settings, contracts: Mapping[str, Contract]
) -> tuple[list[Issued], list[Issued]]:
    """Those that can go on as they were issued, and those whose contract, query or customer is another by now."""
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
    """An attempt is judged by the contract it was issued under, or not at all."""
    words = "its contract, query or customer was changed while the run was dead: it is planned anew"
    return [Cancelled(i.attempt, worker_token, Stage.EXTRACT, ErrorClass.CONFIG, words) for i in outdated]


def reasons_of(filters: Mapping[str, Any]) -> Sequence[PlanReason]:
    """For which reasons the run was given its partitions."""
    if filters.get("round"):
        raise ActRefused("a round of the control loop is not resumed: the next round takes back what it left")
    return asked_for(bool(filters.get("reprocess")))
