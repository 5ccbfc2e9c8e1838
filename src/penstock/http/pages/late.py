"""Late tables: each day beside its deadline, with what is missing and when it is expected."""

from __future__ import annotations

from penstock.http.api.late import TABLE, list_late
from penstock.http.calls import Call, Reply
from penstock.http.pages.rendering import Page, render
from penstock.http.parameters import DATE
from penstock.http.routes import PAGE, Access, Route


def show_late(call: Call) -> Reply:
    """The tables with a deadline, late ones first."""
    day = call.query["date"]
    command = " ".join(["penstock late", *call.query["table"], *([f"--date {day}"] if day else [])])
    order = ("late", "at_risk", "on_track", "ready")
    document = list_late(call)
    days = sorted(document["items"], key=lambda item: order.index(item["punctuality"]))
    return render(call, "late.html", Page("Late", "late", command), days=days, counts=document["counts"])


ROUTES = (Route("GET", "/late", show_late, Access.VIEWER, PAGE, "The late tables", (TABLE, DATE)),)
