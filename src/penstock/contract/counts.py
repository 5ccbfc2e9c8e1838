"""Checks on the number of rows of a slice."""

from __future__ import annotations

from penstock.contract.complaint import Complaint
from penstock.contract.contract import Contract
from penstock.settings import Rows, Shrink


def count_complaints(contract: Contract, count: int, previous: int | None) -> list[Complaint]:
    """Checks on the number of rows; `previous` is the count of the run that is trusted now, if there is one."""
    complaints = []
    for check in contract.checks:
        if isinstance(check, Rows):
            if check.min is not None and count < check.min:
                complaints.append(
                    Complaint(check.name or "rows", f"{count:,} rows, at least {check.min:,} expected", count)
                )
            if check.max is not None and count > check.max:
                complaints.append(
                    Complaint(check.name or "rows", f"{count:,} rows, at most {check.max:,} expected", count)
                )
        elif isinstance(check, Shrink) and previous and count < previous * (1 - check.max_drop):
            drop = 1 - count / previous
            complaints.append(
                Complaint(
                    check.name or "shrink",
                    f"{count:,} rows where the trusted run has {previous:,}: a drop of {drop:.0%}, at most"
                    f" {check.max_drop:.0%} is allowed",
                    count,
                )
            )
    return complaints
