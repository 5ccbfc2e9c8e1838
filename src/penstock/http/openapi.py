"""The OpenAPI document, made from the route table and the models of the documents."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from penstock import __version__
from penstock.http.parameters import Parameter
from penstock.http.problems import MEDIA_TYPE
from penstock.http.routes import Access, Route, api_routes
from penstock.views.document import Document, encode
from penstock.views.openapi import openapi_document

_REF = "#/components/schemas/{model}"
_ERRORS = {
    "400": "The request is not valid.",
    "401": "There is no valid token or session.",
    "403": "The role does not allow the request, or another site sent it.",
    "404": "The resource does not exist.",
    "408": "The body did not arrive in time.",
    "409": "The state does not allow the action, or it changed.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "422": "The Idempotency-Key belongs to another request.",
    "429": "Too many logins failed.",
    "500": "The server failed, or is not configured.",
    "503": "The server cannot serve the request now.",
}


@cache
def openapi_content() -> bytes:
    """The document as JSON."""
    return encode(openapi(), indent=True)


@cache
def openapi() -> Document:
    """The document of all routes of the API."""
    from penstock.http.schemas.base import Problem

    schemas: dict[str, Any] = {}
    problem = _schema(Problem, schemas)
    paths: dict[str, Any] = {}
    for route in api_routes():
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas, problem)
    return openapi_document(__version__, paths, dict(sorted(schemas.items())))


def _operation(route: Route, schemas: dict[str, Any], problem: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", route.handler.__name__),
        "tags": [route.handler.__module__.rpartition(".")[2]],
        "summary": route.summary,
        "description": " ".join((route.handler.__doc__ or route.summary).split()),
        "x-role": route.access.value,
        "security": [] if route.access is Access.PUBLIC else [{"token": []}, {"session": []}],
        "parameters": [_parameter(parameter) for parameter in route.parameters],
        "responses": _responses(route, schemas, problem),
    }
    if route.body is not None:
        schema = _schema(route.body, schemas)
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if route.is_unsafe and route.keeps_response:
        operation["parameters"].append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "A repeated request with the same key is executed once; its response is kept for a day.",
                "required": False,
                "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"},
            }
        )
    return operation


def _responses(route: Route, schemas: dict[str, Any], problem: dict[str, Any]) -> dict[str, Any]:
    if isinstance(route.response, str):
        is_json = route.response == "application/json"
        content = {
            route.response: {"schema": {"type": "object"} if is_json else {"type": "string", "format": "binary"}}
        }
    else:
        content = {"application/json": {"schema": _schema(route.response, schemas)}}
    found: dict[str, Any] = {str(route.status): {"description": route.summary, "content": content}}
    if not route.is_unsafe:
        found["304"] = {"description": "The caller has this version: it sent its ETag in If-None-Match."}
    for status, meaning in _ERRORS.items():
        found[status] = {"description": meaning, "content": {MEDIA_TYPE: {"schema": problem}}}
    return found


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "minLength": 1}
    match parameter.kind:
        case "number":
            schema = {"type": "integer", "minimum": parameter.least, "maximum": parameter.most}
            if parameter.default is not None:
                schema["default"] = parameter.default
        case "day":
            schema = {"type": "string", "format": "date"}
        case "flag":
            schema = {"type": "boolean"}
        case "text":
            if parameter.values:
                schema = {"type": "string", "enum": list(parameter.values)}
            if parameter.pattern:
                schema = {"type": "string", "pattern": parameter.pattern}
    found = {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.meaning,
        "required": parameter.required,
        "schema": {"type": "array", "items": schema} if parameter.repeats else schema,
    }
    return found | ({"explode": True, "style": "form"} if parameter.repeats else {})


def _schema(model: type[Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """A reference to the schema of a model, which is added to `schemas` with those that it uses."""
    made = model.model_json_schema(ref_template=_REF, mode="validation")
    for name, inner in made.pop("$defs", {}).items():
        schemas[name] = inner
    schemas[model.__name__] = made
    return {"$ref": _REF.format(model=model.__name__)}
