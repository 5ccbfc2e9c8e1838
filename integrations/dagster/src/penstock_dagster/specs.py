"""Asset specs from a workspace: one asset for each table, with a partition for each day."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from penstock.client import Client

TABLE = "penstock/table"  # the metadata entry by which checks, assets and the sensor know the table of a spec


def penstock_asset_specs(
    client: Client,
    *,
    tables: Sequence[str] | None = None,
    key_prefix: Sequence[str] = (),
    group_name: str = "penstock",
    time_zone: str = "UTC",
) -> list[dg.AssetSpec]:
    """One spec for each table of the workspace, or for the named ones, in the order of their names. The asset key is
    the source (`models` for a model) and the name, after `key_prefix`. A model depends on its inputs, with the days
    that it reads.

    A partition is one day, from the first expected day on, and never a customer: Dagster becomes slow above 40,000
    partitions. A day ends in `time_zone`: name that of the easternmost customers, so that a day exists in Dagster when
    its first rows are published. Raises ValueError for an unknown table, and the errors of `Client.tables`.

    >>> penstock_asset_specs(client, tables=["demo.campaign_daily"])
    """
    found = {item["table"]: item for item in client.tables()}
    if unknown := sorted(set(tables or ()) - found.keys()):
        raise ValueError(f"unknown tables: {', '.join(unknown)} (tables of the workspace: {', '.join(sorted(found))})")
    chosen = [found[table] for table in sorted(found) if tables is None or table in tables]
    return [_spec(item, client.url, tuple(key_prefix), group_name, time_zone) for item in chosen]


def table_of(spec: dg.AssetSpec) -> str:
    """The table of a spec. Raises ValueError for a spec that `penstock_asset_specs` did not make."""
    table = spec.metadata.get(TABLE)
    if not isinstance(table, str):
        raise ValueError(f"{spec.key.to_user_string()} is no table of Penstock: take specs of penstock_asset_specs")
    return table


def asset_key(table: str, key_prefix: Sequence[str] = ()) -> dg.AssetKey:
    """The asset key of a table: the prefix, the source and the name."""
    return dg.AssetKey([*key_prefix, *table.split(".")])


def _spec(item: dict[str, Any], url: str, key_prefix: tuple[str, ...], group_name: str, time_zone: str) -> dg.AssetSpec:
    table, first = item["table"], item["first_expected"] or datetime.now(UTC).date().isoformat()
    columns = [dg.TableColumn(field["name"], field["type"]) for field in item["fields"]]
    return dg.AssetSpec(
        asset_key(table, key_prefix),
        deps=[_dependency(asset_key(one["table"], key_prefix), one["days"]) for one in item["inputs"]],
        description=f"The table {table} of Penstock: only rows of trusted runs.",
        partitions_def=dg.DailyPartitionsDefinition(start_date=first, timezone=time_zone),
        group_name=group_name,
        kinds={"penstock"},
        metadata={
            TABLE: table,
            "penstock/schema_version": item["schema_version"],
            "penstock/console": dg.MetadataValue.url(f"{url}/tables/{table}"),
            **({"dagster/column_schema": dg.TableSchema(columns)} if columns else {}),
        },
    )


def _dependency(key: dg.AssetKey, days: int) -> dg.AssetDep:
    """The dependency on the last `days` days of a table; days before its first one are left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # of the last parameter
        mapping = dg.TimeWindowPartitionMapping(start_offset=1 - days, allow_nonexistent_upstream_partitions=True)
    return dg.AssetDep(key, partition_mapping=mapping)
