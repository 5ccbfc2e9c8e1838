"""The ledger: rebuild its projections, export old events."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock import interrupts
from penstock.app.context import Context, audit_entry
from penstock.state.audited import AuditedAct

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.app.status import StatusService


class LedgerService:
    """Rebuilds projections from the ledger, and moves old events to the lake."""

    def __init__(self, context: Context, status: StatusService) -> None:
        self._context = context
        self._status = status

    def rebuild(self, engine: str = "embedded", spark: SparkSession | None = None) -> int:
        """Rebuild all projections from the ledger. Returns the number of events. `engine` is `embedded` or `spark`.

        >>> ws.ledger.rebuild()
        """
        if engine == "embedded":
            projector = self._status.projector
            interrupts.begin_work()
            return projector.rebuild()
        from penstock.pipeline.rebuild_projections import spark_maker

        return self._status.projector.rebuild(spark_maker(self._context.session(spark), self._context.settings.lake))

    def export(self, older_than_days: int, *, actor: str | None = None, dry_run: bool = False) -> dict[str, Any]:
        """Move old events of finished runs from the database to the lake. Returns their number and place. Audited.

        >>> ws.ledger.export(90, actor="kim", dry_run=True)
        """
        from penstock.control.export import export_before

        self._context.require_own_lake()
        entry = audit_entry(actor, AuditedAct.LEDGER_EXPORT, {"older_than_days": older_than_days})
        projector = self._status.projector
        interrupts.begin_work()
        projector.advance()
        before = self._context.now() - timedelta(days=older_than_days)
        folded = projector.head.read()[1].cursor
        return export_before(
            self._context.database,
            self._context.lake,
            self._context.ledger,
            before,
            folded,
            entry,
            self._context.now(),
            rehearsal=dry_run,
        )
