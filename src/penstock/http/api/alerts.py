"""Alerts: the rules with their states."""

from __future__ import annotations

from penstock.http.calls import Call
from penstock.http.routes import PREFIX, Access, Route
from penstock.http.schemas.alerts import Alerts
from penstock.views.document import Document


def list_alerts(call: Call) -> Document:
    """List the rules of alerts with their states: firing since, how many, last delivered, next try, last error."""
    from penstock.views.alerts import alerts_document

    alerts = call.workspace.alerts
    return alerts_document(alerts.list(), alerts.evaluated_at())


ROUTES = (Route("GET", f"{PREFIX}/alerts", list_alerts, Access.VIEWER, Alerts, "List alerts"),)
