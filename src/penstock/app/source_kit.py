"""A package for a source of one's own: a class that calls a web service, tests with a local server, and packaging."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.errors import UsageError

_NAME = re.compile("[a-z][a-z0-9_]{0,30}")


def write_source_package(folder: Path, name: str) -> list[Path]:
    """Write the package to a new folder and return its files. Raises UsageError for a name that cannot be the kind of a
    source, and for a folder that exists."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the kind of a source: use lower-case letters, digits and underscores, starting with a"
            " letter, at most 31 of them"
        )
    words = {"@NAME@": name, "@CLASS@": "".join(part.title() for part in name.split("_")) + "Source"}
    if folder.exists():
        raise UsageError(f"{folder} exists already: choose another folder with --folder")
    written = []
    try:
        for place, text in _FILES.items():
            for word, value in words.items():
                place, text = place.replace(word, value), text.replace(word, value)
            file = folder / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            written.append(file)
    except OSError as error:
        raise UsageError(f"cannot create {folder}: {error.strerror}") from error
    return written


_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "penstock-@NAME@"
version = "0.1.0"
description = "A Penstock source of kind @NAME@."
requires-python = ">=3.11"
dependencies = ["penstock", "httpx>=0.28"]

[project.optional-dependencies]
test = ["pytest"]

# Penstock finds the class by this entry point: `kind: @NAME@` in the workspace file.
[project.entry-points."penstock.sources"]
@NAME@ = "penstock_@NAME@:@CLASS@"

[tool.hatch.build.targets.wheel]
packages = ["src/penstock_@NAME@"]

[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = ["src"]
"""

_README = """\
# penstock-@NAME@

A [Penstock](https://github.com/penstock/penstock) source of kind `@NAME@`.

```
pip install -e '.[test]'
pytest
```

In a workspace:

```yaml
sources:
  @NAME@: {kind: @NAME@, url: "https://api.example.com", token: "${TOKEN}"}
queries:
  daily:
    source: @NAME@
    start_date: 2024-06-01
    fields:
      - {name: id, type: long, required: true}
      - {name: value, type: double}
```
"""

_CLASS = '''\
"""A Penstock source of kind @NAME@. Change `_rows` and the options to those of your service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any

import httpx
from penstock.errors import AuthFailed, ConfigError, QuotaExceeded, SourceUnavailable
from penstock.source.protocol import COMPLETE

_KNOWN = ("url", "token")


class @CLASS@:
    in_date_order = True  # days come one after the other
    api_version = "@NAME@-1"  # kept with every raw partition
    title = "@NAME@"

    @staticmethod
    def requests_in_flight(options: Mapping[str, Any]) -> int:
        """Requests of one run at the same time, if the workspace file has no `parallelism`."""
        return 16

    @staticmethod
    def asks_by_day(options: Mapping[str, Any], query: Any) -> bool:
        """Each day is a request of its own, so a long span is divided."""
        return True

    def __init__(self, options: Mapping[str, Any], context: Any) -> None:
        if unknown := sorted(set(options) - set(_KNOWN)):
            raise ConfigError(f"{unknown[0]}: unknown option (known: {', '.join(_KNOWN)})")
        if not str(options.get("url", "")).startswith(("http://", "https://")):
            raise ConfigError("url: write http:// or https:// and the address")
        self._url = str(options["url"]).rstrip("/")
        self._token = str(options.get("token", ""))
        self._context = context

    def extract(self, query: Any, customer: Any, dates: Sequence[date]) -> Iterator[tuple[date, Any]]:
        with httpx.Client(headers={"Authorization": f"Bearer {self._token}"}, timeout=60) as client:
            for day in dates:
                for row in self._rows(client, query.name, customer.id, day):
                    yield day, row
                yield day, COMPLETE  # errors on later days do not affect this one

    def _rows(self, client: httpx.Client, query: str, customer_id: str, day: date) -> list[dict[str, Any]]:
        self._context.budget.spend()  # waits for its turn, and raises QuotaUsedUp if the quota is used up
        try:
            response = client.get(f"{self._url}/{customer_id}/{query}", params={"day": day.isoformat()})
        except httpx.TransportError as error:
            raise SourceUnavailable(f"{self._url} does not respond: {type(error).__name__}") from error
        if response.status_code == 429:  # no partition counts an attempt; requests pause as long as the service asks
            after = response.headers.get("Retry-After", "60")
            raise QuotaExceeded(f"{self._url} asks for a pause", float(after) if after.isdecimal() else 60.0)
        if response.status_code in (401, 403):  # the breaker stops the source until a probe succeeds
            raise AuthFailed(f"{self._url} refuses the token")
        if response.status_code >= 500:  # retried by policy
            raise SourceUnavailable(f"{self._url} responded with {response.status_code}")
        if response.status_code != 200:
            raise ConfigError(f"{self._url} refuses the request ({response.status_code})")
        if "Sunset" in response.headers:
            self._context.warn(f"{self._url} announces its end: {response.headers['Sunset']}")
        rows: list[dict[str, Any]] = response.json()
        return rows
'''

_TESTS = '''\
"""What every source must guarantee (SourceSuite), against a local server that behaves like the service."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from penstock.config.assets import Query
from penstock.config.checks import Field
from penstock.testing import SourceSuite
from penstock_@NAME@ import @CLASS@


class Service(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        token = self.headers["Authorization"].removeprefix("Bearer ")
        day = parse_qs(urlsplit(self.path).query)["day"][0]
        rows = [{"id": n, "value": int(day[-2:]) + n / 10} for n in range(3)]
        status = {"right": 200, "busy": 429}.get(token, 401)
        body = json.dumps(rows).encode() if status == 200 else b"{}"
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", "7")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class Test@CLASS@(SourceSuite):
    source = @CLASS@
    query = Query(
        name="daily", source="@NAME@", fields=(Field(name="id", type="long"), Field(name="value", type="double"))
    )
    dates = [date(2024, 6, 1), date(2024, 6, 2), date(2024, 6, 4)]

    @pytest.fixture(autouse=True)
    def _options(self, url: str) -> None:
        self.options = {"url": url, "token": "right"}
        self.failing_options = [{"url": url, "token": "wrong"}, {"url": "http://127.0.0.1:9", "token": "right"}]
        self.quota_options = [{"url": url, "token": "busy"}]
'''

_FILES = {
    "pyproject.toml": _PROJECT,
    "README.md": _README,
    "src/penstock_@NAME@/__init__.py": _CLASS,
    "tests/test_@NAME@.py": _TESTS,
}
