"""Style sheets, scripts and icons. Their URLs name a digest of the content, so that browsers keep them."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib.resources import files

from penstock.http.calls import Call, Reply
from penstock.http.parameters import Parameter, in_path
from penstock.http.problems import RequestRefused
from penstock.http.routes import Access, Route, Thread

_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_NAME = in_path("name", "A file of the pages.", r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")
_DIGEST = Parameter("v", "The digest of the content.")


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file with its digest."""

    content: bytes
    gzipped: bytes
    media_type: str
    digest: str


@cache
def static_files() -> dict[str, StaticFile]:
    """The files that are served, by name."""
    found = {}
    for entry in files("penstock.http.pages").joinpath("static").iterdir():
        kind = _TYPES.get("." + entry.name.rpartition(".")[2])
        if kind is not None:
            content = entry.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:16]
            found[entry.name] = StaticFile(content, gzip.compress(content, 9, mtime=0), kind, digest)
    return found


def static_url(name: str) -> str:
    """The URL of a file. It changes with the content of the file."""
    return f"/static/{name}?v={static_files()[name].digest}"


def show_file(call: Call) -> Reply:
    """A file of the pages. A URL with the digest of the content is valid for ever."""
    found = static_files().get(call.path["name"])
    if found is None:
        raise RequestRefused(f"there is nothing at /static/{call.path['name']}", HTTPStatus.NOT_FOUND)
    kept = call.query["v"] == found.digest
    headers = {"Cache-Control": "public, max-age=31536000, immutable" if kept else "no-cache"}
    return Reply(
        content=found.content, gzipped=found.gzipped, media_type=found.media_type, etag=found.digest, headers=headers
    )


ROUTES = (
    Route(
        "GET",
        "/static/{name}",
        show_file,
        Access.PUBLIC,
        "text/plain",
        "A file of the pages",
        (_NAME, _DIGEST),
        thread=Thread.NONE,
    ),
)
