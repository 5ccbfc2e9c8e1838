"""The pages of the route table as addresses: a page that is added to the table is tried without a change here, unless
its path has a parameter that no other page has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlencode

from penstock.http.routes import Route, all_routes
from penstock.state.tokens import TokenRole

PAGE_ROUTES = tuple(route for route in all_routes() if route.is_page)
# The pages that show something. Those of an identity provider lead to other sites: tests/contract/test_oidc.py.
SHOWN = tuple(route for route in PAGE_ROUTES if not route.is_unsafe and not route.path.startswith("/login/oidc"))

# Values for parameters that a query must have, by name.
_REQUIRED = {"act": "retry", "query": "campaign_daily"}


# Pages that show a viewer less: their address names a run that is not the trusted one.
_FOR_OPERATORS = ("/diff",)


def shows(route: Route, role: TokenRole | str) -> bool:
    """Whether a caller with this role sees the page at `address_of`."""
    return TokenRole(role) is not TokenRole.VIEWER or not route.path.endswith(_FOR_OPERATORS)


def address_of(route: Route, subjects: Mapping[str, str]) -> str:
    """An address of the page, with existing resources."""

    def value(found: re.Match[str]) -> str:
        name = found[1].partition(":")[0]
        assert name in subjects, f"{route.name}: add a value for {name} to subjects_of in support/console_site.py"
        return subjects[name]

    path = re.sub(r"\{([^}]+)\}", value, route.path)
    needed = [one.name for one in route.parameters if one.place == "query" and one.required]
    values = {**subjects, **_REQUIRED}
    for name in needed:
        assert name in values, f"{route.name}: add a value for {name} to support/page_routes.py"
    return path + ("?" + urlencode([(name, values[name]) for name in needed]) if needed else "")


def route_id(route: Route) -> str:
    return route.name
