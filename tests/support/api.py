"""The HTTP API in the process of a test: real routes, services and stores, without a socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jsonschema
from starlette.testclient import TestClient

from penstock.app import Workspace
from penstock.http.application import Limits, make_application
from penstock.http.openapi import openapi
from penstock.http.routes import Route, api_routes
from penstock.views.document import encode

ADDRESS = "http://127.0.0.1:8321"
ORIGIN = {"Origin": ADDRESS}


@contextmanager
def served(workspace: Workspace, *, limits: Limits = Limits(), **options: Any) -> Iterator[TestClient]:
    """A client of the application over this workspace."""
    token = "" if options.get("read_only") else workspace.context.workers.register()
    app = make_application(workspace, token, limits=limits, **options)
    with TestClient(app, base_url=ADDRESS, raise_server_exceptions=False) as client:
        yield client


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def problem(response: Any, status: int) -> str:
    """The detail of a problem document with this status."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    found = response.json()
    assert set(found) == {"type", "title", "status", "detail", "request_id"}
    assert found["status"] == status
    assert found["request_id"] == response.headers["x-request-id"]
    return str(found["detail"])


def route_named(name: str) -> Route:
    [found] = [route for route in api_routes() if route.name == name]
    return found


def check_response(route: Route, response: Any) -> None:
    """The document has exactly the fields that the OpenAPI document declares."""
    if isinstance(route.response, str):
        assert response.headers["content-type"] == route.response
        return
    document = json.loads(encode(openapi()))
    schema = {"$ref": f"#/components/schemas/{route.response.__name__}", "components": document["components"]}
    jsonschema.Draft202012Validator(schema).validate(response.json())
