"""The source of kind http: rows of a web service, in pages or files. Records are kept as received unless columns are
declared."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from importlib.util import find_spec
from typing import Any
from urllib.parse import urljoin, urlsplit

from penstock.config.assets import Query
from penstock.config.settings import Customer
from penstock.errors import ConfigError, DataError, SourceUnavailable
from penstock.source.connectivity import connect
from penstock.source.http_options import SOURCE_ONLY, HttpOptions, Request
from penstock.source.http_rows import RowMaker, file_records
from penstock.source.oauth import shared_tokens
from penstock.source.options import naming_query, read_options
from penstock.source.paging import Links, NextAddress, Page, Step
from penstock.source.protocol import COMPLETE, Row, RunContext
from penstock.source.report_job import ReportRunner
from penstock.source.response import Record, ResponsePage, trail
from penstock.source.template import (
    DAY_NAMES,
    INSTANT_NAMES,
    SPAN_NAMES,
    filled,
    filled_document,
    names_in,
    of_day,
    of_instants,
    of_span,
    texts_in,
)
from penstock.source.web import Caller, WebRequest, host_of, is_address, same_host, shown

_BY_DAY = {*DAY_NAMES, *INSTANT_NAMES}


class HttpSource:
    """Implements the source protocol with HTTP requests: one for a span or one for each day, their further pages, or a
    report job and its file."""

    in_date_order = False
    api_version = "http-1"

    @staticmethod
    def requests_in_flight(options: Mapping[str, Any]) -> int | None:
        """A service responds in tenths of a second, most of which it waits itself."""
        return 16

    @staticmethod
    def asks_by_day(options: Mapping[str, Any], query: Query) -> bool:
        """Whether the request names the day."""
        places = ("url", "params", "body", "form")
        texts = [text for given in (options, query.options) for place in places for text in texts_in(given.get(place))]
        return bool(set().union(*map(names_in, texts)) & _BY_DAY)

    def __init__(self, options: Mapping[str, Any], context: RunContext) -> None:
        if find_spec("httpx") is None:
            raise ConfigError("kind http needs the package httpx: pip install 'penstock[http]'")
        self._options = known = read_options(HttpOptions, options)
        self._common = {name: value for name, value in options.items() if name not in SOURCE_ONLY}
        secrets = [*known.headers.values(), *map(str, known.params.values()), _login(known.url)]
        tokens = None
        if known.oauth is not None:
            tokens = shared_tokens(known.oauth)
            secrets += [known.oauth.client_secret or "", known.oauth.refresh_token or ""]
        self._headers = [(name, text) for name, text in known.headers.items() if "{customer_id}" in text]
        self._caller = Caller(known.headers, known.timeout, context.budget, secrets, tokens, context.warn)

    def refuse(self, query: Query) -> None:
        _asks_by_day(self._request(query))

    def extract(self, query: Query, customer: Customer, dates: Sequence[date]) -> Iterator[tuple[date, Row]]:
        with naming_query(query.name):
            request = self._request(query)
            by_day = _asks_by_day(request)
        names = {"customer_id": customer.id, "query_name": query.name}
        if by_day:
            for day in dates:
                try:
                    of_the_day = of_day(day) | of_instants(day, customer.time_zone)
                    yield from self._rows(request, query, names | of_the_day, [day])
                except (DataError, ConfigError) as error:  # an error of this day; any other is of the service
                    yield day, error
                else:
                    yield day, COMPLETE
            return
        yield from self._rows(request, query, names | of_span(min(dates), max(dates)), dates)

    def probe(self, queries: Sequence[Query], seconds: float) -> list[str]:
        problems = []
        for scheme, host, port in sorted({host_of(self._request(query).url or "") for query in queries}):
            try:
                connect(host, port, seconds, scheme)
            except SourceUnavailable as error:
                problems.append(str(error))
        return problems

    def _request(self, query: Query) -> Request:
        """The options of the source, overridden by those of the query. The url of the query may be relative; its params
        are added."""
        own = read_options(Request, query.options)
        merged = {**self._common, **query.options, "params": {**self._options.params, **own.params}}
        if own.url is not None:
            merged["url"] = _joined(self._options.url or "", own.url)
        request = read_options(Request, merged)
        if request.url is None or not is_address(request.url):
            raise ConfigError("url: write http:// or https:// and the address")
        return request

    def _rows(
        self, request: Request, query: Query, names: Mapping[str, str], dates: Sequence[date]
    ) -> Iterator[tuple[date, Row]]:
        """Every record with its day: the requested day, or that of its `date_field`."""
        rows = RowMaker(request, query.fields, dates)
        headers = {name: text.replace("{customer_id}", names["customer_id"]) for name, text in self._headers}
        target: WebRequest | None = replace(_web_request(request, names), headers=headers)
        if request.report is not None and target is not None:
            target = ReportRunner(self._caller, request.report).result(target, names)
        if target is None:
            return
        is_file = request.format != "json" or request.compression != "none"
        records = self._file_records(target, request, query) if is_file else self._page_records(target, request)
        for place, record in records:
            try:
                found = rows.row(record)
            except DataError as error:
                raise DataError(f"{place}: {error}") from error
            if found is not None:
                yield found

    def _file_records(self, target: WebRequest, request: Request, query: Query) -> Iterator[tuple[str, Record]]:
        with tempfile.TemporaryFile() as file:
            name = urlsplit(target.url).path.rpartition("/")[2] or "the response"
            if self._caller.download(target, file):
                for number, record in file_records(file, name, request, query.fields):
                    yield f"{name}, record {number}", record

    def _page_records(self, target: WebRequest, request: Request) -> Iterator[tuple[str, Record]]:
        for number, page in enumerate(self._pages(target, request), start=1):
            for place, record in enumerate(page.records, start=1):
                yield f"page {number}, record {place}", record

    def _pages(self, target: WebRequest, request: Request) -> Iterator[ResponsePage]:
        paging = request.paging
        path = None if paging is None else getattr(paging, "also", None)
        also = trail(path) if path else None
        step: Step | None = paging.first() if paging else Step()
        requested: set[tuple[object, ...]] = set()
        before = b""
        number = 0
        while step is not None:
            number += 1
            if step.key in requested:
                raise DataError(f"page {number} was received before: the pages of {shown(target.url)} repeat")
            requested.add(step.key)
            reply = self._caller.ask(_at_step(target, request, step), number)
            if reply.body is None:
                return
            page = _parsed(reply.body, request, also, number)
            if page.records and reply.body == before:
                raise DataError(f"page {number} equals the one before: {shown(target.url)} ignores the page parameter")
            before = reply.body
            yield page
            last = page.records[-1].value if page.records else None
            step = paging.after(step, Page(len(page.records), page.also, reply.link, last)) if paging else None
            if step is not None and step.url is not None and not same_host(step.url, target.url):
                raise DataError(f"{shown(target.url)} names {shown(step.url)} for its next page, which is another host")


def _web_request(request: Request, names: Mapping[str, str]) -> WebRequest:
    return WebRequest(
        filled(str(request.url), names),
        {name: filled(str(value), names) for name, value in request.params.items()},
        request.method,
        None if request.body is None else filled_document(request.body, names),
        None if request.form is None else {name: filled(str(value), names) for name, value in request.form.items()},
        request.errors,
    )


def _at_step(target: WebRequest, request: Request, step: Step) -> WebRequest:
    """The request for one page: a whole address, or with the parameters of the page in the address or the body."""
    if step.url is not None:
        return replace(target, url=urljoin(target.url, step.url), params={}, method="GET", body=None, form=None)
    paging = request.paging
    if paging is None or isinstance(paging, Links | NextAddress) or not step.params:
        return target
    place = paging.place or ("params" if target.body is None and target.form is None else "body")
    if place == "params":
        return replace(target, params={**target.params, **step.params})
    if target.body is None:
        return replace(target, form={**(target.form or {}), **step.params})
    body = target.body
    for name, value in step.params.items():
        body = _with_value(body, trail(name), int(value) if paging.is_number else value)
    return replace(target, body=body)


def _with_value(document: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """A copy of the document with a value at a path."""
    name, *rest = path
    inner = document.get(name)
    if not rest:
        return {**document, name: value}
    return {**document, name: _with_value(inner if isinstance(inner, Mapping) else {}, rest, value)}


def _login(url: str | None) -> str:
    try:
        return urlsplit(url or "").password or ""
    except ValueError:
        raise ConfigError("url: is not the address of a web service") from None


def _joined(base: str, url: str) -> str:
    try:
        return urljoin(base, url)
    except ValueError:
        return ""


def _asks_by_day(request: Request) -> bool:
    """True if each day is a separate request, because the request names the day. Raises ConfigError if the request
    names no days, or unknown names."""
    addressed = [str(request.url), *map(str, request.params.values()), *map(str, (request.form or {}).values())]
    names = set().union(*map(names_in, [*addressed, *texts_in(request.body)]))
    by_day = bool(names & _BY_DAY)
    if not by_day and not _names_span(names):
        raise ConfigError("url, params, body or form must have {date}, or {first_date} and {last_date}")
    if not by_day and request.date_field is None:
        raise ConfigError("date_field: is missing: it names the field with the day of a record")
    known = ("customer_id", "query_name", *(_BY_DAY if by_day else SPAN_NAMES))
    for text in addressed:
        filled(text, dict.fromkeys(sorted(known), ""))
    return by_day


def _names_span(names: set[str]) -> bool:
    return all(any(name.startswith(f"{which}_") for name in names & set(SPAN_NAMES)) for which in ("first", "last"))


def _parsed(body: bytes, request: Request, also: tuple[str, ...] | None, number: int) -> ResponsePage:
    try:
        return ResponsePage(body.decode("utf-8"), trail(request.records), also, is_optional=request.records_optional)
    except UnicodeDecodeError as error:
        raise DataError(f"page {number} is not UTF-8 text (at byte {error.start + 1})") from error
    except DataError as error:
        raise DataError(f"page {number} {error}") from error
