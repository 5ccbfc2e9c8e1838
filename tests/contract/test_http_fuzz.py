"""Generated requests against the OpenAPI document: no request makes the server fail, and every response is declared."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from penstock.http.application import make_application
from penstock.http.openapi import openapi_content
from penstock.http.routes import PREFIX, Route, api_routes
from support import builders
from support.api import bearer
from support.console_site import ConsoleHouse, subjects_of

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
BODIES: dict[str, Any] = {
    f"POST {PREFIX}/runs": {"reason": "go"},
    f"POST {PREFIX}/orders": {"kind": "reconcile"},
    f"POST {PREFIX}/plans": {"act": "pause"},
    f"POST {PREFIX}/plans/{{token}}/apply": {},
    f"POST {PREFIX}/tokens": {"name": "new", "role": "viewer"},
}
REQUIRED = {"query": "campaign_daily", "table": ["demo.campaign_daily"]}


def operation(document: Any, name: str) -> Any:
    method, path = name.split(" ", 1)
    return document[path][method]


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """The OpenAPI document with an application over a workspace, called with the token of an admin."""

    document: Any
    subjects: Mapping[str, str]  # an existing resource for each parameter of a path
    token: str

    def existing(self, route: Route) -> dict[str, str]:
        """Parameters of the path that name something that exists."""
        names = [one.name for one in route.parameters if one.place == "path"]
        values = {**self.subjects, "name": "victim" if "/tokens" in route.path else self.subjects["name"]}
        return {name: values[name] for name in names}

    def send(self, case: Any) -> Any:
        """The response of a request, after the checks."""
        return case.call_and_validate(headers=bearer(self.token), checks=CHECKS)

    def valid(self, route: Route) -> Any:
        """A request that the server accepts."""
        query = {one.name: REQUIRED[one.name] for one in route.parameters if one.place == "query" and one.required}
        body = {"token": self.token} if route.path == "/login" else BODIES.get(route.name)
        sent = {} if body is None else {"body": body, "media_type": "application/json"}
        made = operation(self.document, route.name)
        return made.Case(path_parameters=self.existing(route), query=query, **sent)


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Fuzzed]:
    with builders.quick_folder() as folder:
        house = ConsoleHouse(Path(folder))
        house.fill()
        live = house.live
        _, token = live.tokens.create("fuzz", "admin", actor="ada")
        live.tokens.create("victim", "viewer", actor="ada")
        plan, _ = live.actions.preview("retry", actor="fuzz")
        loaded = schemathesis.openapi.from_dict(json.loads(openapi_content()))
        loaded.app = make_application(live, live.context.workers.register())
        loaded.config.update(base_url="http://127.0.0.1:8321")
        yield Fuzzed(loaded, {**subjects_of(house), "token": plan.token}, token)
        live.close()
        house.workspace.close()


@pytest.mark.parametrize("route", api_routes(), ids=lambda route: route.name)
def test_no_generated_request_makes_the_server_fail(fuzzed: Fuzzed, route: Route) -> None:
    """A valid request first; then generated ones, every second one for a resource that exists."""
    found: Counter[int] = Counter()
    existing = fuzzed.existing(route)
    accepted = fuzzed.send(fuzzed.valid(route))
    assert accepted.status_code in (200, 201, 202, 204), accepted.text

    @settings(
        max_examples=20,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation(fuzzed.document, route.name).as_strategy(), exists=st.booleans())
    def try_requests(case: Any, exists: bool) -> None:
        if exists and existing:
            case.path_parameters = existing
        found[fuzzed.send(case).status_code] += 1

    try_requests()
    if existing and route.method == "GET":
        assert found[200], found
