"""The rows of a partition as they were received, and the differences between two of its runs.

Everybody may read the trusted run, as in the tables. Another run is for operators, and the audit log records who
read it, as `penstock raw read --run` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from penstock.app.raw_preview import COMPARED_BYTES, LISTED_ROWS, LONGEST_LINE, compare_runs, preview_lines
from penstock.errors import AccessDenied, ActRefused, RawError
from penstock.http.api.partitions import KEY_PARTS, KEY_PATH, key_of
from penstock.http.calls import Call, Reply
from penstock.http.pages.partition import customer_of
from penstock.http.pages.rendering import Page, render
from penstock.http.parameters import Parameter
from penstock.http.problems import RequestRefused
from penstock.http.routes import PAGE, Access, Route
from penstock.partition import PartitionKey, RunId
from penstock.raw.seal import Seal
from penstock.state.records import Attempt
from penstock.state.tokens import TokenRole
from penstock.views.raw import raw_runs_document

_RUN = Parameter("run", "A run. Default: the trusted one.")
_LINE = Parameter("line", "The number of the first line.", "number", default=1, least=1)
_LEFT = Parameter("left", "The run to compare with.", required=True)
_RIGHT = Parameter("right", "The run that is compared.", required=True)


def show_raw(call: Call) -> Reply:
    """The runs of a partition in the raw sink, and the first lines of one of them."""
    key, raw = key_of(call), call.workspace.raw
    runs, trusted = raw.runs(key)
    chosen = call.query["run"] or trusted
    preview, seal, message = None, None, ""
    if chosen is not None:
        run_id = _known_run(key, chosen, [run.attempt.run_id for run in runs])
        seal = next(run.seal for run in runs if run.attempt.run_id == run_id)
        _refuse_others(call, run_id, trusted)
        try:
            preview = preview_lines(raw.lines_of(key, run_id, call.identity.name), call.query["line"])
        except (ActRefused, RawError) as error:
            message = str(error)
    option = f" --run {chosen}" if chosen is not None and chosen != trusted else ""
    return render(
        call,
        "raw.html",
        Page(f"Raw rows of {key}", "partitions", f"penstock raw read {key}{option} --limit 100"),
        status=HTTPStatus.CONFLICT if message else HTTPStatus.OK,
        key=key,
        customer=customer_of(call, key),
        runs=raw_runs_document(key, runs, trusted)["items"],
        chosen=chosen,
        may_read_all=_may_read_all(call),
        preview=preview,
        seal=seal if isinstance(seal, Seal) else None,
        message=message,
        longest_line=LONGEST_LINE,
    )


def show_diff(call: Call) -> Reply:
    """The differences between the rows of two runs."""
    key, ws = key_of(call), call.workspace
    _, trusted = ws.raw.runs(key)
    attempts = {str(attempt.run_id): attempt for attempt in ws.context.state.attempts(key)}
    left, right = (attempts[_known_run(key, call.query[name], list(attempts))] for name in ("left", "right"))
    for attempt in (left, right):
        _refuse_others(call, attempt.run_id, trusted)
    found, message = None, ""
    try:
        found = compare_runs(ws.context, ws.raw, key, left, right, call.identity.name)
    except ActRefused as error:
        message = str(error)
    return render(
        call,
        "diff.html",
        Page(f"Differences between runs of {key}", "partitions", f"penstock raw read {key} --run {right.run_id}"),
        status=HTTPStatus.CONFLICT if message else HTTPStatus.OK,
        key=key,
        left=_side(left, trusted),
        right=_side(right, trusted),
        found=found,
        message=message,
        listed=LISTED_ROWS,
        largest=COMPARED_BYTES // (1024 * 1024),
        runs=[_side(attempt, trusted) for attempt in attempts.values() if attempt.payload_digest],
    )


def _side(attempt: Attempt, trusted: RunId | None) -> Mapping[str, Any]:
    return {
        "run_id": attempt.run_id,
        "attempt_no": attempt.attempt_no,
        "outcome": attempt.outcome,
        "record_count": attempt.record_count,
        "is_trusted": attempt.run_id == trusted,
    }


def _known_run(key: PartitionKey, text: str, known: list[Any]) -> RunId:
    if text not in known:
        raise RequestRefused(f"{key} has no run {text[:100]!r}", HTTPStatus.NOT_FOUND)
    return RunId(text)


def _may_read_all(call: Call) -> bool:
    """Whether the caller may read runs that are not trusted: the audit log must be able to record it."""
    return call.identity.role.includes(TokenRole.OPERATOR) and not call.read_only


def _refuse_others(call: Call, run_id: RunId, trusted: RunId | None) -> None:
    """Raise AccessDenied if the run is not trusted and the caller may read only trusted runs."""
    if run_id == trusted or _may_read_all(call):
        return
    if call.read_only:
        raise AccessDenied(
            f"run {run_id} is not the trusted one: the audit log records who reads it, and this server only reads"
        )
    raise AccessDenied(
        f"run {run_id} is not the trusted one: reading it needs the role {TokenRole.OPERATOR},"
        f" and {call.identity.name} has the role {call.identity.role}"
    )


ROUTES = (
    Route(
        "GET",
        f"/partitions/{KEY_PATH}/raw",
        show_raw,
        Access.VIEWER,
        PAGE,
        "The raw rows of a partition",
        (*KEY_PARTS, _RUN, _LINE),
    ),
    Route(
        "GET",
        f"/partitions/{KEY_PATH}/diff",
        show_diff,
        Access.VIEWER,
        PAGE,
        "The differences between two runs of a partition",
        (*KEY_PARTS, _LEFT, _RIGHT),
    ),
)
