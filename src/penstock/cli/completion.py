"""Shell completion of option values from the workspace file. Without a readable workspace it offers nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from penstock.errors import PenstockError
from penstock.lifecycle import PartitionStatus

if TYPE_CHECKING:
    from penstock.config.settings import Settings


def sources(context: typer.Context, incomplete: str) -> list[str]:
    found = _settings(context)
    return _starting_with(found.sources, incomplete) if found else []


def queries(context: typer.Context, incomplete: str) -> list[str]:
    found = _settings(context)
    return _starting_with([*found.queries, *found.models], incomplete) if found else []


def customers(context: typer.Context, incomplete: str) -> list[str]:
    found = _settings(context)
    return _starting_with((customer.id for customer in found.customers), incomplete) if found else []


def tables(context: typer.Context, incomplete: str) -> list[str]:
    found = _settings(context)
    if found is None:
        return []
    fetched = (f"{query.source}.{name}" for name, query in found.queries.items())
    return _starting_with([*fetched, *(f"models.{name}" for name in found.models)], incomplete)


def statuses(incomplete: str) -> list[str]:
    return _starting_with(PartitionStatus, incomplete)


def _settings(context: typer.Context) -> Settings | None:
    from penstock.app import load_workspace

    try:
        return load_workspace(context.params.get("workspace") or ".").settings
    except (PenstockError, OSError):
        return None


def _starting_with(names: Iterable[str], incomplete: str) -> list[str]:
    return [str(name) for name in names if name.startswith(incomplete)]
