"""moto's S3 server with a count of requests. `POST /request-counts` returns the counts since the last such request as
JSON, by method and kind of object."""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from bench.soak.tests_path import add_tests_to_path

CONTROL = "/request-counts"
_KINDS = (
    ("/metadata.json", "seals"),
    ("/raw/", "payloads"),
    ("/_delta_log/", "Delta log"),
    ("/warehouse/", "table files"),
    ("/projections/", "projections"),
    ("/cache/", "parsed rows"),
)


def counting(app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """The WSGI application `app` with counts of its requests."""
    counts, lock = Counter[str](), threading.Lock()

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == CONTROL:
            with lock:
                body = json.dumps(counts).encode()
                counts.clear()
            start_response("200 OK", [("Content-Type", "application/json")])
            return [body]
        name = request_kind(environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("QUERY_STRING", ""))
        with lock:
            counts[name] += 1
        return app(environ, start_response)

    return answer


def request_kind(method: str, path: str, query: str) -> str:
    """The method and the kind of object of a request, for example `PUT seals`."""
    if method == "GET" and "list-type" in query:
        return "LIST"
    return f"{method} {next((kind for part, kind in _KINDS if part in path), 'others')}"


def main(port: int) -> None:
    add_tests_to_path()
    from werkzeug.serving import run_simple

    from support.s3_server import s3_application

    run_simple("127.0.0.1", port, counting(s3_application()), threaded=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
