"""Document of the tables of a workspace: their schemas, and the schema versions that are published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING

from penstock.views.document import Document, listing

if TYPE_CHECKING:
    from penstock.contract.contract import Contract
    from penstock.warehouse.heads import TableHead


def tables_document(
    contracts: Sequence[Contract], heads: Sequence[tuple[str, TableHead]], settled: Mapping[str, date | None]
) -> Document:
    """Every table with its current fields and its published versions. Days after `settled_until` are provisional."""
    items = [
        {
            "table": contract.asset,
            "kind": contract.kind,
            "schema_version": contract.schema_version,
            "fields": [{"name": field.name, "type": str(field.type)} for field in contract.fields],
            "versions": [
                {"table": head.name, "schema_version": head.schema_version, "version": head.version}
                for asset, head in heads
                if asset == contract.asset
            ],
            "settled_until": settled.get(contract.asset),
        }
        for contract in sorted(contracts, key=lambda contract: contract.asset)
    ]
    return listing(items, len(items))
