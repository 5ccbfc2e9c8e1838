"""A Google Ads server for tests: real gRPC and the library's own messages, with accounts, rows and faults to choose."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from importlib import import_module
from typing import Any

import grpc

VERSION = "v26"
MANAGER = "9999999999"

_QUERY = re.compile(
    r"SELECT (?P<select>.+?) FROM (?P<resource>\w+)(?: WHERE (?P<where>.+?))?(?: ORDER BY (?P<order>.+?))?"
    r"(?: PARAMETERS (?P<parameters>.+))?"
)
_DAYS = re.compile(r"segments\.date BETWEEN '(\d{4}-\d\d-\d\d)' AND '(\d{4}-\d\d-\d\d)'")
_STATUS = re.compile(r"customer_client\.status IN \(([A-Z, ]+)\)")
_LEVEL = re.compile(r"customer_client\.level <= (\d+)")


@dataclass(frozen=True, slots=True)
class Client:
    """An account under the manager."""

    id: str
    name: str = ""
    time_zone: str = "UTC"
    status: str = "ENABLED"
    manager: bool = False
    level: int = 1


@dataclass
class Fault:
    """A fault that a request gets instead of a response, or after so many rows of one."""

    code: grpc.StatusCode
    error: tuple[str, str] | None = None  # the family and name of a GoogleAdsFailure's code
    message: str = "as the test wants it"
    retry_delay: float | None = None
    customer: str | None = None  # only for this one
    after: int = 0  # rows
    times: int | None = None  # then it is gone


@dataclass(frozen=True, slots=True)
class Request:
    customer_id: str
    query: str
    metadata: dict[str, str]


@dataclass
class AdsServer:
    """Started by `serving`. Its content may be changed at any time."""

    clients: list[Client] = field(default_factory=list)
    rows: dict[tuple[str, date], list[dict[str, Any]]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    batch: int = 2  # rows in one message
    ordered: bool = True  # False: days come back in the wrong order
    allowance: int | None = None  # requests before it asks for a pause
    silent: bool = False  # sends no response until the client gives up
    given_up: threading.Event = field(default_factory=threading.Event)  # a client ended a request before its end
    address: str = ""
    version: str = VERSION

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._done: set[int] = set()  # contexts of requests that came to their end

    def search_stream(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        metadata = {name: str(value) for name, value in context.invocation_metadata()}
        with self._lock:
            self.requests.append(Request(request.customer_id, request.query, metadata))
            fault = self._fault(request.customer_id)
        context.add_callback(lambda: self._ended(context))
        if self.silent:
            ended = threading.Event()
            context.add_callback(ended.set)
            ended.wait(60)
            return
        messages = self._answer(request)
        for start in range(0, len(messages), self.batch):
            if fault is not None and fault.after <= start:
                break
            yield self._message(messages[start : start + self.batch])
        if fault is not None:
            self._fail(context, fault)
        self._done.add(id(context))

    def _ended(self, context: grpc.ServicerContext) -> None:
        if id(context) not in self._done:
            self.given_up.set()

    def _fault(self, customer_id: str) -> Fault | None:
        if self.allowance is not None:
            self.allowance -= 1
            if self.allowance < 0:
                return quota(7)
        for fault in self.faults:
            if fault.customer in (None, customer_id) and fault.times != 0:
                if fault.times is not None:
                    fault.times -= 1
                return fault
        return None

    def _fail(self, context: grpc.ServicerContext, fault: Fault) -> None:
        self._done.add(id(context))
        metadata: list[tuple[str, Any]] = [("request-id", "req-1")]
        if fault.error is not None:
            failure = self._part("errors.types.errors").GoogleAdsFailure.pb()()
            error = failure.errors.add(message=fault.message)
            family, name = fault.error
            described = error.error_code.DESCRIPTOR.fields_by_name[family]
            setattr(error.error_code, family, described.enum_type.values_by_name[name].number)
            if fault.retry_delay is not None:
                error.details.quota_error_details.retry_delay.FromMilliseconds(int(fault.retry_delay * 1000))
            key = f"google.ads.googleads.{self.version}.errors.googleadsfailure-bin"
            metadata.append((key, failure.SerializeToString()))
        context.set_trailing_metadata(tuple(metadata))
        context.abort(fault.code, fault.message)

    def _answer(self, request: Any) -> list[dict[str, Any]]:
        asked = _QUERY.fullmatch(request.query)
        if asked is None:
            raise AssertionError(f"the server does not understand {request.query}")
        names = asked["select"].split(", ")
        if asked["resource"] == "customer_client":
            rows = self._clients(asked["where"] or "")
        else:
            rows = self._days(request.customer_id, asked["where"] or "", asked["order"] or "")
        return [{name: row[name] for name in names if name in row} for row in rows]

    def _clients(self, where: str) -> list[dict[str, Any]]:
        level, status = _LEVEL.search(where), _STATUS.search(where)
        assert level is not None
        assert "customer_client.manager = FALSE" in where
        return [
            {
                "customer_client.id": int(client.id),
                "customer_client.descriptive_name": client.name,
                "customer_client.time_zone": client.time_zone,
            }
            for client in self.clients
            if client.level <= int(level[1])
            and not client.manager
            and (status is None or client.status in status[1].split(", "))
        ]

    def _days(self, customer_id: str, where: str, order: str) -> list[dict[str, Any]]:
        found = _DAYS.search(where)
        assert found is not None, where
        first, last = (date.fromisoformat(text) for text in found.groups())
        days = sorted(day for customer, day in self.rows if customer == customer_id and first <= day <= last)
        if not self.ordered or not order.startswith("segments.date"):
            days.reverse()  # so that no order is right by accident
        return [{"segments.date": day.isoformat(), **row} for day in days for row in self.rows[customer_id, day]]

    def _message(self, rows: list[dict[str, Any]]) -> Any:
        message = self._part("services.types.google_ads_service").SearchGoogleAdsStreamResponse.pb()()
        for row in rows:
            made = message.results.add()
            for path, value in row.items():
                _put(made, path.split("."), value)
        return message

    def _part(self, name: str) -> Any:
        return import_module(f"google.ads.googleads.{self.version}.{name}")


def _put(message: Any, path: list[str], value: Any) -> None:
    """Set one field; an enum by its name, a list by its items, a message by a function that fills it."""
    *parents, name = path
    for parent in parents:
        message = getattr(message, parent)
        message.SetInParent()
    described = message.DESCRIPTOR.fields_by_name[name]
    if value is None:
        return
    if callable(value):
        value(getattr(message, name))
    elif isinstance(value, list):
        getattr(message, name).extend(_number(described, item) for item in value)
    else:
        setattr(message, name, _number(described, value))


def _number(described: Any, value: Any) -> Any:
    return described.enum_type.values_by_name[value].number if described.enum_type and isinstance(value, str) else value


def quota(retry_delay: float | None, **changes: Any) -> Fault:
    error = ("quota_error", "RESOURCE_EXHAUSTED")
    return Fault(grpc.StatusCode.RESOURCE_EXHAUSTED, error, "Too many requests.", retry_delay, **changes)


def campaign(number: int, clicks: int = 5, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """One row of a campaign report."""
    return {
        "campaign.id": 1000 + number,
        "campaign.name": f"Campaign {number}",
        "campaign.status": "ENABLED",
        "metrics.impressions": clicks * 20,
        "metrics.clicks": clicks,
        "metrics.cost_micros": clicks * 310_000,
        **(more or {}),
    }


def serve(state: AdsServer, credentials: Any = None) -> grpc.Server:
    """A running server on a free port; its address is then in the state."""
    name = f"google.ads.googleads.{state.version}.services.GoogleAdsService"
    service = import_module(f"google.ads.googleads.{state.version}.services.types.google_ads_service")
    handler = grpc.unary_stream_rpc_method_handler(
        state.search_stream,
        request_deserializer=service.SearchGoogleAdsStreamRequest.pb().FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"SearchStream": handler}),))
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("localhost:0", credentials)
    server.start()
    state.address = f"{'127.0.0.1' if credentials is None else 'localhost'}:{port}"
    return server
