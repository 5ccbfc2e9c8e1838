"""Checks on the number of rows of a slice."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.config.checks import Rows, Shrink
from penstock.contract.complaint import Complaint
from penstock.contract.contract import Contract
from penstock.plural import counted


def count_complaints(contract: Contract, count: int, previous: int | None) -> list[Complaint]:
    """Checks on the number of rows; `previous` is the count of the run that is trusted now, if there is one."""
    return [
        Complaint(check.name or check.kind, words, count, severity=check.severity)
        for check in contract.checks
        if isinstance(check, Rows | Shrink)
        for words in _problems(check, count, previous)
    ]


def _problems(check: Rows | Shrink, count: int, previous: int | None) -> Iterator[str]:
    if isinstance(check, Rows):
        if check.min is not None and count < check.min:
            yield f"{counted(count, 'row')}, at least {check.min:,} expected"
        if check.max is not None and count > check.max:
            yield f"{counted(count, 'row')}, at most {check.max:,} expected"
    elif previous and count < previous * (1 - check.max_drop):
        yield (
            f"{counted(count, 'row')} where the trusted run has {previous:,}: a drop of {1 - count / previous:.0%},"
            f" at most {check.max_drop:.0%} is allowed"
        )
