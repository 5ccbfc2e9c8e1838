"""A server that imitates the calls by which Spark creates executor pods. It starts no pod and records the documents."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any

_ONE_POD = re.compile(r"/api/v1/namespaces/[^/]+/pods/([^/?]+)")
_READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


class KubernetesApi(ThreadingHTTPServer):
    """Any named pod exists and is ready, lists are empty, and everything that is created is accepted."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.pods: Queue[dict[str, Any]] = Queue()
        self.closed = threading.Event()

    @property
    def master(self) -> str:
        """The address as `spark.master`."""
        return f"k8s://http://127.0.0.1:{self.server_port}"


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: KubernetesApi

    def log_message(self, *_arguments: object) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        if "watch=true" in self.path:  # nothing ever changes
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            self.server.closed.wait(30)
        elif found := _ONE_POD.match(self.path):
            self._send({"kind": "Pod", "metadata": {"name": found[1], "uid": "driver-uid"}, "status": _READY})
        else:
            self._send({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": []})

    def do_POST(self) -> None:
        document = self._body()
        if document["kind"] == "Pod":
            self.server.pods.put(document)
        self._send(document, 201)

    def do_PATCH(self) -> None:
        self._send(self._body())

    def do_DELETE(self) -> None:
        self._send({"kind": "Status", "status": "Success"})

    def _body(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return document

    def _send(self, document: dict[str, Any], status: int = 200) -> None:
        body = json.dumps({"apiVersion": "v1", **document}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def kubernetes_api() -> Iterator[KubernetesApi]:
    """The server, until the end of the block."""
    with KubernetesApi() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.closed.set()
            server.shutdown()
