"""Actions: a form that names the partitions, its preview, and the result of the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from http import HTTPStatus
from typing import Any

from pydantic import Field

from penstock.control.action_kinds import (
    BY_KEY,
    OPTIONS,
    ORDERED,
    ActionKind,
    takes_selection,
    works_on_previewed,
)
from penstock.control.select import FORCE_ABOVE
from penstock.errors import ActRefused, StateConflict, UsageError
from penstock.http.api.plans import ACTION_ROLES, PLAN, apply_plan, previewed, show_plan
from penstock.http.calls import Call, Reply
from penstock.http.pages.command_lines import command_line
from penstock.http.pages.rendering import Page, render
from penstock.http.parameters import FILTERS, Parameter
from penstock.http.problems import status_of
from penstock.http.routes import PAGE, Access, Route
from penstock.http.schemas.actions import ApplyBody, PlanBody
from penstock.http.schemas.base import Model
from penstock.http.schemas.runs import Name, SelectionBody
from penstock.partition import MODELS


@dataclass(frozen=True, slots=True)
class ActionText:
    """What an action is called, and what it does."""

    title: str
    effect: str


TEXTS: Mapping[ActionKind, ActionText] = {
    ActionKind.RETRY: ActionText("Retry", "Failed partitions become pending. The next run attempts them again."),
    ActionKind.MARK_TERMINAL: ActionText("Mark as terminal", "Failed partitions are not attempted any more."),
    ActionKind.CLEAR_TERMINAL: ActionText("Clear terminal", "Terminal partitions can be attempted again."),
    ActionKind.PAUSE: ActionText("Pause", "No run attempts these partitions until they are resumed."),
    ActionKind.RESUME: ActionText("Resume", "Paused partitions are attempted again by the next run."),
    ActionKind.DEMOTE: ActionText(
        "Demote", "The trusted run of the partition is not trusted any more. Its rows leave the table."
    ),
    ActionKind.ROLLBACK: ActionText("Roll back", "An earlier accepted run becomes the trusted one."),
    ActionKind.APPROVE: ActionText("Approve", "A rejected run becomes the trusted one, although a check failed."),
    ActionKind.BACKFILL: ActionText("Backfill", "The control loop fetches the partitions in chunks."),
    ActionKind.BACKFILL_PAUSE: ActionText("Pause backfill", "The backfill issues no more chunks."),
    ActionKind.BACKFILL_RESUME: ActionText("Resume backfill", "The backfill issues chunks again."),
    ActionKind.BACKFILL_CANCEL: ActionText(
        "Cancel backfill", "The backfill ends. Partitions that it has fetched stay as they are."
    ),
    ActionKind.BACKFILL_RETRY_FAILED: ActionText(
        "Retry failed of backfill", "A new backfill attempts the failed partitions."
    ),
    ActionKind.CLOSE_BREAKER: ActionText("Close breaker", "The source receives requests again."),
    ActionKind.CANCEL_RUN: ActionText("Cancel run", "The run issues no more attempts and publishes what is accepted."),
    ActionKind.RUN: ActionText("Run", "The control loop fetches what is due."),
    ActionKind.RESUME_RUN: ActionText("Resume run", "The control loop does what is left of the run."),
    ActionKind.VALIDATE: ActionText(
        "Check again", "The control loop checks trusted runs against the contract of today and demotes those that fail."
    ),
    ActionKind.RECONCILE: ActionText("Reconcile", "The control loop publishes what is accepted and not in its table."),
    ActionKind.COMPACT: ActionText("Compact", "The control loop rewrites small files of the tables."),
}
_ACT = Parameter("act", "The action.", required=True, values=tuple(ActionKind))
_OPTIONS = (
    Parameter("run_id", "A run."),
    Parameter("backfill_id", "A backfill."),
    Parameter("table", "A table.", repeats=True),
    Parameter("reprocess", "Also success partitions.", "flag"),
    Parameter("without_raw", "Also partitions without raw data.", "flag"),
    Parameter("chunk_size", "Partitions in a chunk.", "number"),
    Parameter("priority", "The priority of a backfill."),  # a text: it may be negative
    Parameter("max_chunks", "Chunks at the same time.", "number"),
    Parameter("reason", "The reason for the audit log."),
)


class ActionForm(Model):
    """The fields of the form of an action."""

    act: ActionKind
    key: list[Name] = Field(default=[], max_length=10_000)
    source: Name | None = None
    customer: list[Name] = Field(default=[], max_length=10_000)
    query: list[Name] = Field(default=[], max_length=1000)
    since: date | None = None
    until: date | None = None
    status: str | None = Field(default=None, pattern="^(pending|success|failed)$")
    reason: str | None = Field(default=None, max_length=1000)
    run_id: Name | None = None
    backfill_id: Name | None = None
    table: list[Name] = Field(default=[], max_length=1000)
    reprocess: bool = False
    without_raw: bool = False
    chunk_size: int | None = Field(default=None, ge=1, le=100_000)
    priority: int | None = Field(default=None, ge=-1000, le=1000)
    max_chunks: int | None = Field(default=None, ge=1, le=1000)

    @property
    def body(self) -> PlanBody:
        """The body of the API for the same action."""
        is_subject = not takes_selection(self.act)
        selection = SelectionBody(
            keys=_lines(self.key),
            source=None if is_subject else self.source,
            customers=_lines(self.customer),
            queries=_lines(self.query),
            since=self.since,
            until=self.until,
            status=self.status,
        )
        return PlanBody(
            act=self.act,
            selection=selection,
            reason=self.reason,
            run_id=self.run_id,
            backfill_id=self.backfill_id,
            source=self.source if is_subject else None,
            tables=_lines(self.table),
            reprocess=self.reprocess,
            without_raw=self.without_raw,
            chunk_size=self.chunk_size,
            priority=self.priority,
            max_chunks=self.max_chunks,
        )


class ApplyForm(Model):
    """The fields of the form below a preview."""

    force: bool = False


def show_form(call: Call) -> Reply:
    """The form of an action. The URL fills in its fields."""
    act = ActionKind(call.query["act"])
    values = {name: value for name, value in call.query.items() if name != "date"}
    if call.query.get("date"):
        values |= {"since": call.query["date"], "until": call.query["date"]}
    return _form(call, act, values)


def preview(call: Call) -> Reply:
    """Preview the action of a form. A mistake shows the form again with what was entered."""
    form: ActionForm = call.body
    try:
        plan = previewed(call, form.body)
    except (UsageError, ActRefused, StateConflict) as error:
        return _form(call, form.act, form.model_dump(), str(error), status_of(error))
    return render(
        call,
        "action_preview.html",
        Page(f"Preview: {TEXTS[form.act].title}", "", command_line(form.act, form.model_dump(), preview=True)),
        plan=plan,
        text=TEXTS[form.act],
        ordered=form.act in ORDERED,
        standing=form.act in ORDERED and not works_on_previewed(form.act, plan["options"]),
        form=form.model_dump(exclude_defaults=True, mode="json"),
        force_above=FORCE_ABOVE,
    )


def apply(call: Call) -> Reply:
    """Apply a plan and show its result."""
    form: ApplyForm = call.body
    token = call.path["token"]
    try:
        apply_plan(replace(call, body=ApplyBody(force=form.force)))
    except (ActRefused, StateConflict) as error:
        return _result(call, str(error), HTTPStatus.CONFLICT)
    return Reply(media_type=PAGE, status=HTTPStatus.SEE_OTHER, headers={"Location": f"/actions/{token}"})


def show_result(call: Call) -> Reply:
    """A plan, and its result if it is applied."""
    return _result(call)


def _result(call: Call, message: str = "", status: int = HTTPStatus.OK) -> Reply:
    plan = show_plan(call)
    text = TEXTS[ActionKind(plan["act"])]
    frame = Page(text.title, "")
    selection = {name: value for name, value in plan["selection"].items() if value}
    again = {
        "act": str(plan["act"]),
        "reason": plan["reason"],
        **form_fields(selection),
        **form_fields(plan["options"]),
    }
    return render(
        call,
        "action_result.html",
        frame,
        status=status,
        plan=plan,
        text=text,
        message=message,
        again=again,
        selection=selection,
    )


def form_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Stored values under the names of the form."""
    names = {"keys": "key", "customers": "customer", "queries": "query", "tables": "table"}
    return {names.get(name, name): value for name, value in values.items()}


def _form(
    call: Call, act: ActionKind, values: Mapping[str, Any], message: str = "", status: int = HTTPStatus.OK
) -> Reply:
    settings = call.workspace.settings
    needed = ACTION_ROLES[act]
    return render(
        call,
        "action_form.html",
        Page(TEXTS[act].title, "", command_line(act, values)),
        status=status,
        act=act.value,
        text=TEXTS[act],
        values=values,
        options=OPTIONS.get(act, ()),
        has_selection=takes_selection(act),
        by_key=act in BY_KEY,
        sources=sorted({*settings.sources, *([MODELS] if settings.models else [])}),
        message=message,
        needed=None if call.identity.role.includes(needed) else needed.value,
    )


def _lines(texts: list[str]) -> list[str]:
    """Names that may be entered one for each line, or separated by commas or spaces."""
    return [one for text in texts for one in text.replace(",", " ").split()]


ROUTES = (
    Route("GET", "/actions/new", show_form, Access.VIEWER, PAGE, "The form of an action", (_ACT, *FILTERS, *_OPTIONS)),
    Route("POST", "/actions/preview", preview, Access.OPERATOR, PAGE, "Preview an action", form=ActionForm),
    Route("GET", "/actions/{token}", show_result, Access.VIEWER, PAGE, "A plan", (PLAN,)),
    Route("POST", "/actions/{token}/apply", apply, Access.OPERATOR, PAGE, "Apply a plan", (PLAN,), form=ApplyForm),
)
