"""The validator's store: records verdicts on issued attempts, demotes runs that fail a re-check, and no more."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.engine import Connection

from penstock.clock import Clock
from penstock.db.engine import Database
from penstock.partition import PartitionKey
from penstock.state.closing import close
from penstock.state.control import AuditEntry, record_audit
from penstock.state.recheck import FailedRecheck, demote_rejected
from penstock.state.records import ClosingResult, Verdict


class ValidatorStore:
    """Writes verdicts in bulk. Repeating a verdict changes nothing; refused verdicts do not fail the others."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def judge(self, verdicts: Sequence[Verdict]) -> ClosingResult:
        """Accept and reject in one transaction: verdicts, authority and events."""
        if not verdicts:
            return ClosingResult()
        return self._database.transact(lambda connection: close(connection, verdicts, "validator", self._clock()))

    def withdraw(self, found: Sequence[FailedRecheck], entry: AuditEntry | None = None) -> list[PartitionKey]:
        """Demote the runs that failed the re-check and are still trusted. If an operator asked for the re-check, its
        audit entry is written with the demotions."""

        def work(connection: Connection) -> list[PartitionKey]:
            now = self._clock()
            demoted = demote_rejected(connection, found, now)
            if entry is not None and demoted:
                record_audit(connection, entry, len(demoted), "demoted", now)
            return demoted

        return self._database.transact(work) if found else []
