"""Orders validation: a partition that references another one of the same run waits until that one is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.config.checks import References
from penstock.contract.contract import Contract
from penstock.flow.graph import FanIn
from penstock.lifecycle import Stage
from penstock.partition import PartitionKey

_NO_MINIMUM = "at least 0"  # if they fail, the verdict reports the missing references


def waiting_for_references(keys: Sequence[PartitionKey], contracts: Mapping[str, Contract]) -> list[FanIn]:
    """The fan-ins of partitions whose checks reference other partitions of the same run."""
    tables = {
        name: sorted({check.to for check in contract.checks if isinstance(check, References)})
        for name, contract in contracts.items()
    }
    planned = set(keys)
    found = []
    for key in keys:
        named = (to.partition(".") for to in tables.get(key.query_name, ()))
        others = [PartitionKey(source, key.customer_id, query, key.logical_date) for source, _, query in named]
        if inside := [other for other in others if other in planned]:
            found.append(FanIn(key, "references", _NO_MINIMUM, inside, stage=Stage.VALIDATE))
    return found
