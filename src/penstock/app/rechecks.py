"""Rechecks: trusted runs against the current contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.app.context import Context, audit_entry
from penstock.control.select import Selection
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
    ) -> Rechecked:
        """Validate the trusted runs of the selected partitions against the current contract, and demote the runs that
        fail. Audited.

        >>> ws.rechecks.run(Selection(queries="campaign_daily"), actor="kim")
        """
        from penstock.flow.heartbeat import Heartbeat
        from penstock.flow.recheck import recheck

        self._context.require_own_lake()
        trusted = self.candidates(selection)
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

    def candidates(self, selection: Selection) -> list[tuple[AttemptKey, int]]:
        """The trusted runs of the current schema version, with their sizes: the runs that the contract can check.

        >>> len(ws.rechecks.candidates(Selection(queries="campaign_daily")))
        """
        versions = {name: contract.schema_version for name, contract in self._context.contracts.items()}
        ranges = self._context.ranges(selection)  # refuses unknown names
        if selection.status not in (None, PartitionStatus.SUCCESS):
            return []
        found = self._context.state.trusted(ranges)
        return [(a, size) for a, version, size in found if versions[a.partition.query_name] == version]
