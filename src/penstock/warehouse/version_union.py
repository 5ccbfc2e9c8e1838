"""Unifies the columns of several schema versions, or raises the error that names incompatible columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from penstock.errors import UsageError, WarehouseError

_NAMES = {pa.int64(): "long", pa.float64(): "double", pa.bool_(): "boolean", pa.date32(): "date"}


class VersionsConflict(WarehouseError, UsageError):
    """A column has incompatible types in two schema versions. Arguments: the table, and by column its type in each
    version."""

    remedy = "Read one version with `--schema-version`."

    def __init__(self, asset: str, columns: Mapping[str, Mapping[str, str]]) -> None:
        super().__init__(asset, columns)

    @property
    def versions(self) -> list[str]:
        return sorted({version for types in self.args[1].values() for version in types})

    def __str__(self) -> str:
        asset, columns = self.args
        found = self.versions
        types = "; ".join(
            f"{name} is {' and '.join(f'{kind} in {version}' for version, kind in sorted(types.items()))}"
            for name, types in sorted(columns.items())
        )
        return (
            f"{asset}: its schema versions {' and '.join(found)} cannot be read as one table ({types}). Read one of"
            f" them (`penstock read {asset} --schema-version {found[-1]}`, `penstock sql --schema-version"
            f' {asset}={found[-1]}`, schema_version="{found[-1]}" in Python and Spark), choose other columns, or move'
            f" the older partitions: `penstock backfill create --query {asset.partition('.')[2]} --schema-version"
            f" {found[0]}`"
        )


def unified(asset: str, versions: Sequence[tuple[str, pa.Schema]]) -> pa.Schema:
    """One schema with the columns of all versions, each of a type that can represent the values of all. Raises
    VersionsConflict."""
    try:
        return _unified(columns for _, columns in versions)
    except pa.ArrowException as error:
        raise VersionsConflict(asset, _conflicts(versions)) from error


def fitting(columns: pa.Schema, others: Iterable[pa.Schema]) -> pa.Schema:
    """The columns, unified with every compatible schema of `others`. Ignores incompatible schemas."""
    for other in others:
        try:
            columns = _unified([columns, other])
        except pa.ArrowException:
            continue
    return columns


def _unified(schemas: Iterable[pa.Schema]) -> pa.Schema:
    return pa.unify_schemas(list(schemas), promote_options="permissive")


def _conflicts(versions: Sequence[tuple[str, pa.Schema]]) -> dict[str, dict[str, str]]:
    """The columns that have no common type, with their type in each version."""
    found = {}
    for name in dict.fromkeys(name for _, columns in versions for name in columns.names):
        mine = {version: columns.field(name) for version, columns in versions if name in columns.names}
        try:
            _unified(pa.schema([field]) for field in mine.values())
        except pa.ArrowException:
            found[name] = {version: _NAMES.get(field.type, str(field.type)) for version, field in mine.items()}
    return found
