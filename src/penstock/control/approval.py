"""Preconditions of an approval: an operator makes a rejected run the authority."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.contract.contract import Contract
from penstock.contract.evaluation import guard_names
from penstock.errors import ActRefused
from penstock.partition import AttemptKey
from penstock.state.records import Attempt

if TYPE_CHECKING:
    from penstock.raw.reader import RawReader


def refuse_without_raw(attempt: Attempt, raw: RawReader) -> None:
    """Raise ActRefused unless the raw run exists, is sealed, and is the one that was validated."""
    seal = raw.seal(_key(attempt))
    if seal is None:
        raise ActRefused(f"{attempt.key}: the raw data of run {attempt.run_id} was deleted; choose another run")
    if seal.payload_sha256 != attempt.payload_digest:
        raise ActRefused(
            f"{attempt.key}: the raw data of run {attempt.run_id} differs from the validated payload;"
            " choose another run"
        )


def refuse_other_complaints(attempt: Attempt, contract: Contract) -> None:
    """Raise ActRefused unless only guards rejected the run. Guards compare a run with the authority and may be
    overruled; complaints about the rows themselves may not."""
    rejecting, others = _rejecting(attempt, contract)
    if not rejecting or others:
        found = f"other checks rejected it: {', '.join(others)}" if others else "no guard rejected it"
        raise ActRefused(f"{attempt.key}: run {attempt.run_id} cannot be approved: {found}")


def held_back_by_guards(attempt: Attempt, contract: Contract) -> bool:
    """True if guards rejected the run, and no other check."""
    rejecting, others = _rejecting(attempt, contract)
    return bool(rejecting) and not others


def _rejecting(attempt: Attempt, contract: Contract) -> tuple[set[str], list[str]]:
    """The checks that rejected the run, and those of them that are not guards."""
    rejecting = {str(c["check"]) for c in attempt.complaints or [] if c.get("severity", "reject") == "reject"}
    return rejecting, sorted(rejecting - guard_names(contract))


def _key(attempt: Attempt) -> AttemptKey:
    return AttemptKey(attempt.key, attempt.run_id)
