"""Generated requests against the OpenAPI document: no request makes the server fail, and every response is declared."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from penstock.http.application import make_application
from penstock.http.openapi import openapi_content
from penstock.http.routes import api_routes
from support import builders
from support.api import bearer
from support.harness import Harness
from support.workspaces import key

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def operation(document: Any, name: str) -> Any:
    method, path = name.split(" ", 1)
    return document[path][method]


@pytest.fixture(scope="module")
def document() -> Iterator[Any]:
    """The OpenAPI document with an application over a workspace, called with the token of an admin."""
    with builders.quick_folder() as folder:
        made = Harness(Path(folder))
        made.deliver({key(1): 1})
        made.publish()
        _, token = made.workspace.tokens.create("fuzz", "admin", actor="ada")
        loaded = schemathesis.openapi.from_dict(json.loads(openapi_content()))
        loaded.app = make_application(made.workspace, made.workspace.context.workers.register())
        loaded.config.update(base_url="http://127.0.0.1:8321", headers=bearer(token))
        yield loaded
        made.workspace.close()


@pytest.mark.parametrize("name", [route.name for route in api_routes()])
def test_no_generated_request_makes_the_server_fail(document: Any, name: str) -> None:
    found: Counter[int] = Counter()

    @settings(
        max_examples=20,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation(document, name).as_strategy())
    def try_requests(case: Any) -> None:
        found[case.call_and_validate(checks=CHECKS).status_code] += 1

    try_requests()
    assert sum(found.values()) >= 1
