"""Report jobs of a web service: create, poll with growing pauses, and find the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urljoin

import orjson

from penstock.errors import DataError, SourceUnavailable
from penstock.source.http_options import ReportJob, ReportStep
from penstock.source.response import inside, trail
from penstock.source.template import filled, filled_document
from penstock.source.web import Caller, WebRequest, is_address, shown

_GROWTH = 1.5


class ReportRunner:
    """Creates a report and waits for it. A process that dies leaves its report to the service: the next attempt
    creates another one."""

    def __init__(
        self, caller: Caller, job: ReportJob, sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._caller = caller
        self._job = job
        self._sleep = sleep
        self._clock = clock

    def result(self, create: WebRequest, names: Mapping[str, str]) -> WebRequest | None:
        """Create the report and return the request for its rows; None if it has none. Raises SourceUnavailable if the
        report fails or is not finished in time: the retry policy creates another one."""
        job = self._job
        created = self._document(create)
        report_id = None if created is None else inside(created, trail(job.id))
        if report_id in (None, ""):
            raise DataError(f"{shown(create.url)} created a report without an id at {job.id}")
        names = {**names, "report_id": str(report_id)}
        poll = self._step(job.status, create, names)
        pause, end = job.first_wait, self._clock() + job.timeout
        while True:
            self._sleep(pause)
            pause = min(job.longest_wait, pause * _GROWTH)
            found = self._document(poll)
            state = _text(inside(found, trail(job.state)))
            if state in job.empty:
                return None
            if state in job.done:
                return self._rows(found, create, names)
            if state in job.failed:
                reason = inside(found, trail(job.reason)) if job.reason else None
                raise SourceUnavailable(f"report {report_id} is {state}" + (f": {reason}" if reason else ""))
            if self._clock() >= end:
                raise SourceUnavailable(
                    f"report {report_id} is still {state or 'without a state'} after {job.timeout:g} s"
                )

    def _rows(self, found: Any, create: WebRequest, names: Mapping[str, str]) -> WebRequest | None:
        if self._job.result is not None:
            return self._step(self._job.result, create, names)
        address = inside(found, trail(self._job.result_address or ""))
        if address in (None, ""):
            return None
        if not isinstance(address, str) or not is_address(address):
            raise DataError(f"the report has no address at {self._job.result_address}")
        return WebRequest(address, rules=create.rules, is_foreign=True)

    def _step(self, step: ReportStep, create: WebRequest, names: Mapping[str, str]) -> WebRequest:
        return WebRequest(
            urljoin(create.url, filled(step.url, names)),
            {name: filled(str(value), names) for name, value in step.params.items()},
            step.method,
            None if step.body is None else filled_document(step.body, names),
            rules=create.rules,
            headers=create.headers,
        )

    def _document(self, request: WebRequest) -> Any:
        reply = self._caller.ask(request, 1)
        try:
            return None if reply.body is None else orjson.loads(reply.body)
        except orjson.JSONDecodeError as error:
            raise DataError(f"{shown(request.url)} responded with something else than JSON") from error


def _text(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
