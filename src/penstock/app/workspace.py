"""The workspace: a facade over its services."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from penstock.app.context import Context
from penstock.clock import Clock, utc_now
from penstock.config.loading import find_workspace, load_settings
from penstock.config.settings import Settings
from penstock.control.filters import ReadOptions, SliceFilters
from penstock.source.registry import hooks_of
from penstock.user_cache import UserCache

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from penstock.app.action_previews import ActionPreviewService
    from penstock.app.actions import ActionService
    from penstock.app.activity import ActivityService
    from penstock.app.alerts import AlertService
    from penstock.app.backfills import BackfillService
    from penstock.app.customers import CustomerService
    from penstock.app.data import DataService
    from penstock.app.dbt import DbtService
    from penstock.app.grids import GridService
    from penstock.app.lateness import LatenessService
    from penstock.app.ledger import LedgerService
    from penstock.app.lineage import LineageService
    from penstock.app.logins import LoginService
    from penstock.app.maintenance import MaintenanceService
    from penstock.app.metrics import MetricService
    from penstock.app.model_plans import ModelService
    from penstock.app.oidc import OidcService
    from penstock.app.operations import OperationService
    from penstock.app.orders import OrderService
    from penstock.app.partitions import PartitionHandle, PartitionService
    from penstock.app.plans import PlanService
    from penstock.app.publications import PublicationService
    from penstock.app.quotas import QuotaService
    from penstock.app.raw_runs import RawService
    from penstock.app.readiness import ReadinessService
    from penstock.app.rechecks import RecheckService
    from penstock.app.rounds import RoundService
    from penstock.app.runners import RunnerFactory
    from penstock.app.runs import RunService
    from penstock.app.status import StatusService
    from penstock.app.tokens import TokenService
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
    return Workspace(load_settings(find_workspace(Path(path)), os.environ, hooks_of, UserCache.of(os.environ)), clock)


def _service(path: str, *needs: str) -> Any:
    """A service of a workspace, imported and constructed at its first use, so that `status` does not load the code of
    runs. It takes the context and the services that `needs` names; a test compares them with its constructor."""
    module, _, name = path.partition(".")

    def make(workspace: Workspace) -> Any:
        service = getattr(import_module(f"penstock.app.{module}"), name)
        return service(workspace.context, *(getattr(workspace, need) for need in needs))

    return cached_property(make)


class Workspace:
    """One workspace: its services, and the calls of a consumer.

    `runs`, `plans`, `partitions`, `operations`, `backfills`, `maintenance` and `data` are the services behind the
    commands. Each takes the context, and other services only as arguments of its constructor.
    """

    status: StatusService = _service("status.StatusService")
    partitions: PartitionService = _service("partitions.PartitionService", "status")
    grids: GridService = _service("grids.GridService", "status")
    activity: ActivityService = _service("activity.ActivityService")
    metrics: MetricService = _service("metrics.MetricService", "status")
    data: DataService = _service("data.DataService", "status")
    dbt: DbtService = _service("dbt.DbtService", "data")
    readiness: ReadinessService = _service("readiness.ReadinessService")
    lateness: LatenessService = _service("lateness.LatenessService", "status")
    alerts: AlertService = _service("alerts.AlertService", "status", "lateness")
    raw: RawService = _service("raw_runs.RawService")
    models: ModelService = _service("model_plans.ModelService", "status")
    plans: PlanService = _service("plans.PlanService", "models")
    operations: OperationService = _service("operations.OperationService")
    backfills: BackfillService = _service("backfills.BackfillService", "plans", "operations")
    customers: CustomerService = _service("customers.CustomerService")
    quotas: QuotaService = _service("quotas.QuotaService")
    ledger: LedgerService = _service("ledger.LedgerService", "status")
    lineage: LineageService = _service("lineage.LineageService")
    publications: PublicationService = _service("publications.PublicationService")
    rechecks: RecheckService = _service("rechecks.RecheckService", "models", "data", "publications")
    maintenance: MaintenanceService = _service("maintenance.MaintenanceService", "status", "publications", "data")
    runners: RunnerFactory = _service("runners.RunnerFactory", "status", "publications", "data")
    runs: RunService = _service(
        "runs.RunService", "plans", "models", "runners", "publications", "partitions", "lineage"
    )
    tokens: TokenService = _service("tokens.TokenService")
    logins: LoginService = _service("logins.LoginService", "tokens")
    oidc: OidcService = _service("oidc.OidcService")
    orders: OrderService = _service("orders.OrderService", "runs", "rechecks", "maintenance")
    action_previews: ActionPreviewService = _service(
        "action_previews.ActionPreviewService",
        "partitions",
        "operations",
        "backfills",
        "plans",
        "runs",
        "rechecks",
        "maintenance",
    )
    actions: ActionService = _service(
        "actions.ActionService", "action_previews", "operations", "backfills", "runs", "orders"
    )
    rounds: RoundService = _service(
        "rounds.RoundService", "plans", "models", "runners", "publications", "runs", "lineage"
    )

    def __init__(self, settings: Settings, clock: Clock = utc_now) -> None:
        self.context = Context(settings, clock)

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

    def sql(
        self, statement: str, as_of: str | None = None, schema_versions: Mapping[str, str] | None = None
    ) -> pa.RecordBatchReader:
        """The result of one SELECT on DuckDB over trusted rows; see `DataService.sql`.

        >>> ws.sql("SELECT count(*) FROM demo.campaign_daily").read_all()
        """
        return self.data.sql(statement, as_of, schema_versions=schema_versions)

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
        return self.partitions.handle(key)

    def close(self) -> None:
        """Close the database connections.

        >>> ws.close()
        """
        self.context.database.close()
