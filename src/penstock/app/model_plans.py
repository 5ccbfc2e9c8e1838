"""Plans of models, and the contracts of models as Spark derives them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.app.context import Context
from penstock.control.select import Selection
from penstock.partition import MODELS, AssetKind, PartitionKey

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.app.status import StatusService
    from penstock.contract.contract import Contract
    from penstock.control.models import ModelPlan, ModelPlanner, TodaysModels
    from penstock.flow.graph import FanIn
    from penstock.state.records import Planned

log = logging.getLogger(__name__)


class ModelService:
    """Plans model partitions, and keeps the contracts of models equal to their definitions."""

    def __init__(self, context: Context, status: StatusService) -> None:
        self._context = context
        self._status = status

    def learn_contracts(self, spark: SparkSession) -> dict[str, str]:
        """Derive the columns of models from their current definitions with Spark, and put their contracts into the
        context. Returns the reason, by name, for each model that cannot be built: its definition is wrong, or it reads
        such a model. Other models are not affected."""
        from penstock.control.plan import refuse_changed_fields
        from penstock.flow.model_contracts import with_fields
        from penstock.pipeline.validate import check_expressions
        from penstock.warehouse.heads import table_schemas

        def refuse(contract: Contract) -> None:
            refuse_changed_fields(self._context.state, {contract.query_name: contract})
            check_expressions(lambda: spark, contract)

        assets = [(contract.source, contract.query_name) for contract in self._context.contracts.values()]
        tables = table_schemas(self._context.versions, self._context.database, assets)
        self._context.contracts, broken = with_fields(
            spark,
            self._context.settings.models,
            self._context.contracts,
            tables,
            self._context.unreadable_models,
            refuse,
        )
        return broken

    def planner(self) -> ModelPlanner:
        """The planner of model partitions, over the current pointers."""
        from penstock.control.models import ModelPlanner
        from penstock.warehouse.readiness import usable

        return ModelPlanner(
            self._context.state,
            self._context.derived(),
            self._context.contracts,
            lambda ranges: usable(self._context.database, ranges),
            self._outdated,
        )

    def _outdated(self) -> list[PartitionKey]:
        """The model partitions whose inputs or code changed since they were built. Empty while the projections are
        damaged: a run that fetches due partitions does not depend on them."""
        from penstock.projections.manifest import ProjectionsLost

        try:
            board = self._status.board(Selection(source=MODELS))
            return [found.key for found in board.page("(overtaken OR outdated) AND available", after=None, limit=None)]
        except ProjectionsLost as lost:
            log.warning("models.stale_unknown", extra={"facts": {"error": str(lost)}})
            return []

    def plan_round(self, items: Sequence[Planned]) -> ModelPlan:
        """The model partitions that are due, or become due with the items of this round."""
        from penstock.control.models import ModelPlan
        from penstock.control.plan import DUE

        models = self._context.ranges(Selection(source=MODELS)) if self._context.settings.models else []
        if not models:
            return ModelPlan()
        return self.planner().plan(models, [item.key for item in items], self._context.now(), DUE)

    def with_current_contracts(
        self, session: Callable[[], SparkSession], items: Sequence[Planned], fan_ins: Sequence[FanIn] = ()
    ) -> TodaysModels:
        """The items under the current contracts of models, without the partitions of models that cannot be built. Gets
        the session only if there are items of models."""
        from penstock.control.models import TodaysModels

        if not any(item.key.kind is AssetKind.DERIVED for item in items):
            return TodaysModels(items, fan_ins)
        broken = self.learn_contracts(session())
        prints = {name: contract.fingerprint for name, contract in self._context.contracts.items()}
        kept = [item for item in items if item.key.kind is AssetKind.FETCHED or item.key.query_name not in broken]
        there = {item.key for item in kept}
        return TodaysModels(
            [replace(item, contract_fingerprint=prints[item.key.query_name]) for item in kept],
            [fan_in for fan_in in fan_ins if fan_in.waiting in there],
            len(items) - len(kept),
            [broken[name] for name in sorted({item.key.query_name for item in items if item.key not in there})],
        )
