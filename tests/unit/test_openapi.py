"""The OpenAPI document: a golden file, complete, and valid for tools that read it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.http.openapi import openapi_content
from penstock.http.parameters import FILTERS, Parameter, parse_query, selection_of
from penstock.http.routes import Access, Route, api_routes

GOLDEN = Path(__file__).parent / "golden_openapi.json"
DOCUMENT: dict[str, Any] = json.loads(openapi_content())


def test_the_document_is_the_golden_one() -> None:
    """Scripts and clients depend on it. After a deliberate change, write the new document to the golden file."""
    assert json.loads(GOLDEN.read_text()) == DOCUMENT


def operation(route: Route) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["paths"][route.path][route.method.lower()]
    return found


@pytest.mark.parametrize("route", api_routes(), ids=lambda route: route.name)
def test_every_route_is_described_with_its_role_parameters_and_errors(route: Route) -> None:
    found = operation(route)
    assert found["x-role"] == route.access
    assert found["security"] == ([] if route.access is Access.PUBLIC else [{"token": []}, {"session": []}])
    named = {(one["name"], one["in"]) for one in found["parameters"] if one["in"] != "header"}
    assert named == {(one.name, one.place) for one in route.parameters}
    in_path = set(re.findall(r"\{(\w+)\}", route.path))
    assert in_path == {one.name for one in route.parameters if one.place == "path"}
    assert str(route.status) in found["responses"]
    assert {"400", "401", "403", "409", "413", "500", "503"} <= set(found["responses"])
    assert ("requestBody" in found) == (route.body is not None)
    assert found["description"].endswith(".")


def test_operations_have_unique_names_and_every_reference_exists() -> None:
    names = [operation(route)["operationId"] for route in api_routes()]
    assert len(set(names)) == len(names)
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(DOCUMENT)))
    assert references <= set(DOCUMENT["components"]["schemas"])
    assert len(references) > 30


def test_responses_and_bodies_have_no_undeclared_fields() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    objects = {name: schema for name, schema in schemas.items() if schema.get("type") == "object"}
    assert {name for name, schema in objects.items() if schema.get("additionalProperties") is not False} == set()


@pytest.mark.parametrize(
    ("parameter", "text"),
    [
        (Parameter("n", "", "number", least=1, most=5), "6"),
        (Parameter("n", "", "number", least=1, most=5), "0"),
        (Parameter("n", "", "number"), "-1"),
        (Parameter("n", "", "number"), "1e3"),
        (Parameter("n", "", "number"), "٣"),
        (Parameter("n", "", "number"), "9" * 30),
        (Parameter("d", "", "day"), "2024-13-01"),
        (Parameter("f", "", "flag"), "yes"),
        (Parameter("t", "", values=("a", "b")), "c"),
        (Parameter("t", ""), ""),
        (Parameter("t", ""), "a\x00b"),
    ],
)
def test_malformed_parameters_are_refused(parameter: Parameter, text: str) -> None:
    with pytest.raises(UsageError, match=parameter.name):
        parse_query([parameter], [(parameter.name, text)])


def test_parameters_have_defaults_and_may_repeat() -> None:
    declared = [
        Parameter("n", "", "number", default=7),
        Parameter("many", "", repeats=True),
        Parameter("f", "", "flag"),
        Parameter("needed", "it is", required=True),
    ]
    found = parse_query(declared, [("many", "a"), ("many", "b"), ("f", "true"), ("needed", "x")])
    assert found == {"n": 7, "many": ("a", "b"), "f": True, "needed": "x"}
    with pytest.raises(UsageError, match="needed is missing"):
        parse_query(declared, [])
    with pytest.raises(UsageError, match="n is given 2 times"):
        parse_query(declared, [("n", "1"), ("n", "2"), ("needed", "x")])
    with pytest.raises(UsageError, match="unknown parameter 'other'"):
        parse_query(declared, [("other", "1"), ("needed", "x")])


def test_filters_are_those_of_the_command_line() -> None:
    asked = [("customer", "100-000-0001"), ("query", "campaign_daily"), ("date", "2024-06-01"), ("status", "failed")]
    chosen = selection_of(parse_query(FILTERS, asked))
    assert chosen.as_dict() == {
        "customers": ["1000000001"],
        "queries": ["campaign_daily"],
        "since": "2024-06-01",
        "until": "2024-06-01",
        "status": "failed",
    }
