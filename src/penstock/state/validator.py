"""The validator's object: it can judge issued attempts, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.clock import Clock
from penstock.db.engine import Database
from penstock.state.closing import close
from penstock.state.records import Accepted, Rejected, Ruling, Verdict


class ValidatorStore:
    """Verdicts in bulk. Delivering the same verdict again changes nothing; refused ones do not fail the others."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def judge(self, verdicts: Sequence[Verdict]) -> Ruling:
        """Accept and reject in one transaction: verdict, authority and events together."""
        if not verdicts:
            return Ruling()
        return self._database.transact(lambda connection: close(connection, verdicts, "validator", self._clock()))

    def accept(self, verdicts: Sequence[Accepted]) -> Ruling:
        return self.judge(verdicts)

    def reject(self, verdicts: Sequence[Rejected]) -> Ruling:
        return self.judge(verdicts)
