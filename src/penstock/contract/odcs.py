"""Converts contracts to documents of the Open Data Contract Standard and back.

Export uses the standard's own terms where they exist and custom properties for the rest, so that a contract survives
export and import unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock.config.assets import Query, query_to_mapping
from penstock.config.checks import Check, CheckKind, Field
from penstock.contract.checks.base import ENGINE
from penstock.contract.checks.registry import bind, check_class
from penstock.errors import ConfigError
from penstock.field_types import ArrayOf, DecimalOf, Kind, Simple, StructOf, kind_of

VERSION = "v3.1.0"
KIND = "DataContract"

_LOGICAL = {
    "long": "integer",
    "double": "number",
    "string": "string",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp",
}
_FROM_LOGICAL = {name: kind for kind, name in _LOGICAL.items()}
_SEVERITIES = {"reject": "error", "warn": "warning"}
# Keys of a query that the standard has terms for; the other keys become a custom property.
_STANDARD = ("schema_version", "freshness", "fields", "checks")


def is_odcs(document: Any) -> bool:
    return isinstance(document, Mapping) and document.get("kind") == KIND and "apiVersion" in document


def to_odcs(query: Query) -> dict[str, Any]:
    """Return the contract of the query as a document of the standard."""
    written = query_to_mapping(query)
    table = {
        "name": query.name,
        "physicalName": f"{query.source}.{query.name}",
        "physicalType": "table",
        "logicalType": "object",
        "properties": [_property(field) for field in query.fields],
    }
    if query.checks:
        table["quality"] = [_quality(check) for check in query.checks]
    document: dict[str, Any] = {
        "apiVersion": VERSION,
        "kind": KIND,
        "id": f"{query.source}.{query.name}",
        "name": query.name,
        "version": query.schema_version,
        "status": "active",
        "schema": [table],
        "customProperties": [_custom("query", {k: v for k, v in written.items() if k not in _STANDARD})],
    }
    freshness = dict(written.get("freshness", {}))
    if lag := freshness.pop("max_lag", None):
        document["slaProperties"] = [{"property": "latency", "value": int(lag[:-1]), "unit": lag[-1]}]
    if freshness:  # the standard has no deadline with a time zone and a share
        document["customProperties"].append(_custom("deadline", freshness))
    return document


def _custom(name: str, value: Any) -> dict[str, Any]:
    return {"property": f"{ENGINE}{name.capitalize()}", "value": value}


def _property(field: Field) -> dict[str, Any]:
    body = {"name": field.name, **_described(kind_of(field.type))}
    if field.required:
        body["required"] = True
    if field.default is not None:
        body["customProperties"] = [_custom("default", field.default)]
    return body


def _described(kind: Kind) -> dict[str, Any]:
    match kind:
        case Simple(name):
            return {"logicalType": _LOGICAL[name], "physicalType": name}
        case DecimalOf():
            return {"logicalType": "number", "physicalType": str(kind)}
        case ArrayOf(element):
            return {"logicalType": "array", "physicalType": str(kind), "items": _described(element)}
        case StructOf(members):
            inside = [{"name": name, **_described(member)} for name, member in members]
            return {"logicalType": "object", "physicalType": str(kind), "properties": inside}


def _quality(check: Check) -> dict[str, Any]:
    body = bind(check).to_odcs()
    if check.name is not None:
        body["name"] = check.name
    return {**body, "severity": _SEVERITIES[check.severity]}


def from_odcs(document: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the `queries` section that the document describes, and notes on what cannot be expressed in it. Raises
    ConfigError if the document has no tables."""
    tables = document.get("schema")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, Mapping) for table in tables):
        raise ConfigError("the data contract has no schema, so there are no queries to import")
    notes: list[str] = []
    ours, deadline = _map(_ours(document, "query")), _map(_ours(document, "deadline"))
    latency = [sla for sla in _maps(document.get("slaProperties")) if sla.get("property") == "latency"]
    queries = {}
    for table in tables:
        name = str(table.get("name"))
        reading = _Table(name, notes)
        body = {"source": _source(table), **ours}
        if "version" in document:
            body["schema_version"] = _version(str(document["version"]))
        body["fields"] = [reading.field(item) for item in _maps(table.get("properties"))]
        checks = [*reading.property_checks(table), *reading.checks(table.get("quality"))]
        if checks:
            body["checks"] = checks
        lag = _lag(latency[0]) if latency else None
        if lag or deadline:
            body["freshness"] = {**({"max_lag": lag} if lag else {}), **deadline}
        queries[name] = body
    return queries, notes


def _ours(owner: Mapping[str, Any], name: str) -> Any:
    """Return the value of a custom property that `to_odcs` wrote."""
    wanted = _custom(name, None)["property"]
    return next(
        (item.get("value") for item in _maps(owner.get("customProperties")) if item.get("property") == wanted), None
    )


def _maps(items: Any) -> list[Mapping[str, Any]]:
    return [item for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _source(table: Mapping[str, Any]) -> str:
    return str(table.get("physicalName") or "").rpartition(".")[0] or "source"


def _version(text: str) -> str:
    """Turn a version such as 1.0.0 into a valid name: v1_0_0."""
    plain = text.lower().replace(".", "_").replace("-", "_")
    return plain if plain[:1].isalpha() else f"v{plain}"


def _lag(sla: Mapping[str, Any]) -> str | None:
    unit = str(sla.get("unit", "")).lower()[:1]
    return f"{sla['value']}{unit}" if isinstance(sla.get("value"), int) and unit in ("s", "m", "h", "d") else None


class _Table:
    """Converts one table of a document into the keys of a query."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self._name = name
        self._notes = notes

    def field(self, item: Mapping[str, Any]) -> dict[str, Any]:
        body: dict[str, Any] = {"name": item.get("name"), "type": self._type(item, str(item.get("name")))}
        if item.get("required"):
            body["required"] = True
        if (default := _ours(item, "default")) is not None:
            body["default"] = default
        return body

    def _type(self, item: Mapping[str, Any], path: str) -> str:
        try:
            return str(kind_of(str(item.get("physicalType", "")).lower()))
        except ValueError:
            pass  # the type of another system: fall back to the logical type
        logical = item.get("logicalType")
        if logical == "array":
            return f"array<{self._type(_map(item.get('items')), f'{path}[]')}>"
        if logical == "object" and (inside := _maps(item.get("properties"))):
            members = (f"{part.get('name')}: {self._type(part, path + '.' + str(part.get('name')))}" for part in inside)
            return f"struct<{', '.join(members)}>"
        if logical not in _FROM_LOGICAL:
            self._notes.append(f"{self._name}.{path}: the type {logical} has no counterpart, string is a guess")
        return _FROM_LOGICAL.get(str(logical), "string")

    def property_checks(self, table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the checks that follow from attributes of properties."""
        items = _maps(table.get("properties"))
        keys = sorted(
            (item for item in items if item.get("primaryKey")), key=lambda item: item.get("primaryKeyPosition") or 0
        )
        if keys:
            yield {CheckKind.UNIQUE.value: [item.get("name") for item in keys]}
        for item in items:
            found = (check_class(kind).from_odcs_property(item) for kind in CheckKind)
            yield from (check for check in found if check is not None)
            yield from self.checks(item.get("quality"), str(item.get("name")))

    def checks(self, rules: Any, field: str | None = None) -> Iterator[dict[str, Any]]:
        for rule in _maps(rules):
            check = _check(rule, field)
            if check is None:
                label = rule.get("name") or rule.get("description") or rule.get("metric") or rule.get("type")
                self._notes.append(f"{self._name}: the quality rule {label!r} has no counterpart and was left out")
                continue
            if rule.get("name"):
                check["name"] = rule["name"]
            if rule.get("severity") in ("warning", "warn", "info"):
                check["severity"] = "warn"
            yield check


def _check(rule: Mapping[str, Any], field: str | None) -> dict[str, Any] | None:
    implementation = rule.get("implementation")
    if rule.get("engine") == ENGINE and isinstance(implementation, Mapping):
        return dict(implementation)
    found = (check_class(kind).from_odcs(rule, field) for kind in CheckKind)
    return next((check for check in found if check is not None), None)
