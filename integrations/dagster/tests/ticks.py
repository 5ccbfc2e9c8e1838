"""Evaluations of a sensor, as the daemon of Dagster makes them: it stores the events, and then the cursor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from penstock_dagster import PenstockResource


@dataclass(slots=True)
class Tick:
    """The events of one evaluation."""

    events: list[Any]
    skip_message: str | None

    @property
    def materialized(self) -> list[tuple[str, str]]:
        """The asset and the day of each materialization."""
        found = [event for event in self.events if isinstance(event, dg.AssetMaterialization)]
        return [(event.asset_key.to_user_string(), event.partition or "") for event in found]

    def materialization(self, day: str) -> dict[str, Any]:
        """The metadata of the only materialization of a day."""
        [found] = [e for e in self.events if isinstance(e, dg.AssetMaterialization) and e.partition == day]
        return {name: value.value for name, value in found.metadata.items()}

    @property
    def checks(self) -> list[dg.AssetCheckEvaluation]:
        return [event for event in self.events if isinstance(event, dg.AssetCheckEvaluation)]

    @property
    def observations(self) -> list[dg.AssetObservation]:
        return [event for event in self.events if isinstance(event, dg.AssetObservation)]


@dataclass(slots=True)
class Ticks:
    """The sensor with its stored cursor."""

    sensor: dg.SensorDefinition
    instance: dg.DagsterInstance
    resource: PenstockResource
    cursor: str | None = None
    dies_before_cursor: bool = field(default=False, kw_only=True)

    def evaluate(self) -> Tick:
        resources = {"penstock": self.resource}
        with dg.build_sensor_context(instance=self.instance, cursor=self.cursor, resources=resources) as context:
            found = self.sensor.evaluate_tick(context)
        for event in found.asset_events:
            self.instance.report_runless_asset_event(event)
        if not self.dies_before_cursor:
            self.cursor = found.cursor
        return Tick(list(found.asset_events), found.skip_message)
