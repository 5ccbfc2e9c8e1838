"""An S3-compatible server in memory that delays every answer and counts requests, and a web service that does the same.

Speaks as much of S3 as Penstock, delta-rs and Arrow use: conditional and ranged requests, listings, multipart uploads.
`POST /request-counts` returns and clears the counts; `POST /timeline` returns and clears when each request began and
ended; `POST /delay?milliseconds=30` sets the delay of storage requests;
`GET /report/CUSTOMER/DAY?milliseconds=300&rows=10` is the web service, and `POST /in-flight` returns how many of its
requests were in flight.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from urllib.parse import unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from aiohttp import web

from bench.counting_s3 import CONTROL, request_kind
from bench.round_trips import Timed

DELAY, IN_FLIGHT, REPORT, TIMELINE = "/delay", "/in-flight", "/report/", "/timeline"
_XML = "application/xml"
_MODIFIED = "Mon, 17 Jun 2024 12:00:00 GMT"
_LARGEST_BODY = 1024**3


@dataclass(slots=True)
class Concurrency:
    """How many requests were in flight between the first and the last, on average and at most."""

    now: int = 0
    peak: int = 0
    area: float = 0.0
    since: float = 0.0
    first: float = 0.0

    def change(self, by: int) -> None:
        moment = time.monotonic()
        if not self.first:
            self.first = self.since = moment
        self.area += self.now * (moment - self.since)
        self.since = moment
        self.now += by
        self.peak = max(self.peak, self.now)

    def facts(self) -> dict[str, float]:
        seconds = self.since - self.first
        return {"mean": self.area / seconds if seconds else 0.0, "peak": self.peak, "seconds": seconds}


@dataclass(slots=True)
class MemoryS3:
    """Objects by bucket and key. Everything happens in one thread, so requests are atomic."""

    objects: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    timeline: list[Timed] = field(default_factory=list)
    reports: Concurrency = field(default_factory=Concurrency)
    delay: float = 0.0
    _ids: count[int] = field(default_factory=lambda: count(1))

    async def answer(self, request: web.Request) -> web.Response:
        path = unquote(request.path)
        if path == CONTROL:
            counts, self.counts = self.counts, Counter()
            return web.json_response(counts)
        if path == TIMELINE:
            timeline, self.timeline = self.timeline, []
            return web.json_response(timeline)
        if path == DELAY:
            self.delay = float(request.query["milliseconds"]) / 1000
            return web.Response()
        if path == IN_FLIGHT:
            reports, self.reports = self.reports, Concurrency()
            return web.json_response(reports.facts())
        if path.startswith(REPORT):
            return await self._report(request)
        kind, began = request_kind(request.method, path, request.query_string), time.monotonic()
        self.counts[kind] += 1
        body = _decoded(request, await request.read())
        if self.delay:
            await asyncio.sleep(self.delay)
        try:
            return self._storage(request, path, body)
        finally:
            self.timeline.append((began, time.monotonic(), kind, f"{path}?{request.query_string}"))

    def _storage(self, request: web.Request, path: str, body: bytes) -> web.Response:
        key = path.lstrip("/")
        if "/" not in key.rstrip("/"):
            return self._bucket(request, body, key.rstrip("/"))
        answers: dict[str, Callable[[web.Request, str, bytes], web.Response]] = {
            "PUT": self._put,
            "POST": self._post,
            "GET": self._get,
            "HEAD": self._head,
            "DELETE": self._delete,
        }
        return answers[request.method](request, key, body)

    async def _report(self, request: web.Request) -> web.Response:
        self.reports.change(1)
        try:
            await asyncio.sleep(float(request.query.get("milliseconds", 0)) / 1000)
        finally:
            self.reports.change(-1)
        rows = [{"campaign_id": n, "clicks": n, "impressions": 2 * n} for n in range(int(request.query.get("rows", 1)))]
        return web.json_response(rows)

    def _bucket(self, request: web.Request, body: bytes, bucket: str) -> web.Response:
        if request.method == "GET":
            return self._listing(request, bucket)
        if request.method == "POST" and "delete" in request.query:
            names = [node.text or "" for node in ElementTree.fromstring(body).iter() if node.tag.endswith("Key")]
            for name in names:
                self.objects.pop(f"{bucket}/{name}", None)
            done = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in names)
            return web.Response(text=f"<DeleteResult>{done}</DeleteResult>", content_type=_XML)
        return web.Response()

    def _listing(self, request: web.Request, bucket: str) -> web.Response:
        wanted, start = f"{bucket}/{request.query.get('prefix', '')}", len(bucket) + 1
        delimiter = request.query.get("delimiter", "")
        after = request.query.get("continuation-token") or request.query.get("start-after", "")
        most = int(request.query.get("max-keys", 1000))
        contents: list[str] = []
        folders: list[str] = []
        last, is_cut = "", False
        for key in sorted(key for key in self.objects if key.startswith(wanted)):
            name = key[start:]
            rest = key[len(wanted) :]
            folder = f"{name[: len(name) - len(rest)]}{rest.partition(delimiter)[0]}{delimiter}" if delimiter else ""
            shown = folder if delimiter and delimiter in rest else name
            if shown <= after or shown in folders:
                continue
            if len(contents) + len(folders) == most:
                is_cut = True
                break
            last = shown
            if shown is folder:
                folders.append(folder)
            else:
                contents.append(
                    f"<Contents><Key>{escape(name)}</Key><LastModified>2024-06-17T12:00:00.000Z</LastModified>"
                    f'<ETag>"{len(self.objects[key])}"</ETag><Size>{len(self.objects[key])}</Size></Contents>'
                )
        prefixes = "".join(f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in folders)
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if is_cut else ""
        text = (
            f"<ListBucketResult><Name>{bucket}</Name><KeyCount>{len(contents) + len(folders)}</KeyCount>"
            f"<IsTruncated>{str(is_cut).lower()}</IsTruncated>{token}{''.join(contents)}{prefixes}</ListBucketResult>"
        )
        return web.Response(text=text, content_type=_XML)

    def _put(self, request: web.Request, key: str, body: bytes) -> web.Response:
        if "uploadId" in request.query:
            self.uploads[request.query["uploadId"]][int(request.query["partNumber"])] = body
            return web.Response(headers={"ETag": f'"{len(body)}"'})
        if request.headers.get("If-None-Match") == "*" and key in self.objects:
            return _error(412, "PreconditionFailed")
        self.objects[key] = body
        return web.Response(headers={"ETag": f'"{len(body)}"'})

    def _post(self, request: web.Request, key: str, _body: bytes) -> web.Response:
        if "uploads" in request.query:
            upload = str(next(self._ids))
            self.uploads[upload] = {}
            text = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            return web.Response(text=text, content_type=_XML)
        parts = self.uploads.pop(request.query["uploadId"])
        if request.headers.get("If-None-Match") == "*" and key in self.objects:
            return _error(412, "PreconditionFailed")
        self.objects[key] = b"".join(parts[number] for number in sorted(parts))
        text = f'<CompleteMultipartUploadResult><ETag>"{key}"</ETag></CompleteMultipartUploadResult>'
        return web.Response(text=text, content_type=_XML)

    def _get(self, request: web.Request, key: str, _body: bytes) -> web.Response:
        data = self.objects.get(key)
        if data is None:
            return _error(404, "NoSuchKey")
        headers = {"ETag": f'"{len(data)}"', "Last-Modified": _MODIFIED, "Accept-Ranges": "bytes"}
        span = request.headers.get("Range", "")
        if not span:
            return web.Response(body=data, headers=headers)
        low, _, high = span.removeprefix("bytes=").partition("-")
        begin = max(0, len(data) - int(high)) if not low else int(low)
        end = len(data) if not low or not high else min(len(data), int(high) + 1)
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(data)}"
        return web.Response(status=206, body=data[begin:end], headers=headers)

    def _head(self, _request: web.Request, key: str, _body: bytes) -> web.Response:
        data = self.objects.get(key)
        if data is None:
            return web.Response(status=404)
        headers = {"ETag": f'"{len(data)}"', "Last-Modified": _MODIFIED, "Content-Length": str(len(data))}
        return web.Response(headers=headers)

    def _delete(self, request: web.Request, key: str, _body: bytes) -> web.Response:
        if "uploadId" in request.query:
            self.uploads.pop(request.query["uploadId"], None)
        else:
            self.objects.pop(key, None)
        return web.Response(status=204)


def _error(status: int, code: str) -> web.Response:
    return web.Response(status=status, text=f"<Error><Code>{code}</Code></Error>", content_type=_XML)


def _decoded(request: web.Request, body: bytes) -> bytes:
    """The content of a body in chunks with checksums, as the AWS SDK in Arrow sends it."""
    if "aws-chunked" not in request.headers.get("Content-Encoding", ""):
        return body
    found: list[bytes] = []
    at = 0
    while True:
        line = body.index(b"\r\n", at)
        size = int(body[at:line].partition(b";")[0], 16)
        if not size:
            return b"".join(found)
        found.append(body[line + 2 : line + 2 + size])
        at = line + 2 + size + 2


def main(port: int) -> None:
    app = web.Application(client_max_size=_LARGEST_BODY)
    app.router.add_route("*", "/{path:.*}", MemoryS3().answer)
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


if __name__ == "__main__":
    main(int(sys.argv[1]))
