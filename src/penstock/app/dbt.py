"""The tables of a workspace as dbt reads them: their published schema versions and columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.app.context import Context
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.app.data import DataService
    from penstock.config.assets import Asset
    from penstock.contract.contract import Contract


@dataclass(frozen=True, slots=True)
class DbtTable:
    """A table with the schema versions that readers get as one table, and the columns of these versions."""

    contract: Contract
    asset: Asset
    versions: tuple[str, ...]  # the published ones; the version of the contract if nothing is published
    columns: tuple[tuple[str, str], ...]  # name and type, as a contract writes it
    is_published: bool
    omitted: tuple[str, ...] = ()  # published versions whose columns do not fit those of `versions`


class DbtService:
    """Describes the tables of a workspace for dbt. Starts no Spark and changes nothing."""

    def __init__(self, context: Context, data: DataService) -> None:
        self._context = context
        self._data = data

    def tables(self) -> list[DbtTable]:
        """Every query and model, by source and name. Raises WarehouseError for a table that is damaged.

        >>> [table.versions for table in ws.dbt.tables()]
        """
        assets = self._context.settings.assets
        contracts = sorted(self._context.contracts.values(), key=lambda contract: contract.asset)
        return [self._table(contract, assets[contract.query_name]) for contract in contracts]

    def lake(self) -> str:
        """The address of the lake for DuckDB. Raises UsageError for a folder whose name DuckDB takes for a pattern.

        >>> ws.dbt.lake()
        """
        lake = self._context.lake
        if not (lake.opens_by_path or lake.url.startswith("s3://")):
            raise UsageError(f"DuckDB takes the name of the lake {lake.url} for a pattern: give it another name")
        return lake.url

    def _table(self, contract: Contract, asset: Asset) -> DbtTable:
        from penstock.contract.schema import field_type
        from penstock.warehouse.version_union import VersionsConflict, unified

        rows = self._data.vouched(contract.asset)
        found = {version: one.schema for version, one in rows.versions.items()}
        chosen = tuple(found) or (contract.schema_version,)
        try:
            columns = unified(contract.asset, list(found.items())) if found else rows.schema
        except VersionsConflict:
            chosen = (contract.schema_version if contract.schema_version in found else chosen[-1],)
            columns = found[chosen[0]]
        types = tuple((field.name, field_type(field.type)) for field in columns)
        omitted = tuple(version for version in found if version not in chosen)
        return DbtTable(contract, asset, chosen, types, bool(found), omitted)
