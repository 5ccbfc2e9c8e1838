"""The list of partitions by filters, and the actions on everything that matches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from penstock.control.action_kinds import ActionKind
from penstock.errors import UsageError
from penstock.http.api.partitions import list_partitions
from penstock.http.api.plans import ACTION_ROLES
from penstock.http.calls import Call, Reply
from penstock.http.pages.rendering import Page, render
from penstock.http.parameters import CURSOR, DISPLAY, FILTERS, Parameter, limit, parse_query
from penstock.http.problems import RequestRefused
from penstock.http.routes import PAGE, Access, Route
from penstock.partition import MODELS
from penstock.views.document import Document

_PARSED = (*FILTERS, DISPLAY, limit(100), CURSOR)
# The page takes any text and parses it itself: after a mistake it shows the form with what was entered.
_TAKEN = tuple(Parameter(one.name, one.meaning, repeats=True) for one in _PARSED)
_SEVERAL = ("customer", "query", "key")  # fields that take several names
_ACTIONS = {
    ActionKind.RETRY: "Retry",
    ActionKind.RUN: "Run",
    ActionKind.BACKFILL: "Backfill",
    ActionKind.PAUSE: "Pause",
    ActionKind.RESUME: "Resume",
    ActionKind.MARK_TERMINAL: "Mark as terminal",
    ActionKind.CLEAR_TERMINAL: "Clear terminal",
}


_MOST_KEYS = 100  # of one link to an action
# The commands that list partitions of a display status. None has it as a filter.
_COMMANDS = {
    "never_materialized": "missing",
    "materialized": "state inspect --status success",
    "materialized_but_last_attempt_failed": "failed",
    "stale": "stale",
    "unavailable": "state inspect --status failed",
}


def show_partitions(call: Call) -> Reply:
    """The partitions that match the filters of the URL."""
    entered = {name: _names(name, texts) for name, texts in call.query.items() if texts}
    filters = {name: texts for name, texts in entered.items() if name not in ("limit", "cursor")}
    document, message = None, ""
    try:
        query = parse_query(_PARSED, [(name, text) for name, texts in entered.items() for text in texts])
        document = list_partitions(replace(call, query=query))
    except RequestRefused:
        raise
    except UsageError as error:
        message = str(error)
    settings = call.workspace.settings
    return render(
        call,
        "partitions.html",
        Page("Partitions", "partitions", _command(filters)),
        status=HTTPStatus.BAD_REQUEST if message else HTTPStatus.OK,
        document=document,
        message=message,
        filters=filters,
        shown={**filters, "limit": entered.get("limit", ())},
        is_first="cursor" not in entered,
        sources=sorted({*settings.sources, *([MODELS] if settings.models else [])}),
        names=sorted(settings.assets),
        actions=[(act.value, text) for act, text in _ACTIONS.items() if _is_offered(call, act, filters)],
        selector=_selector(filters, document, is_first="cursor" not in entered),
    )


def _is_offered(call: Call, act: ActionKind, filters: Mapping[str, Any]) -> bool:
    """Whether the caller may do this with what the filters select. A backfill takes no state."""
    return call.identity.role.includes(ACTION_ROLES[act]) and not (act is ActionKind.BACKFILL and filters.get("status"))


def _names(name: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    """The names of a field that takes several, separated by spaces, commas or lines; other texts as they are."""
    if name not in _SEVERAL:
        return texts
    return tuple(one for text in texts for one in text.replace(",", " ").split())


def _selector(filters: Mapping[str, Any], document: Document | None, *, is_first: bool) -> dict[str, Any] | None:
    """The filters for the form of an action. A day is a range of one day there. Actions do not select by display
    status: they get the keys if one page shows all of them; otherwise there is no selector."""
    if "display" in filters:
        if document is None or not is_first or document["next"] is not None or document["total"] > _MOST_KEYS:
            return None
        return {"key": tuple(item["key"] for item in document["items"])}
    found = {name: texts for name, texts in filters.items() if name != "date"}
    if day := filters.get("date"):
        found |= {"since": day, "until": day}
    return found


def _command(filters: Mapping[str, tuple[str, ...]]) -> str:
    from shlex import quote

    others = {name: texts for name, texts in filters.items() if name not in ("key", "display")}
    words = [quote(text) for text in filters.get("key", ())]
    words += [f"--{name} {quote(text)}" for name, texts in others.items() for text in texts]
    command = next((_COMMANDS[text] for text in filters.get("display", ()) if text in _COMMANDS), "state inspect")
    return " ".join((f"penstock {command}", *words))


ROUTES = (Route("GET", "/partitions", show_partitions, Access.VIEWER, PAGE, "The list of partitions", _TAKEN),)
