"""A receiver of webhooks: real HTTP on loopback, with the responses that a test sets, and an independent check of what
it receives."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "hook-secret-0123456789"


@dataclass(slots=True)
class Receiver:
    """What the receiver accepted, and the status of its responses."""

    url: str = ""
    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)  # of responses
    endless: bool = False  # the body of a response never ends
    refuses: str = ""  # responds with 400 to events whose subject contains this
    requests: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)  # in the order of arrival, with repetitions

    def accept(self, headers: dict[str, str], body: bytes) -> int:
        """Check and keep a request; returns the status of the response."""
        self.requests += 1
        event = json.loads(body)
        if self.status != 204:
            return self.status
        if self.refuses and self.refuses in event.get("subject", ""):
            return 400
        if "penstock-signature" in headers:
            assert headers["content-type"].startswith("application/cloudevents+json")
            parts = dict(part.split("=", 1) for part in headers["penstock-signature"].split(","))
            expected = hmac.new(SECRET.encode(), parts["t"].encode() + b"." + body, hashlib.sha256).hexdigest()
            assert hmac.compare_digest(parts["v1"], expected)
        self.events.append(event)
        return 204

    def notices(self) -> list[tuple[str, str]]:
        """Kind and subject of each event, without repetitions of an id, in the order of the first arrival."""
        found = {event["id"]: event for event in reversed(self.events)}
        first = sorted(found.values(), key=self.events.index)
        return [(event["type"].removeprefix("dev.penstock.alert."), event["subject"]) for event in first]


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Serve on a free port until the block ends."""
    here = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            try:
                status = here.accept({name.lower(): value for name, value in self.headers.items()}, body)
            except AssertionError:
                status = 418
            self.send_response(status)
            for name, value in here.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "1000000000" if here.endless else "0")
            self.end_headers()
            try:
                while here.endless:
                    self.wfile.write(b".")
                    self.wfile.flush()
                    time.sleep(0.05)
            except OSError:
                pass  # the sender closed the connection

        def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - the name that the library gives it
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    here.url = f"http://127.0.0.1:{server.server_port}/hook"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield here
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
