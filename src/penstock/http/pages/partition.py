"""One partition: why it is in its state, its attempts, the figures of its runs, and the actions that apply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from penstock.app.authority_runs import rollback_runs
from penstock.control.action_kinds import ActionKind
from penstock.control.select import Selection
from penstock.http.api.partitions import KEY_PARTS, KEY_PATH, key_of, list_attempts, list_partitions, show_partition
from penstock.http.api.plans import ACTION_ROLES
from penstock.http.calls import Call, Reply
from penstock.http.pages.rendering import Page, query_text, render
from penstock.http.parameters import FILTERS
from penstock.http.routes import PAGE, Access, Route
from penstock.partition import ALL_CUSTOMERS, AssetKind, PartitionKey

if TYPE_CHECKING:
    from penstock.config.settings import Customer
    from penstock.state.records import PartitionView

_COMPARED = 6  # runs whose figures are shown side by side
_SHOWN = 50  # attempts


@dataclass(frozen=True, slots=True)
class Figure:
    """One value of several runs, and for each whether it differs from that of the first run."""

    name: str
    values: Sequence[Any]
    kind: str = "text"  # or number, digest

    @property
    def cells(self) -> list[tuple[Any, bool, float | None]]:
        """Value, whether it differs from the first, and the difference of numbers."""
        first = self.values[0]
        return [
            (value, value is not None and first is not None and value != first, _minus(value, first))
            for value in self.values
        ]


@dataclass(frozen=True, slots=True)
class ActionLink:
    """An action that applies to the partition, with the fields of its form."""

    act: str
    text: str
    values: Mapping[str, Any]


def show_page(call: Call) -> Reply:
    """The page of one partition."""
    key = key_of(call)
    why = show_partition(call)
    attempts = list_attempts(call)
    everything: dict[str, Any] = {one.name: () if one.repeats else None for one in FILTERS}
    listed = list_partitions(replace(call, query={**everything, "key": (str(key),), "limit": 1, "cursor": None}))
    [item] = listed["items"]
    return render(
        call,
        "partition.html",
        Page(str(key), "partitions", f"penstock why {key}"),
        why=why,
        item=item,
        customer=customer_of(call, key),
        days=neighbouring_days(key),
        table=f"{key.source}.{key.query_name}",
        grid_link=grid_link(key),
        attempts=_timed(attempts["items"])[:_SHOWN],
        attempts_total=attempts["total"],
        compared=_compared(attempts["items"]),
        figures=_figures(_compared(attempts["items"])),
        runs=[one for one in attempts["items"] if one["payload_digest"]],
        actions=_actions(call, key, why, item),
    )


def customer_of(call: Call, key: PartitionKey) -> Customer | None:
    """The customer of a partition; None for a model of all customers."""
    return next((one for one in call.workspace.settings.customers if one.id == key.customer_id), None)


def neighbouring_days(key: PartitionKey) -> dict[str, PartitionKey]:
    """The partitions of the day before and the day after."""
    day, one = key.logical_date, timedelta(days=1)
    found = {}
    if day > date.min:
        found["previous"] = key._replace(logical_date=day - one)
    if day < date.max:
        found["next"] = key._replace(logical_date=day + one)
    return found


def grid_link(key: PartitionKey) -> str:
    """The grid of the query, with the row of the customer."""
    customer = None if key.customer_id == ALL_CUSTOMERS else key.customer_id
    return "/grid?" + query_text({"query": f"{key.source}.{key.query_name}", "customer": customer})


def _timed(attempts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The attempts with their duration, and its share of the longest one in percent."""
    seconds = [_seconds(one["started_at"], one["finished_at"]) for one in attempts]
    longest = max((value for value in seconds if value is not None), default=0.0)
    return [
        {
            **one,
            "seconds": value,
            "share": None if value is None else max(1.0, round(100 * value / longest, 1) if longest else 1.0),
            "earlier": None if at == 0 else _age(one["started_at"], attempts[at - 1]["started_at"]),
        }
        for at, (one, value) in enumerate(zip(attempts, seconds, strict=True))
    ]


def _seconds(start: datetime, end: datetime | None) -> float | None:
    return None if end is None else max(0.0, (end - start).total_seconds())


def _age(start: datetime, later: datetime) -> str:
    """The time between two attempts, as text."""
    seconds = max(0.0, (later - start).total_seconds())
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _compared(attempts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The runs whose figures are shown: first the trusted one, with which the others are compared, then the newest
    others that have figures."""
    known = [one for one in attempts if one["record_count"] is not None]
    trusted = [one for one in known if one["authoritative"]]
    return [*trusted, *(one for one in known if not one["authoritative"])][:_COMPARED]


def _figures(runs: Sequence[Mapping[str, Any]]) -> list[Figure]:
    if not runs:
        return []
    measures = dict.fromkeys(name for run in runs for name in run["measures"] or ())
    return [
        Figure("rows", [run["record_count"] for run in runs], "number"),
        *(Figure(name, [(run["measures"] or {}).get(name) for run in runs], "number") for name in measures),
        Figure("complaints", [len(run["complaints"]) for run in runs], "number"),
        Figure("failed checks", [_failed_checks(run) for run in runs]),
        Figure("schema version", [run["schema_version"] for run in runs]),
        Figure("contract", [run["contract_fingerprint"] for run in runs], "digest"),
        Figure("payload digest", [run["payload_digest"] for run in runs], "digest"),
        Figure("content digest", [run["content_digest"] for run in runs], "digest"),
    ]


def _failed_checks(run: Mapping[str, Any]) -> str:
    found = dict.fromkeys(str(one["check"]) for one in run["complaints"] if one.get("severity", "reject") == "reject")
    return ", ".join(found) or "none"


def _minus(value: Any, first: Any) -> float | None:
    numbers = isinstance(value, int | float) and isinstance(first, int | float)
    return round(value - first, 6) if numbers and value != first else None


def _actions(call: Call, key: PartitionKey, why: Mapping[str, Any], item: Mapping[str, Any]) -> list[ActionLink]:
    """The actions that the state of the partition and the role of the caller allow. The preview decides in the end."""
    ws, status, named = call.workspace, str(item["status"]), {"key": str(key)}
    [view] = ws.partitions.find(Selection(keys=(key,)))
    is_open, is_marked = view.open_run_id is not None, view.control.terminal_at is not None
    found = []
    if status == "failed" and not is_open and not is_marked:
        found.append(ActionLink(ActionKind.RETRY, "Retry", named))
    if not is_open and status == "success":
        text = "Derive again" if key.kind is AssetKind.DERIVED else "Fetch again"
        found.append(ActionLink(ActionKind.RUN, text, {**named, "reprocess": "true"}))
    if not is_open and status == "pending":
        found.append(ActionLink(ActionKind.RUN, "Run", named))
    if not item["paused"]:
        found.append(ActionLink(ActionKind.PAUSE, "Pause", named))
    if item["paused"] or item["held"]:
        found.append(ActionLink(ActionKind.RESUME, "Resume", named))
    if status == "failed" and not is_marked:
        found.append(ActionLink(ActionKind.MARK_TERMINAL, "Mark as terminal", named))
    if item["terminal"]:
        found.append(ActionLink(ActionKind.CLEAR_TERMINAL, "Clear terminal", named))
    if why["approve"] is not None:
        last = why["attempts"][0]
        text = f"Approve attempt {last['attempt_no']}"
        found.append(ActionLink(ActionKind.APPROVE, text, {**named, "run_id": last["run_id"]}))
    if status == "success":
        found.append(ActionLink(ActionKind.DEMOTE, "Demote", named))
    if call.identity.role.includes(ACTION_ROLES[ActionKind.ROLLBACK]):
        found += _rollbacks(call, view)
    return [one for one in found if call.identity.role.includes(ACTION_ROLES[ActionKind(one.act)])]


def _rollbacks(call: Call, view: PartitionView) -> list[ActionLink]:
    context = call.workspace.context
    attempts = context.state.attempts(view.key)
    numbers = {attempt.run_id: attempt.attempt_no for attempt in attempts}
    return [
        ActionLink(ActionKind.ROLLBACK, f"Roll back to attempt {numbers[run]}", {"key": str(view.key), "run_id": run})
        for run in rollback_runs(context, view, attempts)
    ]


ROUTES = (
    Route("GET", f"/partitions/{KEY_PATH}", show_page, Access.VIEWER, PAGE, "The page of a partition", KEY_PARTS),
)
