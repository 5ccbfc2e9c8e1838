"""A web service for tests: real sockets, responses written by the test."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as the server saw it."""

    path: str
    params: Mapping[str, str]
    headers: Mapping[str, str]
    method: str = "GET"
    body: bytes = b""

    @property
    def document(self) -> Any:
        """The JSON of the body."""
        return json.loads(self.body)

    @property
    def form(self) -> dict[str, str]:
        """The fields of a form in the body."""
        return dict(parse_qsl(self.body.decode()))


@dataclass(frozen=True, slots=True)
class Said:
    """One response; the last `cut` bytes of its declared length are missing."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int = 0


@dataclass(slots=True)
class Service:
    url: str
    asked: list[Asked] = field(default_factory=list)


@contextmanager
def service(answer: Callable[[Asked], Said]) -> Iterator[Service]:
    """Serve on a free port until the block ends; records the requests."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            parts, headers = urlsplit(self.path), {k.lower(): v for k, v in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", 0)))
            asked = Asked(parts.path, dict(parse_qsl(parts.query)), headers, self.command, body)
            here.asked.append(asked)
            said = answer(asked)
            self.send_response(said.status)
            for name, value in said.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(said.body) + said.cut))
            self.end_headers()
            self.wfile.write(said.body)
            self.close_connection = self.close_connection or said.cut > 0

        def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - the name that the library gives it
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that hangs up early is part of some tests."""

    server = Server(("127.0.0.1", 0), Handler)
    here = Service(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield here
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
