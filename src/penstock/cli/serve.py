"""`penstock serve`: the HTTP API and the web console."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import options as opt
from penstock.cli.render import note
from penstock.observe import logs

log = logging.getLogger(__name__)


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    host: Annotated[str, typer.Option("--host", metavar="H", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 takes a free one.")] = 8321,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse every change.")] = False,
    certfile: Annotated[
        Path | None, typer.Option("--certfile", metavar="FILE", help="A certificate (PEM): serve HTTPS.")
    ] = None,
    keyfile: Annotated[
        Path | None, typer.Option("--keyfile", metavar="FILE", help="The private key of the certificate (PEM).")
    ] = None,
    workspace: opt.WorkspaceDir = ".",
    debug: opt.Debug = False,
) -> None:
    """Serve the web console and the HTTP API until SIGTERM or Ctrl-C. Starts no JVM: the control loop executes what
    needs Spark.

    Without tokens it listens on a loopback address only, and every local user is an admin. With tokens
    (`penstock tokens create`) every request needs one. Logs one line per request to stderr, as JSON without a
    terminal. Several servers may serve one database.
    """
    from penstock.app import open_workspace
    from penstock.http.server import ServerOptions, require_packages
    from penstock.http.server import serve as run

    require_packages()
    ws = open_workspace(workspace)
    options = ServerOptions(host, port, read_only, certfile, keyfile)
    run(ws, options, lambda address: _announce(ws.settings.workspace, address))


def _announce(workspace: str, address: str) -> None:
    message = f"penstock: serving {workspace} at {address}"
    if logs.writes_json():
        log.info("serving", extra={"facts": {"address": address, "message": message}})
    else:
        note(message)
