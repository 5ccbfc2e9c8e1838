"""Readiness: whether the expected partitions of tables are published."""

from __future__ import annotations

from typing import Any

from penstock.http.calls import Call
from penstock.http.parameters import CUSTOMER, DATE, SINCE, UNTIL, Parameter
from penstock.http.routes import PREFIX, Access, Route
from penstock.http.schemas.readiness import Readiness
from penstock.views.document import Document

TABLE = Parameter("table", "A table, source.query_name.", repeats=True, required=True)
REQUIRE = Parameter("require", "Partitions required per day: all (default), any, a number, or a share such as 95%.")
EXPLAIN = Parameter("explain", "true: also what is missing by cause, and when it is expected.", "flag")
MOST_ABSENT = 100  # partitions that a day names; `expected` and `available` count all


def read_readiness(call: Call) -> Document:
    """Compare the published partitions of each day with the expected ones, as `penstock ready` does."""
    from penstock.views.readiness import ready_document
    from penstock.warehouse.readiness import Rule

    given, service = call.query, call.workspace.readiness
    rule = Rule(given["require"] or "all")
    days: dict[str, Any] = {name: given[name] for name in ("date", "since", "until") if given[name] is not None}
    days["customers"] = given["customer"]
    tables = dict.fromkeys(given["table"])
    asked = {table: service.requested_days(table, **days) for table in tables}
    found = {table: service.coverage(table, **days) for table in tables}
    reasons = None
    if given["explain"]:
        reasons = [day for one in asked.values() for day in call.workspace.lateness.explain(one, rule.text)]
    return ready_document(rule.text, rule, asked, found, reasons, MOST_ABSENT)


ROUTES = (
    Route(
        "GET",
        f"{PREFIX}/ready",
        read_readiness,
        Access.VIEWER,
        Readiness,
        "Check whether tables are ready",
        (TABLE, DATE, SINCE, UNTIL, CUSTOMER, REQUIRE, EXPLAIN),
    ),
)
