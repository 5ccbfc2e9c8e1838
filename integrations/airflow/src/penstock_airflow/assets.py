"""Assets of tables, and asset events for days."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.sdk import Asset

from penstock_airflow.connections import CONNECTION_TYPE
from penstock_airflow.hooks import DEFAULT_CONNECTION

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context


def table_asset(table: str, *, conn_id: str = DEFAULT_CONNECTION) -> Asset:
    """The asset of a table. The connection is part of its identity: two workspaces may have tables of the same name.

    >>> table_asset("demo.campaign_daily").uri
    'penstock://penstock_default/demo.campaign_daily'
    """
    return Asset(f"{CONNECTION_TYPE}://{conn_id}/{table}")


def table_of(asset: object, conn_id: str) -> str | None:
    """The table of an asset of this connection; None for all other assets."""
    if not isinstance(asset, Asset):
        return None
    parts = urlsplit(asset.uri)
    is_table = parts.scheme == CONNECTION_TYPE and parts.netloc == conn_id
    return parts.path.strip("/") if is_table else None


def emit_days(
    operator: BaseOperator,
    context: Context,
    conn_id: str,
    days: Mapping[str, Iterable[str]],
    facts: Mapping[str, Any],
) -> dict[str, list[str]]:
    """Emit an asset event for each day of each table among the outlets of a task, with the day as partition key.
    Returns the days by table.

    Airflow emits an event without a partition key for an outlet without keys. An outlet whose table has no days is
    therefore removed from the outlets of this task instance, and gets no event.
    """
    emitted: dict[str, list[str]] = {}
    kept = []
    for asset in operator.outlets:
        table = table_of(asset, conn_id)
        if table is not None and (found := sorted(days.get(table, ()))):
            emitted[table] = found
            accessor = context["outlet_events"][asset]
            accessor.extra.update(facts)
            accessor.add_partitions(found)
        if table is None or table in emitted:
            kept.append(asset)
    operator.outlets = kept
    return emitted
