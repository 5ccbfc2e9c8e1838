"""Assets that order runs: Dagster asks for days, and the control loop of Penstock executes the work."""

# Without `from __future__ import annotations`: Dagster inspects the annotations of functions as types.

from collections.abc import Sequence
from typing import Any

import dagster as dg

from penstock_dagster.resource import PenstockResource
from penstock_dagster.sensor import ORDERED_RUNS
from penstock_dagster.specs import table_of


class OrderConfig(dg.Config):
    """Options of one Dagster run."""

    reprocess: bool = False
    reason: str | None = None


def build_penstock_assets(
    specs: Sequence[dg.AssetSpec],
    *,
    resource_key: str = "penstock",
    require: str = "all",
    patience: float = 6 * 3600,
    every: float = 2.0,
) -> list[dg.AssetsDefinition]:
    """One asset for each spec. Its materialization places one order for the days of the Dagster run, however many, and
    waits at most `patience` seconds. It fails if the published partitions of a day are not enough by the rule `require`
    of `penstock ready`; what was published stays published, and the sensor reports it.

    An order takes what is due: missing partitions, and failed ones that their policy or an operator retries. With the
    config `reprocess: true` it also takes success partitions.

    >>> build_penstock_assets(specs, require="95%")
    """
    return [_asset(spec, resource_key, require, patience, every) for spec in specs]


def _asset(spec: dg.AssetSpec, resource_key: str, require: str, patience: float, every: float) -> dg.AssetsDefinition:
    table = table_of(spec)
    source, _, query = table.partition(".")

    def order_days(context: dg.AssetExecutionContext, config: OrderConfig) -> dg.MaterializeResult[None]:
        penstock: PenstockResource = getattr(context.resources, resource_key)
        days = sorted(context.partition_keys)
        order = penstock.order_run(
            {"source": source, "queries": [query], "since": days[0], "until": days[-1]},
            reprocess=config.reprocess,
            reason=config.reason or f"Dagster run {context.run.run_id}",
            idempotency_key=f"dagster/{context.run.run_id}/{table}/{days[0]}/{days[-1]}/{context.retry_number}",
            patience=patience,
            every=every,
        )
        with penstock.client() as client:
            found = client.ready(table, since=days[0], until=days[-1], require=require)
            if not found["ready"]:
                raise _failure(found, require, order, client.url)
            return dg.MaterializeResult(metadata=_metadata(found["tables"][0], order, client.url))

    return dg.multi_asset(
        specs=[spec],
        name=f"order_{'__'.join(spec.key.path)}",
        required_resource_keys={resource_key},
        backfill_policy=dg.BackfillPolicy.single_run(),
    )(order_days)


def _metadata(covered: dict[str, Any], order: dict[str, Any], url: str) -> dict[str, Any]:
    counts, runs = order["result"]["counts"], [order["run_id"]] if order["run_id"] else []
    return {
        "partitions_available": covered["available"],
        "partitions_expected": covered["expected"],
        "accepted": counts.get("accepted", 0),
        "rejected": counts.get("rejected", 0),
        "runs": dg.MetadataValue.json(runs),
        "order": dg.MetadataValue.url(f"{url}/runs/orders/{order['order_id']}"),
        ORDERED_RUNS: dg.MetadataValue.json(runs),
    }


def _failure(found: dict[str, Any], require: str, order: dict[str, Any], url: str) -> dg.Failure:
    [table] = found["tables"]
    days = [day for day in table["days"] if not day["ready"]]
    absent = [key for day in days for key in day["absent"]]
    example = f", for example {absent[0]}: see {url}/partitions/{absent[0]}" if absent else ""
    return dg.Failure(
        f"{table['table']}: {table['available']} of {table['expected']} partitions are published, {require} required"
        f"{example}",
        metadata={
            "order": dg.MetadataValue.url(f"{url}/runs/orders/{order['order_id']}"),
            "absent": dg.MetadataValue.json(absent[:100]),
        },
        allow_retries=False,
    )
