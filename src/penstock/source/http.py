"""The source of kind http: rows of a web service that returns pages of JSON. Records are kept as received."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar
from urllib.parse import urljoin, urlsplit

import pydantic

from penstock.config.assets import Query
from penstock.config.settings import Customer
from penstock.config.values import KeyDoc
from penstock.errors import ConfigError, DataError, SourceUnavailable
from penstock.source.connectivity import connect
from penstock.source.days import Days
from penstock.source.options import Options, naming_query, read_options
from penstock.source.paging import Cursor, Page, Paging, Step
from penstock.source.protocol import COMPLETE, Row, RunContext
from penstock.source.response import Record, ResponsePage, trail
from penstock.source.template import DAY_NAMES, filled, names_in, of_day
from penstock.source.web import Caller, host_of, is_address, shown


def _header_text(text: str) -> str:
    if not text.isascii() or not text.isprintable():  # the error message of the client would contain it
        raise ValueError("must be one line of plain ASCII text")
    return text


def _as_text(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


Header = Annotated[str, pydantic.AfterValidator(_header_text)]
Parameter = Annotated[str | int | float | bool, pydantic.AfterValidator(_as_text)]


class Request(Options):
    """Options of a request, for the source or a query; those of the query take precedence."""

    url: str | None = None
    params: dict[str, Parameter] = pydantic.Field(default_factory=dict, repr=False)
    records: str = ""
    date_field: str | None = None
    paging: Paging | None = None

    documentation: ClassVar = {
        "url": KeyDoc(
            "The address, with `{customer_id}`, `{query_name}`, and `{date}` or `{first_date}` and `{last_date}`.",
            '"https://api.example.com/{customer_id}?day={date}"',
        ),
        "params": KeyDoc("Parameters of the address, with the same placeholders.", '{day: "{date}"}'),
        "records": KeyDoc("The dotted path to the list of records. By default the response itself.", "data.items"),
        "date_field": KeyDoc("The field with the day of a record. Required when one request covers many days.", "day"),
        "paging": KeyDoc("How the next page is requested.", "{kind: link}"),
    }


class HttpOptions(Request):
    """Options of `sources.<name>` for kind http. Headers are allowed only here: options of a query are stored with its
    contract."""

    headers: dict[str, Header] = pydantic.Field(default_factory=dict, repr=False)
    timeout: float = pydantic.Field(default=60.0, gt=0)

    documentation: ClassVar = {
        **Request.documentation,
        "headers": KeyDoc(
            "Headers of each request. They are never shown.",
            '{Authorization: "Bearer ${TOKEN}"}',
            "map",
        ),
        "timeout": KeyDoc("The largest number of seconds without a byte from the server.", "30"),
    }


class HttpSource:
    """Implements the source protocol with GET requests: one for a span or one for each day, and their further pages."""

    in_date_order = False
    api_version = "http-1"

    @staticmethod
    def requests_in_flight(options: Mapping[str, Any]) -> int | None:
        """A service responds in tenths of a second, most of which it waits itself."""
        return 16

    @staticmethod
    def asks_by_day(options: Mapping[str, Any], query: Query) -> bool:
        """Whether the address or a parameter names the day."""
        places = [place for given in (options, query.options) for place in (given.get("url"), given.get("params"))]
        texts = [str(text) for place in places for text in (place.values() if isinstance(place, dict) else [place])]
        return bool(set().union(*map(names_in, texts)) & set(DAY_NAMES))

    def __init__(self, options: Mapping[str, Any], context: RunContext) -> None:
        if find_spec("httpx") is None:
            raise ConfigError("kind http needs the package httpx: pip install 'penstock[http]'")
        self._options = known = read_options(HttpOptions, options)
        self._common = {name: value for name, value in options.items() if name not in ("headers", "timeout")}
        secrets = [*known.headers.values(), *map(str, known.params.values()), _login(known.url)]
        self._caller = Caller(known.headers, known.timeout, context.budget, secrets)

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
                    yield from self._rows(request, query, names | of_day(day), [day])
                except (DataError, ConfigError) as error:  # an error of this day; any other is of the service
                    yield day, error
                else:
                    yield day, COMPLETE
            return
        names |= {"first_date": min(dates).isoformat(), "last_date": max(dates).isoformat()}
        yield from self._rows(request, query, names, dates)

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
        field = request.date_field
        surplus = None if field is None or any(known.name == field for known in query.fields) else field
        days = Days(dates, field or "")
        for number, page in enumerate(self._pages(request, names), start=1):
            for place, record in enumerate(page.records, start=1):
                try:
                    day = dates[0] if field is None else days.of(_cell(record, field))
                except DataError as error:
                    raise DataError(f"page {number}, record {place}: {error}") from error
                if day is not None:
                    yield day, record.line(without=surplus)

    def _pages(self, request: Request, names: Mapping[str, str]) -> Iterator[ResponsePage]:
        paging = request.paging
        url = filled(str(request.url), names)
        params = {name: filled(str(value), names) for name, value in request.params.items()}
        also = trail(paging.next) if isinstance(paging, Cursor) else None
        step: Step | None = paging.first() if paging else Step()
        requested: set[tuple[object, ...]] = set()
        before = b""
        number = 0
        while step is not None:
            number += 1
            if step.key in requested:
                raise DataError(f"page {number} was received before: the pages of {shown(url)} repeat")
            requested.add(step.key)
            reply = self._caller.ask(step.url or url, {} if step.url else {**params, **step.params}, number)
            if reply.body is None:
                return
            page = _parsed(reply.body, trail(request.records), also, number)
            if page.records and reply.body == before:
                raise DataError(f"page {number} equals the one before: {shown(url)} ignores the page parameter")
            before = reply.body
            yield page
            step = paging.after(step, Page(len(page.records), page.also, reply.link)) if paging else None


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
    """True if each day is a separate request, because the address or a parameter names the day. Raises ConfigError if
    the request names no days, or unknown names."""
    texts = [str(request.url), *map(str, request.params.values())]
    names = set().union(*map(names_in, texts))
    by_day = bool(names & set(DAY_NAMES))
    if not by_day and not {"first_date", "last_date"} <= names:
        raise ConfigError("url or params must have {date}, or {first_date} and {last_date}")
    if not by_day and request.date_field is None:
        raise ConfigError("date_field: is missing: it names the field with the day of a record")
    known = ("customer_id", "query_name", *(DAY_NAMES if by_day else ("first_date", "last_date")))
    for text in texts:
        filled(text, dict.fromkeys(known, ""))
    return by_day


def _parsed(body: bytes, records: tuple[str, ...], also: tuple[str, ...] | None, number: int) -> ResponsePage:
    try:
        return ResponsePage(body.decode("utf-8"), records, also)
    except UnicodeDecodeError as error:
        raise DataError(f"page {number} is not UTF-8 text (at byte {error.start + 1})") from error
    except DataError as error:
        raise DataError(f"page {number} {error}") from error


def _cell(record: Record, field: str) -> object:
    return record.value.get(field) if isinstance(record.value, dict) else None
