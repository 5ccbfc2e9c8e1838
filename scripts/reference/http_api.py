"""The page of the HTTP API: every route and every action, from the tables that the server uses."""

from __future__ import annotations

from itertools import groupby

from penstock.control.action_kinds import OPTIONS, ORDERED, ActionKind
from penstock.http.api.orders import ORDER_ROLES
from penstock.http.api.plans import ACTION_ROLES
from penstock.http.parameters import Parameter
from penstock.http.routes import Route, api_routes

_INTRODUCTION = """\
Every route of `penstock serve`, with the smallest role that may call it. `GET /api/v1/openapi.json` describes the same
routes for tools. [The HTTP API and its tokens](../howto/http-api.md) explains how to use them.
"""


def page() -> str:
    """The page as Markdown."""
    lines = ["# HTTP API\n", _INTRODUCTION]
    for module, routes in groupby(api_routes(), lambda route: route.handler.__module__.rpartition(".")[2]):
        lines.append(f"## {module.capitalize()}\n")
        for route in routes:
            lines += _route(route)
    lines += [
        "## Actions of `POST /api/v1/plans`\n",
        "| act | role | options | becomes an order |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{act}` | {ACTION_ROLES[act]} | {_names(OPTIONS.get(act, ()))} | {'yes' if act in ORDERED else 'no'} |"
        for act in ActionKind
    ]
    lines += ["", "## Kinds of `POST /api/v1/orders`\n", "| kind | role |", "|---|---|"]
    lines += [f"| `{kind}` | {role} |" for kind, role in ORDER_ROLES.items()]
    return "\n".join([*lines, ""])


def _route(route: Route) -> list[str]:
    meaning = " ".join((route.handler.__doc__ or route.summary).split())
    lines = [f"### `{route.name}`\n", f"Role: {route.access}. {meaning}", ""]
    if route.parameters or route.body is not None:
        lines += ["| parameter | in | meaning |", "|---|---|---|", *map(_parameter, route.parameters)]
        if route.body is not None:
            lines += [
                f"| `{name}`{'' if field.is_required() else ' (optional)'} | body | {_type(field.annotation)} |"
                for name, field in route.body.model_fields.items()
            ]
        lines.append("")
    return lines


def _parameter(parameter: Parameter) -> str:
    notes = []
    if parameter.repeats:
        notes.append("may repeat")
    if parameter.place == "query" and parameter.required:
        notes.append("required")
    if parameter.values:
        notes.append(", ".join(parameter.values))
    if parameter.default is not None:
        notes.append(f"default {parameter.default}, at most {parameter.most}")
    noted = f" ({'; '.join(notes)})" if notes else ""
    return f"| `{parameter.name}` | {parameter.place} | {parameter.meaning}{noted} |"


def _type(annotation: object) -> str:
    """The type of a field in one or two words."""
    text = str(annotation)
    kinds = {"bool": "true or false", "int": "a number", "list": "a list", "date": "a day", "Selection": "a selection"}
    return next((meaning for name, meaning in kinds.items() if name in text), "text")


def _names(options: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in options)
