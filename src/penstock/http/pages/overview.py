"""The overview: how many partitions are in which state, what is wrong, and what runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from penstock.http.api.audit import list_audit
from penstock.http.api.orders import unfinished_orders
from penstock.http.api.runs import list_runs
from penstock.http.api.sources import list_sources
from penstock.http.api.status import count_status
from penstock.http.calls import Call, Reply
from penstock.http.pages.rendering import STATUSES, Page, render
from penstock.http.parameters import FILTERS
from penstock.http.routes import PAGE, Access, Route

_SHOWN = 5


def show_overview(call: Call) -> Reply:
    """The state of the whole warehouse on one page."""
    everything = {parameter.name: () if parameter.repeats else None for parameter in FILTERS}
    status = count_status(replace(call, query={**everything, "by": "source,query"}))
    few = replace(call, query={"limit": _SHOWN, "cursor": None})
    sources = list_sources(call)["items"]
    return render(
        call,
        "overview.html",
        Page("Overview", "overview", "penstock status"),
        document=status,
        tables=_by_table(status["items"]),
        runs=list_runs(few)["items"],
        orders=unfinished_orders(call, _SHOWN),
        audit=list_audit(few)["items"],
        stopped=[source for source in sources if _is_stopped(source)],
        loop_warning=call.workspace.orders.loop_warning(),
    )


def _by_table(items: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each table the number of partitions of each status."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for item in items:
        named = (item["source"], item["query"])
        mine = found.setdefault(named, {"source": named[0], "query": named[1], "total": 0, "counts": {}})
        mine["counts"][str(item["display_status"])] = item["count"]
        mine["total"] += item["count"]
    for mine in found.values():
        mine["shares"] = [
            (name, mine["counts"][name], round(100 * mine["counts"][name] / mine["total"], 2))
            for name in STATUSES
            if mine["counts"].get(name)
        ]
    return [found[named] for named in sorted(found)]


def _is_stopped(source: Mapping[str, Any]) -> bool:
    breaker = source["breaker"]
    return bool(source["error"]) or (breaker is not None and breaker["open"])


ROUTES = (Route("GET", "/", show_overview, Access.VIEWER, PAGE, "The overview"),)
