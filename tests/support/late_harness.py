"""A workspace with deadlines and a clock that the test sets: for tests about lateness."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from penstock.control.lateness import DayLateness, MissingCause
from penstock.control.schedule import schedule
from penstock.control.select import due_times
from penstock.errors import ErrorClass
from penstock.lifecycle import AttemptReason, Stage
from penstock.partition import AttemptKey, PartitionKey, RunId, new_run_id
from penstock.state.records import Planned, Rejected
from penstock.state.retries import RetryStore
from support.builders import SetClock
from support.harness import FIELDS, Harness
from support.workspaces import CAMPAIGNS, key, write_workspace

DAY = "2024-06-10"
NOW = datetime(2024, 6, 11, 6, tzinfo=UTC)  # 08:00 in Berlin
DEADLINE = datetime(2024, 6, 11, 7, tzinfo=UTC)  # 09:00 in Berlin
BY_NINE = {"complete_by": "09:00", "time_zone": "Europe/Berlin"}
TABLE = "demo.campaign_daily"


class LateHarness(Harness):
    """Nine customers, of whom some may have another time zone, and the deadline 09:00 in Berlin."""

    def __init__(
        self,
        folder: Path,
        *,
        customers: int = 9,
        zones: Mapping[int, str] | None = None,
        models: dict[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        source: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        body = {**CAMPAIGNS, "fields": FIELDS, "checks": [], "start_date": DAY, "freshness": BY_NINE, **(query or {})}
        write_workspace(folder, customers=customers, queries={"campaign_daily": body}, models=models, **settings)
        file = folder / "penstock.yaml"
        written = yaml.safe_load(file.read_text())
        written["sources"]["demo"] |= source or {}
        for number, zone in (zones or {}).items():
            written["customers"][number - 1]["time_zone"] = zone
        file.write_text(yaml.safe_dump(written, sort_keys=False))
        self.clock = SetClock(NOW)
        super().__init__(folder)
        self.workspace.context.clock = self.clock

    def now(self) -> datetime:
        return self.clock()

    def deliver_day(self, customers: Iterable[int], day: str = DAY) -> None:
        """Accept and publish the partitions of these customers."""
        self.deliver({key(number, day): 1 for number in customers})
        self.publish()

    def issue(self, *partitions: PartitionKey, planned: int | None = None) -> tuple[list[AttemptKey], str]:
        """A run that works on these partitions; the token of its worker."""
        token, run_id, seen = self.workers.register(), new_run_id(), self._last_attempts()
        contracts = self.workspace.context.contracts
        plan = [
            Planned(
                one,
                seen.get(one, 0),
                AttemptReason.MISSING,
                contracts[one.query_name].fingerprint,
                contracts[one.query_name].schema_version,
            )
            for one in partitions
        ]
        from penstock.flow.graph import Graph

        self.control.start_run(
            run_id, token, "ada", {}, planned or len(partitions), Graph(list(partitions)).event(run_id)
        )
        issued, refused = self.control.issue(run_id, token, 0, plan)
        assert not refused
        return [one.attempt for one in issued], token

    def reject(
        self, *partitions: PartitionKey, error: ErrorClass = ErrorClass.DATA, message: str = "it did not work"
    ) -> RunId:
        """Rejected attempts, with the decision of the retry policy."""
        attempts, token = self.issue(*partitions)
        verdicts = [Rejected(one, token, Stage.EXTRACT, error, message) for one in attempts]
        assert len(self.validator.judge(verdicts).applied) == len(attempts)
        context = self.workspace.context
        schedule(
            RetryStore(context.database), context.settings.assets, lambda: 0.5, due_times(context.settings, self.now())
        )
        self.workers.stop(token)
        return attempts[0].run_id

    def report(self, table: str = TABLE, day: str = DAY) -> DayLateness:
        """The report of one day."""
        [found] = self.workspace.lateness.report([table], date.fromisoformat(day))
        return found

    def causes(
        self, table: str = TABLE, day: str = DAY, examples: Collection[MissingCause] = tuple(MissingCause)
    ) -> dict[MissingCause, int]:
        """The missing partitions by cause. Fails if `why` has another cause for one of the `examples`."""
        found = self.report(table, day)
        for one in found.missing:
            assert one.example is not None
            if one.cause in examples:
                assert self.workspace.partitions.why(one.example).missing_cause is one.cause
        assert sum(one.count for one in found.missing) == found.expected - found.available
        return {one.cause: one.count for one in found.missing}


def later(hours: float) -> datetime:
    """So many hours after the moment of the tests."""
    return NOW + timedelta(hours=hours)
