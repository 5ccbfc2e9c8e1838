"""Rechecks: trusted runs against the current contract."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from penstock.app.context import Context, audit_entry
from penstock.control.ranges import in_key_order, intersect
from penstock.control.select import Selection
from penstock.expected import ExpectedRange
from penstock.lifecycle import PartitionStatus
from penstock.observe.progress import SILENT
from penstock.partition import AssetKind, AttemptKey, PartitionKey, new_run_id
from penstock.state.audited import AuditedAct

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.app.data import DataService
    from penstock.app.model_plans import ModelService
    from penstock.app.publications import PublicationService
    from penstock.flow.listener import ProgressListener
    from penstock.flow.recheck import Rechecked
    from penstock.state.recheck import FailedRecheck


class RecheckService:
    """Validates trusted runs again, and demotes those that fail."""

    def __init__(
        self, context: Context, models: ModelService, data: DataService, publications: PublicationService
    ) -> None:
        self._context = context
        self._models = models
        self._data = data
        self._publications = publications

    def run(
        self,
        selection: Selection,
        *,
        listener: ProgressListener | None = None,
        actor: str | None = None,
        spark: SparkSession | None = None,
        within: Sequence[ExpectedRange] | None = None,
    ) -> Rechecked:
        """Validate the trusted runs of the selected partitions against the current contract, and demote the runs that
        fail. With `within`, only partitions of these ranges. Audited.

        >>> ws.rechecks.run(Selection(queries="campaign_daily"), actor="kim")
        """
        from penstock.flow.heartbeat import Heartbeat
        from penstock.flow.recheck import recheck

        self._context.require_own_lake()
        trusted = self.candidates(selection, within)
        session = self._context.session(spark)
        broken: dict[str, str] = {}
        if any(attempt.partition.kind is AssetKind.DERIVED for attempt, _ in trusted):
            broken = self._models.learn_contracts(session)
        unjudged = {a.partition: broken[a.partition.query_name] for a, _ in trusted if a.partition.query_name in broken}
        trusted = [(attempt, size) for attempt, size in trusted if attempt.partition not in unjudged]
        validator = self._context.validators
        entry = audit_entry(actor, AuditedAct.VALIDATE, selection.as_dict())

        def withdraw(failed: Sequence[FailedRecheck]) -> Sequence[PartitionKey]:
            return validator.withdraw(failed, entry)

        with self._context.audited(entry) as action:
            found = recheck(
                session,
                self._context.settings.lake,
                self._context.contracts,
                trusted,
                withdraw,
                listener or SILENT,
                self._data.referenced,
            )
            action.affected = len(found.demoted)
        found.unreadable.update(unjudged)
        if found.demoted:
            with Heartbeat(self._context.workers) as heart:
                self._publications.publish(session, heart.token, new_run_id(), None)
        return found

    def candidates(
        self, selection: Selection, within: Sequence[ExpectedRange] | None = None
    ) -> list[tuple[AttemptKey, int]]:
        """The trusted runs of the current schema version, with their sizes: the runs that the contract can check. With
        `within`, only those of these ranges.

        >>> len(ws.rechecks.candidates(Selection(queries="campaign_daily")))
        """
        versions = {name: contract.schema_version for name, contract in self._context.contracts.items()}
        ranges = self._selected(selection)
        if within is not None:
            ranges = intersect(ranges, within)
        found = self._context.state.trusted(ranges) if ranges else []
        return [(a, size) for a, version, size in found if versions[a.partition.query_name] == version]

    def candidate_ranges(self, selection: Selection) -> list[ExpectedRange]:
        """The partitions of `candidates` as ranges of days, in key order: a million partitions are not listed.

        >>> ws.rechecks.candidate_ranges(Selection(queries="campaign_daily"))
        """
        by_query: dict[str, list[ExpectedRange]] = {}
        for span in self._selected(selection):
            by_query.setdefault(span.query_name, []).append(span)
        contracts, state = self._context.contracts, self._context.state
        found = (state.trusted_ranges(mine, contracts[name].schema_version) for name, mine in by_query.items())
        return in_key_order(chain.from_iterable(found))

    def _selected(self, selection: Selection) -> list[ExpectedRange]:
        """The expected partitions that may be trusted. Raises UsageError for unknown names."""
        ranges = self._context.ranges(selection)
        return ranges if selection.status in (None, PartitionStatus.SUCCESS) else []
