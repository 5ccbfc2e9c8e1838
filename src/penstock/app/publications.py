"""Publications: authority moves, and the warehouse follows."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from penstock.app.context import Context
from penstock.errors import WarehouseError
from penstock.partition import RunId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.lazy_session import LazySession
    from penstock.pipeline.parsed_cache import Lookup
    from penstock.pipeline.spark_jobs import Report
    from penstock.warehouse.publish import Publication, Publisher


class PublicationService:
    """Makes publishers, and runs publications for runs, rechecks and `reconcile`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def publish(
        self,
        spark: SparkSession | LazySession,
        worker_token: str,
        run_id: RunId,
        report: Report | None,
        find: Lookup | None = None,
    ) -> Publication:
        """Publish every due partition. `find` looks up rows that validation has parsed."""
        from penstock.observe.tracing import tracer

        with tracer().span("penstock.publish", {"penstock.run_id": run_id}) as span:
            published = self.publisher(spark, worker_token, report, find).publish(run_id)
            counts = {"loaded": published.loaded, "hidden": published.hidden, "broken": len(published.broken)}
            span.annotate({f"penstock.{name}": count for name, count in counts.items()})
        return published

    def publisher(
        self, spark: SparkSession | LazySession, worker_token: str, report: Report | None, find: Lookup | None = None
    ) -> Publisher:
        """A publisher that stages files on Spark, or a few small ones in this process."""
        from penstock.contract.schema import arrow_schema
        from penstock.pipeline.lazy_session import LazySession
        from penstock.pipeline.load import spark_stager
        from penstock.warehouse.publish import Publisher

        session, kept = LazySession.of(spark), self._context.stored_contracts()
        fields = {contract.table: arrow_schema(contract.columns) for contract in kept.values()}
        return Publisher(
            self._context.database,
            self._context.lake,
            self._context.clock,
            worker_token,
            fields.__getitem__,
            spark_stager(session, self._context.settings.lake, kept.__getitem__, report, find, self._damage_of),
            session.parallelism(),
        )

    def _damage_of(self, tables: Collection[str]) -> WarehouseError | None:
        """The error that names the damaged data files of these tables; None without any."""
        from penstock.warehouse.damage import damage_of
        from penstock.warehouse.heads import heads_of_all

        assets = sorted({(c.source, c.query_name) for c in self._context.contracts.values()})
        heads = [head for _, head in heads_of_all(self._context.database, assets) if head.name in tables]
        return damage_of(self._context.database, self._context.versions, heads)

    def is_due(self) -> bool:
        """Whether a pointer is behind authority, or a publication was interrupted."""
        return self._context.pointers.waiting() > 0 or self._context.pointers.interrupted()
