"""The S3 server of the tests: `python s3_server.py PORT HOST`. It is a program: it imports no other test module."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any


def s3_application() -> Callable[..., Iterable[bytes]]:
    """Make moto atomic: it checks whether a key exists and then writes it, without a lock; S3 has no such gap."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    app = DomainDispatcherApplication(create_backend_app)
    one_at_a_time = threading.Lock()

    def atomic(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if "HTTP_IF_NONE_MATCH" in environ or "HTTP_IF_MATCH" in environ:
            with one_at_a_time:
                return list(app(environ, start_response))
        answer: Iterable[bytes] = app(environ, start_response)
        return answer

    return atomic


def _serve(port: int, host: str) -> None:
    from werkzeug.serving import run_simple

    run_simple(host, port, s3_application(), threaded=True)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2])
