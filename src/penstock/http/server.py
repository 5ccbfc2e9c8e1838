"""Runs the application in uvicorn: address, TLS, limits of connections, logs, graceful stop."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, PenstockError, UsageError
from penstock.http.protocol import ConnectionLimits, timed_protocol

if TYPE_CHECKING:
    from starlette.types import ASGIApp
    from uvicorn import Config, Server

    from penstock.app import Workspace

_HEADER_BYTES = 32 * 1024
_KEEP_ALIVE_SECONDS = 30
_STOP_SECONDS = 20  # for requests in progress when the server stops
_CONNECTIONS = 500
_PREPARED = 4  # grids that are computed when the server starts


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options of `penstock serve`."""

    host: str = "127.0.0.1"
    port: int = 8321
    read_only: bool = False
    certfile: Path | None = None
    keyfile: Path | None = None

    @property
    def is_local(self) -> bool:
        """Whether the server listens on a loopback address only."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def scheme(self) -> str:
        return "https" if self.certfile else "http"


def serve(workspace: Workspace, options: ServerOptions, started: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. Requests in progress are finished. `started` gets the address.

    Raises UsageError for an address that the workspace must not be served on, and ConfigError if the extra `console`
    is not installed or the port is taken.
    """
    require_packages()
    import uvicorn

    from penstock.flow.heartbeat import Heartbeat
    from penstock.http.application import make_application

    refuse_open_address(workspace, options)
    with ExitStack() as stack:
        listening = stack.enter_context(_listen(options))
        if not options.read_only:
            workspace.context.workers.mark_dead_workers()  # requests of killed servers of this machine can be repeated
        token = "" if options.read_only else stack.enter_context(Heartbeat(workspace.context.workers)).token
        app = make_application(workspace, token, is_local=options.is_local, read_only=options.read_only)
        server = uvicorn.Server(server_config(app, options))
        address = f"{options.scheme}://{_shown_host(options.host)}:{listening.getsockname()[1]}"
        threading.Thread(target=prepare, args=(workspace,), name="prepare", daemon=True).start()
        _run(server, listening, lambda: started(address))


def server_config(app: ASGIApp, options: ServerOptions, limits: ConnectionLimits = ConnectionLimits()) -> Config:
    """The settings of uvicorn for this application."""
    import uvicorn

    return uvicorn.Config(
        app,
        http=timed_protocol(limits),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # a client could choose its address, by which failed logins are limited
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_STOP_SECONDS,
        h11_max_incomplete_event_size=_HEADER_BYTES,
        ssl_certfile=options.certfile,
        ssl_keyfile=options.keyfile,
    )


def prepare(workspace: Workspace) -> None:
    """Compute what the first pages need, so that the first visitor does not wait for it. The request that meets an
    error reports it."""
    from penstock.control.select import Selection
    from penstock.http.pages.rendering import environment

    environment().get_template("overview.html")
    with suppress(PenstockError):
        workspace.grids.counts(Selection(), ["source", "query"])
        for name in sorted(workspace.settings.assets)[:_PREPARED]:
            workspace.grids.grid(name)
        workspace.metrics.samples()  # the first scrape counts all attempts


def _run(server: Server, listening: socket.socket, started: Callable[[], None]) -> None:
    """Serve until the first signal: then requests in progress are finished. A second SIGINT ends them."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.handle_exit, number, None)
        started()
        await server._serve(sockets=[listening])  # without uvicorn's handlers, which raise the signal again at the end

    asyncio.run(main())


def require_packages() -> None:
    """Raise ConfigError if the extra `console` is not installed."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(f"the server needs the package {error.name}: install `penstock[console]`") from error


def refuse_open_address(workspace: Workspace, options: ServerOptions) -> None:
    """Raise UsageError if others could reach a server that asks for no token, or for a certificate without its key."""
    if (options.certfile is None) != (options.keyfile is None):
        raise UsageError("--certfile and --keyfile belong together: give both or neither")
    for file in filter(None, (options.certfile, options.keyfile)):
        if not file.is_file():
            raise UsageError(f"there is no file {file}")
    if not options.is_local and not workspace.logins.are_needed():
        raise UsageError(
            f"without tokens the server listens on loopback only, and {options.host} is another address: create a token"
            " with `penstock tokens create NAME --role admin`, or leave out --host"
        )


def _listen(options: ServerOptions) -> socket.socket:
    """A socket that listens; port 0 takes a free port."""
    try:
        # asyncio disables Nagle's algorithm only for sockets whose protocol is named; with it, a response waits 40 ms.
        family, kind, protocol, _, address = socket.getaddrinfo(options.host, options.port, proto=socket.IPPROTO_TCP)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(1024)
    except OSError as error:
        raise ConfigError(f"the server cannot listen on {options.host}:{options.port}: {error}") from error
    return listening


def _shown_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
