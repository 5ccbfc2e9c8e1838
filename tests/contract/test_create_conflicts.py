"""Object storage that reports a conflict for a create: the object may exist, or another request may still fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from penstock.lake import open_lake
from penstock.lake.protocol import LakeUnavailable
from support.servers import s3_environment

CONFLICT = b"<Error><Code>ConditionalRequestConflict</Code><Message>conflict</Message></Error>"


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The paths of objects that exist. Every PUT is refused with a conflict."""
    paths: set[str] = set()

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(409)
            self.send_header("Content-Length", str(len(CONFLICT)))
            self.end_headers()
            self.wfile.write(CONFLICT)

        def do_HEAD(self) -> None:
            self.send_response(200 if self.path in paths else 404)
            self.send_header("Content-Length", "1")
            self.send_header("ETag", '"x"')
            self.send_header("Last-Modified", "Sat, 01 Jun 2024 00:00:00 GMT")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    for name, value in s3_environment(f"http://127.0.0.1:{server.server_port}").items():
        monkeypatch.setenv(name, value)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield paths
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_conflict_means_that_the_object_exists_only_if_it_does(stored: set[str]) -> None:
    lake = open_lake("s3://bucket/prefix")
    with pytest.raises(LakeUnavailable, match="repeat the work"):
        lake.create("segment", b"events")  # the caller must not delete what it wanted to store
    stored.add("/bucket/prefix/segment")
    assert lake.create("segment", b"events") is False
