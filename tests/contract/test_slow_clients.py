"""A client that does not read its responses cannot hold a connection, memory or the stop of the server."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn

from penstock.http.application import make_application
from penstock.http.protocol import ConnectionLimits
from penstock.http.server import ServerOptions, server_config
from penstock.state.tokens import TokenRole
from support import builders
from support.workspaces import open_at, write_workspace

REQUEST = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"  # public, 300 KB
LAST = REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
MANY = 40  # responses: more than the kernel takes
QUICK = ConnectionLimits(send_seconds=1.0)


class RunningServer:
    """uvicorn with the application and the settings of `penstock serve`, in a thread."""

    def __init__(self, config: uvicorn.Config) -> None:
        self.server = uvicorn.Server(config)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.has_failed = True

    def _run(self) -> None:
        asyncio.run(self.server.serve([self.listening]))
        self.has_failed = False

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)

    @property
    def tasks(self) -> int:
        return len(self.server.server_state.tasks)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> ServerOptions:
    """Options of a server with TLS."""
    folder = tmp_path_factory.mktemp("certificate")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", folder / "key.pem", "-out",
         folder / "cert.pem", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return ServerOptions(certfile=folder / "cert.pem", keyfile=folder / "key.pem")


@contextmanager
def running(
    limits: ConnectionLimits = QUICK, options: ServerOptions = ServerOptions(), most: int | None = None
) -> Iterator[RunningServer]:
    with builders.quick_folder() as folder:
        workspace = open_at(write_workspace(Path(folder)))
        workspace.tokens.create("ada", TokenRole.VIEWER, actor="ada")
        config = server_config(make_application(workspace, workspace.context.workers.register()), options, limits)
        config.limit_concurrency = most or config.limit_concurrency
        found = RunningServer(config)
        found.thread.start()
        try:
            until(lambda: found.server.started)
            yield found
        finally:
            found.server.should_exit = True
            found.thread.join(60)
            workspace.close()


def until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def connected(port: int, options: ServerOptions = ServerOptions()) -> Iterator[socket.socket]:
    """A client whose kernel takes few bytes for it."""
    with socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        plain.settimeout(30)
        plain.connect(("127.0.0.1", port))
        if options.certfile is None:
            yield plain
            return
        with ssl.create_default_context(cafile=str(options.certfile)).wrap_socket(
            plain, server_hostname="127.0.0.1"
        ) as encrypted:
            yield encrypted


@pytest.mark.parametrize(
    "sent", [REQUEST, LAST, REQUEST * MANY, REQUEST * (MANY - 1) + LAST], ids=["one", "last", "many", "all"]
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_client_that_never_reads_is_disconnected(sent: bytes, scheme: str, certificate: ServerOptions) -> None:
    options = certificate if scheme == "https" else ServerOptions()
    with running(options=options) as server:
        if len(sent) < 1000:  # one response, which is larger than the kernel's buffer
            server.listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        with connected(server.port, options) as client:
            client.sendall(sent)
            until(lambda: server.connections == 1)
            until(lambda: (server.connections, server.tasks) == (0, 0), seconds=120)


def test_clients_that_never_read_leave_their_places_to_others() -> None:
    with running(ConnectionLimits(send_seconds=8.0), most=4) as server, ExitStack() as clients:
        server.listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        state = server.server.server_state
        for number in (1, 2, 3):
            clients.enter_context(connected(server.port)).sendall(REQUEST)
            until(lambda number=number: server.connections == number and state.total_requests == number)  # type: ignore[misc]
        alive = f"http://127.0.0.1:{server.port}/health/live"
        assert httpx.get(alive).status_code == 503
        until(lambda: httpx.get(alive).status_code == 200, seconds=120)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_client_that_reads_slowly_gets_everything(scheme: str, certificate: ServerOptions) -> None:
    options = certificate if scheme == "https" else ServerOptions()
    with running(options=options) as server, connected(server.port, options) as client:
        client.sendall(REQUEST * (MANY - 1) + LAST)
        received, began = bytearray(), time.monotonic()
        while part := client.recv(65536):
            received += part
            if time.monotonic() - began < 5 * QUICK.send_seconds:
                time.sleep(0.05)
        assert time.monotonic() - began > 3 * QUICK.send_seconds
    assert len(re.findall(rb"HTTP/1.1 200 OK", received)) == MANY


@pytest.mark.parametrize("sent", [REQUEST, LAST, REQUEST * MANY], ids=["one", "last", "many"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_client_that_never_reads_does_not_delay_the_stop_of_the_server(
    sent: bytes, scheme: str, certificate: ServerOptions
) -> None:
    """After its last response the connection is closed already, and closed again by the stop."""
    options = certificate if scheme == "https" else ServerOptions()
    with running(ConnectionLimits(send_seconds=600, stop_seconds=0.5), options) as server:
        if sent != REQUEST * MANY:
            server.listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        with connected(server.port, options) as client:
            client.sendall(sent)
            until(lambda: server.server.server_state.total_requests >= 1)
            began = time.monotonic()
            server.server.should_exit = True
            server.thread.join(120)
            assert time.monotonic() - began < 60  # without the limit: 600
            assert not server.has_failed
