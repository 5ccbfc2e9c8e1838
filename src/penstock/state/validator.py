"""The validator's object: it can judge issued attempts and withdraw what it vouched for, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.engine import Connection

from penstock.clock import Clock
from penstock.db.engine import Database
from penstock.partition import PartitionKey
from penstock.state.closing import close
from penstock.state.control import AuditEntry, record_audit
from penstock.state.recheck import FailedRecheck, demote_rejected
from penstock.state.records import Ruling, Verdict


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

    def withdraw(self, found: Sequence[FailedRecheck], entry: AuditEntry | None = None) -> list[PartitionKey]:
        """The re-check of trusted runs found these wanting: demote those that are still trusted. If a person asked for
        the re-check, its line in the audit log is written with the demotions."""

        def work(connection: Connection) -> list[PartitionKey]:
            now = self._clock()
            demoted = demote_rejected(connection, found, now)
            if entry is not None and demoted:
                record_audit(connection, entry, len(demoted), "demoted", now)
            return demoted

        return self._database.transact(work) if found else []
