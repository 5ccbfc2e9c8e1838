"""The workspace: a facade over its services."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, overload

from penstock.app.backfills import BackfillService
from penstock.app.context import Context
from penstock.app.customers import CustomerService
from penstock.app.data import DataService
from penstock.app.ledger import LedgerService
from penstock.app.lineage import LineageService
from penstock.app.maintenance import MaintenanceService
from penstock.app.model_plans import ModelService
from penstock.app.operations import OperationService
from penstock.app.partitions import PartitionHandle, PartitionService
from penstock.app.plans import PlanService
from penstock.app.publications import PublicationService
from penstock.app.raw_runs import RawService
from penstock.app.readiness import ReadinessService
from penstock.app.rechecks import RecheckService
from penstock.app.rounds import RoundService
from penstock.app.runners import RunnerFactory
from penstock.app.runs import RunService
from penstock.app.status import StatusService
from penstock.clock import Clock, utc_now
from penstock.config.settings import Settings, find_workspace, load_settings
from penstock.control.filters import ReadOptions, SliceFilters
from penstock.partition import PartitionKey
from penstock.source.registry import hooks_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from penstock.warehouse.reader import Vouched
    from penstock.warehouse.readiness import Coverage


def open_workspace(path: str | Path = ".", clock: Clock = utc_now) -> Workspace:
    """The workspace in (or above) the folder `path`. Raises ConfigError if its database is missing or of another
    version."""
    workspace = load_workspace(path, clock)
    workspace.context.require_schema()
    return workspace


def load_workspace(path: str | Path = ".", clock: Clock = utc_now) -> Workspace:
    """The workspace without a check of its database, for commands that create or repair the database."""
    return Workspace(load_settings(find_workspace(Path(path)), os.environ, hooks_of), clock)


class Workspace:
    """One workspace: its services, and the calls of a consumer.

    `runs`, `plans`, `partitions`, `operations`, `backfills`, `maintenance` and `data` are the services behind the
    commands. Each takes the context, and other services only as arguments of its constructor.
    """

    def __init__(self, settings: Settings, clock: Clock = utc_now) -> None:
        context = self.context = Context(settings, clock)
        self.status = StatusService(context)
        self.partitions = PartitionService(context, self.status)
        self.data = DataService(context, self.status)
        self.readiness = ReadinessService(context)
        self.raw = RawService(context)
        self.models = ModelService(context, self.status)
        self.plans = PlanService(context, self.models)
        self.operations = OperationService(context)
        self.backfills = BackfillService(context, self.plans, self.operations)
        self.customers = CustomerService(context)
        self.ledger = LedgerService(context, self.status)
        self.lineage = LineageService(context)
        self.publications = PublicationService(context)
        self.rechecks = RecheckService(context, self.models, self.data, self.publications)
        self.maintenance = MaintenanceService(context, self.status, self.publications, self.data)
        self.runners = RunnerFactory(context, self.status, self.publications, self.data)
        self.runs = RunService(
            context, self.plans, self.models, self.runners, self.publications, self.partitions, self.lineage
        )
        self.rounds = RoundService(
            context, self.plans, self.models, self.runners, self.publications, self.runs, self.lineage
        )

    @property
    def settings(self) -> Settings:
        """The values of the workspace file.

        >>> ws.settings.workspace
        """
        return self.context.settings

    @overload
    def read(self, table: str, *, spark: SparkSession, **options: Unpack[ReadOptions]) -> DataFrame: ...

    @overload
    def read(self, table: str, *, spark: None = None, **options: Unpack[ReadOptions]) -> Vouched: ...

    def read(
        self, table: str, *, spark: SparkSession | None = None, **options: Unpack[ReadOptions]
    ) -> Vouched | DataFrame:
        """The rows of `source.query_name`: with `spark` a DataFrame, without it a relation; see `DataService.read`.

        >>> ws.read("demo.campaign_daily", since="2024-06-01").arrow()
        """
        return self.data.read(table, spark=spark, **options)

    def sql(self, statement: str, as_of: str | None = None) -> pa.RecordBatchReader:
        """The result of one SELECT on DuckDB over trusted rows; see `DataService.sql`.

        >>> ws.sql("SELECT count(*) FROM demo.campaign_daily").read_all()
        """
        return self.data.sql(statement, as_of)

    def ready(self, table: str, *, require: str | int = "all", **filters: Unpack[SliceFilters]) -> bool:
        """Whether every day of a selection can be read; see `ReadinessService.ready`.

        >>> ws.ready("demo.campaign_daily", date="2024-06-01", require="95%")
        """
        return self.readiness.ready(table, require=require, **filters)

    def coverage(self, table: str, **filters: Unpack[SliceFilters]) -> list[Coverage]:
        """The expected and the ready partitions of each day; see `ReadinessService.coverage`.

        >>> ws.coverage("demo.campaign_daily", since="2024-06-01")
        """
        return self.readiness.coverage(table, **filters)

    def wait_for(
        self,
        table: str | Sequence[str],
        *,
        require: str | int = "all",
        patience: timedelta | float | str,
        **filters: Unpack[SliceFilters],
    ) -> list[Coverage]:
        """Wait until a selection is ready, at most `patience`; see `ReadinessService.wait_for`.

        >>> ws.wait_for("demo.campaign_daily", date="2024-06-01", patience="10m")
        """
        return self.readiness.wait_for(table, require=require, patience=patience, **filters)

    def partition(self, key: str) -> PartitionHandle:
        """One partition, for questions about it.

        >>> ws.partition("demo/1000000001/campaign_daily/2024-06-01").why()
        """
        return PartitionHandle(self.partitions, PartitionKey.parse(key))

    def close(self) -> None:
        """Close the database connections.

        >>> ws.close()
        """
        self.context.database.close()
