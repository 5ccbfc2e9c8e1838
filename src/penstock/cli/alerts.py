"""`penstock alerts`: the rules with their state, and a test message to a channel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import options as opt
from penstock.cli.render import show
from penstock.cli.text_tables import table

if TYPE_CHECKING:
    from rich.console import Console


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Alerts: rules that fire once and recover once, and their channels.")
    group.command("list")(list_alerts)
    group.command("test")(send_test)
    app.add_typer(group, name="alerts")


def list_alerts(workspace: opt.WorkspaceDir = ".", as_json: opt.AsJson = False, debug: opt.Debug = False) -> None:
    """List the rules and their alerts: firing since, how many, last delivered, next try, last error.

    `penstock control serve` and `control tick` evaluate the rules of `alerts` in the workspace file.
    """
    from penstock.app import open_workspace
    from penstock.views.alerts import alerts_document

    ws = open_workspace(workspace)
    document = alerts_document(ws.alerts.list(), ws.alerts.evaluated_at())

    def draw(console: Console) -> None:
        rows = []
        for rule in document["items"]:
            shown = rule["alerts"] or [dict.fromkeys(_COLUMNS)]
            rows += [(rule["rule"], *(alert[name] for name in _COLUMNS)) for alert in shown]
        if not rows:
            console.print("the workspace file has no rules: add them to `alerts`")
            return
        heads = ("rule", "subject", "state", "since (UTC)", "count", "message", "last delivered", "next try", "error")
        console.print(table(None, heads, rows))
        last = document["evaluated_at"]
        console.print(
            f"last evaluated {last:%Y-%m-%d %H:%M:%S} UTC" if last else "never evaluated: start the control loop"
        )

    show(document, as_json, draw)


_COLUMNS = ("subject", "state", "since", "count", "message", "last_delivered_at", "next_try_at", "last_error")


def send_test(
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel, by its name in the workspace file.")],
    workspace: opt.WorkspaceDir = ".",
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Send one test message to a channel. Exit code 75 if it is not accepted."""
    from penstock.app import open_workspace
    from penstock.views.alerts import sent_test_document

    targets = open_workspace(workspace).alerts.test(channel)
    message = f"{channel} accepted a test message"
    show(sent_test_document(channel, targets), as_json, lambda console: console.print(message))
