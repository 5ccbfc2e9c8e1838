"""The `sources.yml` of dbt: one source for each source of the workspace, one table for each query and model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.views.document import Document, listing

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.app.dbt import DbtTable
    from penstock.config.freshness import Freshness

_MINUTE = timedelta(minutes=1)
_PERIODS = (("day", timedelta(days=1)), ("hour", timedelta(hours=1)), ("minute", _MINUTE))  # dbt has no seconds

_COLUMNS = {
    "customer_id": "The customer of the partition; `all` in a model per date.",
    "logical_date": "The day of the partition, as the source defines it.",
    "_run_id": "The run that the rows of the partition come from.",
    "schema_version": "The schema version of the row.",
    "_extra": "The fields that the contract does not declare, as JSON.",
}


def dbt_sources(
    tables: Sequence[DbtTable], lake: str, workspace: str, zones: Collection[str], prefix: str = ""
) -> dict[str, Any]:
    """The content of `sources.yml`. `lake` is the address of the lake for dbt: a folder, a URL or a Jinja expression;
    `zones` are the time zones of the customers."""
    sources: dict[str, list[dict[str, Any]]] = {}
    for table in tables:
        sources.setdefault(table.contract.source, []).append(_table(table, lake.rstrip("/"), zones))
    return {
        "version": 2,
        "sources": [
            {
                "name": f"{prefix}{name}",
                "description": f"Tables of {name} in the Penstock workspace {workspace}.",
                "tables": found,
            }
            for name, found in sources.items()
        ],
    }


def dbt_document(tables: Sequence[DbtTable], sources: Mapping[str, Any], output: Path, changed: bool) -> Document:
    """The tables in the file that `penstock dbt sources` wrote, and whether it differs from the file before."""
    described = [(source["name"], one) for source in sources["sources"] for one in source["tables"]]
    items = [
        {
            "source": source,
            "name": one["name"],
            "table": table.contract.asset,
            "schema_versions": list(table.versions),
            "omitted_versions": list(table.omitted),
            "published": table.is_published,
            "freshness": one["config"].get("freshness"),
        }
        for table, (source, one) in zip(tables, described, strict=True)
    ]
    return Document({"output": str(output), "changed": changed, **listing(items, len(items))})


def _table(table: DbtTable, lake: str, zones: Collection[str]) -> dict[str, Any]:
    contract, required = table.contract, {field.name for field in table.contract.fields if field.required}
    config: dict[str, Any] = {
        "meta": {
            "penstock": {"table": contract.asset, "schema_version": contract.schema_version},
            "external_location": _location(table, lake),
        },
        "loaded_at_query": _loaded_at(contract.asset, lake),
    }
    if freshness := _freshness(table.asset.freshness, zones):
        config["freshness"] = freshness
    return {
        "name": contract.query_name,
        "description": _description(table),
        "config": config,
        "columns": [_column(name, kind, name in required) for name, kind in table.columns],
    }


def _description(table: DbtTable) -> str:
    from penstock.config.assets import Model

    asset, name = table.asset, table.contract.asset
    if isinstance(asset, Model):
        each = "customer and day" if asset.per_customer else "day"
        return f"The accepted rows of {name}, one run of each {each}. Derived from {', '.join(asset.depends_on)}."
    return f"The accepted rows of {name}, one run of each customer and day."


def _column(name: str, kind: str, required: bool) -> dict[str, str]:
    from penstock.contract.schema import duckdb_type

    description = _COLUMNS.get(name) or ("Never null." if required else "")
    return {"name": name, "data_type": duckdb_type(kind)} | ({"description": description} if description else {})


def _location(table: DbtTable, lake: str) -> str:
    """The relation that dbt-duckdb reads: the columns that `penstock read` returns, all versions by name."""
    from penstock.warehouse.layout import MONTH, location

    contract = table.contract
    scans = {v: _quoted(lake, location(contract.source, contract.query_name, v)) for v in table.versions}
    selects = [
        f"SELECT * EXCLUDE ({MONTH}), '{version}' AS schema_version FROM delta_scan({path})"  # noqa: S608 - names and a quoted path
        for version, path in scans.items()
    ]
    return f"({' UNION ALL BY NAME '.join(selects)})"


def _loaded_at(asset: str, lake: str) -> str:
    from penstock.projections.manifest import PARTITION_STATUS

    file = _quoted(lake, PARTITION_STATUS)
    where = f"asset_key = '{asset}' AND available"
    return f"SELECT max(published_at) FROM read_parquet({file}) WHERE {where}"  # noqa: S608 - names and a quoted path


def _quoted(lake: str, path: str) -> str:
    """The path as a text of SQL. A Jinja expression stays as it is: dbt replaces it before DuckDB parses the text."""
    root = lake if "{{" in lake else lake.replace("'", "''")
    return f"'{root}/{path}'"


def _freshness(declared: Freshness | None, zones: Collection[str]) -> dict[str, Any]:
    """`max_lag` as a warning, because a stale partition can be read; the deadline as an error, because it is missed for
    certain when the newest publication is older than the time between two deadlines allows."""
    from penstock.control.deadlines import Deadline

    if declared is None:
        return {}
    found = {} if declared.max_lag is None else {"warn_after": _threshold(declared.max_lag)}
    if (deadline := Deadline.of(declared)) is not None:
        found["error_after"] = _threshold(deadline.longest_pause(zones))
    return found


def _threshold(span: timedelta) -> dict[str, Any]:
    """A duration as dbt writes it: whole days, hours or minutes, rounded up to minutes."""
    rounded = -(-span // _MINUTE) * _MINUTE
    name, unit = next((name, unit) for name, unit in _PERIODS if not rounded % unit)
    return {"count": rounded // unit, "period": name}
