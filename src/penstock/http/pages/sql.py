"""The SQL box: one SELECT on the rows of trusted runs, with limits."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from penstock.errors import TransientError, UsageError
from penstock.http.api.tables import list_tables
from penstock.http.calls import Call, Reply
from penstock.http.pages.rendering import Page, render
from penstock.http.parameters import Parameter
from penstock.http.problems import status_of
from penstock.http.routes import PAGE, Access, Route
from penstock.http.schemas.base import Model, Text
from penstock.http.sql_limits import LIMITS, StatementFailed, execute_sql

_STATEMENT = Parameter("statement", "The statement that the box shows.")


class SqlForm(Model):
    """The field of the SQL box."""

    statement: Text = ""


def show_box(call: Call) -> Reply:
    """The SQL box. The URL may fill it in; only the form executes a statement."""
    return _page(call, call.query["statement"] or "")


def execute(call: Call) -> Reply:
    """Execute the statement of the form and show its rows. A statement that is refused is shown with the reason."""
    form: SqlForm = call.body
    if not form.statement.strip():
        return _page(call, "", "Enter a SELECT.", HTTPStatus.BAD_REQUEST)
    try:
        result = execute_sql(call.workspace.settings.root, form.statement)
    except (UsageError, TransientError, StatementFailed) as error:
        return _page(call, form.statement, str(error), status_of(error))
    return _page(call, form.statement, result=result)


def _page(
    call: Call,
    statement: str,
    message: str = "",
    status: int = HTTPStatus.OK,
    result: dict[str, Any] | None = None,
) -> Reply:
    from shlex import quote

    from penstock.projections.system_tables import table_names

    return render(
        call,
        "sql.html",
        Page("SQL", "tables", f"penstock sql {quote(statement or 'SELECT ...')}"),
        status=status,
        statement=statement,
        message=message,
        result=result,
        tables=list_tables(call)["items"],
        system_tables=table_names(),
        limits=LIMITS,
    )


ROUTES = (
    Route("GET", "/sql", show_box, Access.VIEWER, PAGE, "The SQL box", (_STATEMENT,)),
    Route(
        "POST",
        "/sql",
        execute,
        Access.VIEWER,
        PAGE,
        "Execute a SELECT",
        form=SqlForm,
        keeps_response=False,
        changes=False,
    ),
)
