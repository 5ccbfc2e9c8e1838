"""moto's S3 server with faults: some requests are answered with 500 or 503, late, or after the work was done.

An error after the work is the worst case: the object was written, and the client does not know. `POST /soak-faults`
with a JSON document sets the share of requests that fail and the longest delay.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from bench.soak.tests_path import add_tests_to_path

CONTROL = "/soak-faults"
_ERROR = b'<?xml version="1.0"?><Error><Code>%s</Code><Message>injected</Message></Error>'
_ANSWERS = (("500 Internal Server Error", b"InternalError"), ("503 Slow Down", b"SlowDown"))


def faulty(app: Callable[..., Iterable[bytes]], seed: int) -> Callable[..., Iterable[bytes]]:
    """The WSGI application `app` behind injected faults."""
    settings = {"share": 0.0, "delay": 0.0}
    chance, lock = random.Random(seed), threading.Lock()

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == CONTROL:
            settings.update(json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))))
            start_response("204 No Content", [])
            return []
        with lock:
            fails, late, afterwards = (chance.random() for _ in range(3))
            status, code = chance.choice(_ANSWERS)
        if settings["delay"]:
            time.sleep(late * settings["delay"])
        if fails >= settings["share"]:
            return app(environ, start_response)
        if afterwards < 0.5:
            list(app(environ, lambda *_: lambda _data: None))
        start_response(status, [("Content-Type", "application/xml")])
        return [_ERROR % code]

    return answer


def main(seed: int, port: int) -> None:
    add_tests_to_path()
    from werkzeug.serving import run_simple

    from support.s3_server import s3_application

    run_simple("127.0.0.1", port, faulty(s3_application(), seed), threaded=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
