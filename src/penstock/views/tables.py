"""Document of the tables of a workspace: their schemas, and the schema versions that are published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

from penstock.views.document import Document, listing

if TYPE_CHECKING:
    from penstock.config.assets import Model
    from penstock.contract.contract import Contract
    from penstock.warehouse.heads import TableHead


def tables_document(
    contracts: Sequence[Contract],
    heads: Sequence[tuple[str, TableHead]],
    settled: Mapping[str, date | None],
    expected: Mapping[str, date],
    models: Mapping[str, Model],
) -> Document:
    """Every table with its current fields, its published versions and, for a model, its inputs. `first_expected` is the
    first day that has a partition, None before a day is over. Days after `settled_until` are provisional."""
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
            "first_expected": expected.get(contract.asset),
            "settled_until": settled.get(contract.asset),
            "inputs": _inputs(models.get(contract.asset)),
        }
        for contract in sorted(contracts, key=lambda contract: contract.asset)
    ]
    return listing(items, len(items))


def _inputs(model: Model | None) -> list[dict[str, Any]]:
    """The tables that a model reads, each with the number of days that one partition needs of it."""
    return [{"table": table, "days": model.needs} for table in sorted(model.depends_on)] if model else []
