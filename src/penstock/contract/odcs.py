"""Contracts as documents of the Open Data Contract Standard, and back.

What the standard has words for is said in them; the rest stands in custom properties, so that nothing gets lost on the
way there and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from penstock.config.assets import Query, query_to_mapping
from penstock.config.checks import Allowed, Check, Field, Required, Rows, Unique, check_to_mapping
from penstock.errors import ConfigError
from penstock.field_types import ArrayOf, DecimalOf, Kind, Simple, StructOf, kind_of

VERSION = "v3.1.0"
KIND = "DataContract"
_OURS = "penstock"

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
# Said in words of the standard; everything else that a query says is a custom property.
_STANDARD = ("schema_version", "freshness", "fields", "checks")


def is_odcs(document: Any) -> bool:
    return isinstance(document, Mapping) and document.get("kind") == KIND and "apiVersion" in document


def to_odcs(query: Query) -> dict[str, Any]:
    """The document that says what the query promises."""
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
    document = {
        "apiVersion": VERSION,
        "kind": KIND,
        "id": f"{query.source}.{query.name}",
        "name": query.name,
        "version": query.schema_version,
        "status": "active",
        "schema": [table],
        "customProperties": [_custom("query", {k: v for k, v in written.items() if k not in _STANDARD})],
    }
    if query.freshness is not None:
        lag = written["freshness"]["max_lag"]
        document["slaProperties"] = [{"property": "latency", "value": int(lag[:-1]), "unit": lag[-1]}]
    return document


def _custom(name: str, value: Any) -> dict[str, Any]:
    return {"property": f"{_OURS}{name.capitalize()}", "value": value}


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
    body = _rule(check)
    if check.name is not None:
        body["name"] = check.name
    return {**body, "severity": _SEVERITIES[check.severity]}


def _rule(check: Check) -> dict[str, Any]:
    match check:
        case Unique():
            return {**_library("duplicateValues", properties=list(check.fields)), "mustBe": 0}
        case Required():
            return {**_library("nullValues", properties=list(check.fields)), "mustBe": 0}
        case Allowed():
            return {**_library("invalidValues", property=check.field, validValues=list(check.values)), "mustBe": 0}
        case Rows():
            return {"type": "library", "metric": "rowCount", **_bounds(check)}
        case _:
            spelled = {kind: body for kind, body in check_to_mapping(check).items() if kind == check.kind}
            return {"type": "custom", "engine": _OURS, "implementation": spelled}


def _library(metric: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "library", "metric": metric, "arguments": arguments}


def _bounds(check: Rows) -> dict[str, Any]:
    if check.min is None:
        return {"mustBeLessOrEqualTo": check.max}
    if check.max is None:
        return {"mustBeGreaterOrEqualTo": check.min}
    return {"mustBe": check.min} if check.min == check.max else {"mustBeBetween": [check.min, check.max]}


def from_odcs(document: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """What a workspace file would say under `queries`, and notes on what has no counterpart here."""
    tables = document.get("schema")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, Mapping) for table in tables):
        raise ConfigError("the data contract has no schema: there is nothing to make queries of")
    notes: list[str] = []
    ours = _map(_ours(document, "query"))
    latency = [sla for sla in _maps(document.get("slaProperties")) if sla.get("property") == "latency"]
    queries = {}
    for table in tables:
        name = str(table.get("name"))
        reading = _Table(name, notes)
        body = {"source": _source(table), **ours}
        if "version" in document:
            body["schema_version"] = _version(str(document["version"]))
        body["fields"] = [reading.field(item) for item in _maps(table.get("properties"))]
        checks = [*reading.promises(table), *reading.checks(table.get("quality"))]
        if checks:
            body["checks"] = checks
        if latency and (lag := _lag(latency[0])):
            body["freshness"] = {"max_lag": lag}
        queries[name] = body
    return queries, notes


def _ours(owner: Mapping[str, Any], name: str) -> Any:
    """What we once wrote into a custom property."""
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
    """A version such as 1.0.0 as a name: v1_0_0."""
    plain = text.lower().replace(".", "_").replace("-", "_")
    return plain if plain[:1].isalpha() else f"v{plain}"


def _lag(sla: Mapping[str, Any]) -> str | None:
    unit = str(sla.get("unit", "")).lower()[:1]
    return f"{sla['value']}{unit}" if isinstance(sla.get("value"), int) and unit in ("s", "m", "h", "d") else None


class _Table:
    """One table of a document, read into the words of a query."""

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
            pass  # the type of some other system; its logical type must do
        logical = item.get("logicalType")
        if logical == "array":
            return f"array<{self._type(_map(item.get('items')), f'{path}[]')}>"
        if logical == "object" and (inside := _maps(item.get("properties"))):
            members = (f"{part.get('name')}: {self._type(part, path + '.' + str(part.get('name')))}" for part in inside)
            return f"struct<{', '.join(members)}>"
        if logical not in _FROM_LOGICAL:
            self._notes.append(f"{self._name}.{path}: the type {logical} has no counterpart, string is a guess")
        return _FROM_LOGICAL.get(str(logical), "string")

    def promises(self, table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """What properties say about themselves."""
        items = _maps(table.get("properties"))
        keys = sorted(
            (item for item in items if item.get("primaryKey")), key=lambda item: item.get("primaryKeyPosition") or 0
        )
        if keys:
            yield {"unique": [item.get("name") for item in keys]}
        for item in items:
            name, options = item.get("name"), _map(item.get("logicalTypeOptions"))
            if item.get("unique"):
                yield {"unique": [name]}
            bounds = {
                ours: options[theirs] for ours, theirs in (("min", "minimum"), ("max", "maximum")) if theirs in options
            }
            if bounds:
                yield {"range": {"field": name, **bounds}}
            if values := [value["value"] for value in _maps(item.get("enum")) if "value" in value]:
                yield {"allowed": {"field": name, "values": values}}
            yield from self.checks(item.get("quality"), str(name))

    def checks(self, rules: Any, field: str | None = None) -> Iterator[dict[str, Any]]:
        for rule in _maps(rules):
            check = _check(rule, field)
            if check is None:
                said = rule.get("name") or rule.get("description") or rule.get("metric") or rule.get("type")
                self._notes.append(f"{self._name}: the quality rule {said!r} has no counterpart and was left out")
                continue
            if rule.get("name"):
                check["name"] = rule["name"]
            if rule.get("severity") in ("warning", "warn", "info"):
                check["severity"] = "warn"
            yield check


def _check(rule: Mapping[str, Any], field: str | None) -> dict[str, Any] | None:
    implementation = rule.get("implementation")
    if rule.get("engine") == _OURS and isinstance(implementation, Mapping):
        return dict(implementation)
    metric, arguments = rule.get("metric") or rule.get("rule"), _map(rule.get("arguments"))
    if metric == "rowCount":
        return _row_count(rule)
    if rule.get("mustBe") != 0:  # shares and other limits of such rules are not what our checks say
        return None
    fields = arguments.get("properties") or ([field] if field else None)
    valid = arguments.get("validValues")
    match metric:
        case "duplicateValues" if fields:
            return {"unique": list(fields)}
        case "nullValues" if fields:
            return {"required": list(fields)}
        case "invalidValues" if valid and (field or arguments.get("property")):
            return {"allowed": {"field": arguments.get("property") or field, "values": list(valid)}}
    return None


def _row_count(rule: Mapping[str, Any]) -> dict[str, Any] | None:
    bounds: dict[str, Any] = {}
    for word, ours, change in _ROW_BOUNDS:
        if isinstance(rule.get(word), int):
            bounds |= dict.fromkeys(ours, rule[word] + change)
    between = rule.get("mustBeBetween")
    if isinstance(between, list):
        bounds = dict(zip(("min", "max"), between, strict=False))
    return {"rows": bounds} if bounds else None


_ROW_BOUNDS: Iterable[tuple[str, tuple[str, ...], int]] = (
    ("mustBe", ("min", "max"), 0),
    ("mustBeGreaterOrEqualTo", ("min",), 0),
    ("mustBeGreaterThan", ("min",), 1),
    ("mustBeLessOrEqualTo", ("max",), 0),
    ("mustBeLessThan", ("max",), -1),
)
