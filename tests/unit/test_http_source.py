"""The HTTP source against a real server: paging, refusals, redirects, and secrets that stay on this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import orjson
import pytest

from penstock.config.assets import Query
from penstock.config.checks import Field
from penstock.config.settings import SourceSettings
from penstock.errors import AuthFailed, ConfigError, DataError, PenstockError, QuotaExceeded, SourceUnavailable
from penstock.partition import new_run_id
from penstock.source.budget import Budget
from penstock.source.http import HttpSource
from penstock.source.protocol import RunContext
from penstock.source.registry import make_source
from support.fetching import by_day
from support.servers import free_port
from support.web import Asked, Said, service

D1, D2, D3 = DAYS = [date(2024, 6, day) for day in (1, 2, 4)]
FIELDS = (Field(name="n", type="long"),)
TOKEN = "t0ken-that-nobody-sees"
SECRET: dict[str, Any] = {
    "headers": {"Authorization": f"Bearer {TOKEN}", "X-Key": f"{TOKEN}-2"},
    "params": {"key": f"{TOKEN}-3"},
}
BY_DAY = {"url": "items/{date}", "records": "items"}
BY_SPAN = {"url": "items?from={first_date}&to={last_date}", "records": "items", "date_field": "day"}


def fetch(url: str, own: dict[str, Any], budget: Budget | None = None, **options: Any) -> dict[date, Any]:
    """The lines of each day, or its error."""
    source = HttpSource({"url": f"{url}/", **options}, RunContext(new_run_id(), budget or Budget()))
    return by_day(source, Query(name="q", source="s", fields=FIELDS, options=own), DAYS)


def said(*numbers: int, **more: Any) -> Said:
    return Said(orjson.dumps({"items": [{"n": number} for number in numbers], **more}))


def chain(error: BaseException | None) -> Iterator[str]:
    """Everything that `--debug` would show."""
    while error is not None:
        yield f"{error} {error!r} {error.args!r}"
        error = error.__cause__


def pages(asked: Asked, kind: str) -> Said:
    """Five records, two on a page, with every kind of paging."""
    params, rows = asked.params, [1, 2, 3, 4, 5]
    match kind:
        case "page":
            at = 2 * int(params["page"])
        case "offset":
            at = int(params["skip"])
        case _:
            at = int(params.get("at", 0))
    more = at + 2 if at + 2 < len(rows) else None
    answer = said(*rows[at : at + 2], meta={"next": more})
    if kind == "link" and more:
        link = f'<{asked.path}?at={more}>; rel="next", </first>; rel="first"'
        return Said(answer.body, headers={"Link": link})
    return answer


@pytest.mark.parametrize(
    ("paging", "asked"),
    [
        ({"kind": "page", "param": "page", "start": 0, "size": 2}, [("0", None), ("1", None), ("2", None)]),
        ({"kind": "page", "param": "page", "start": 0}, [("0", None), ("1", None), ("2", None), ("3", None)]),
        ({"kind": "offset", "param": "skip", "size": 2, "size_param": "per"}, [("0", "2"), ("2", "2"), ("4", "2")]),
        ({"kind": "offset", "param": "skip"}, [("0", None), ("2", None), ("4", None), ("5", None)]),
        ({"kind": "cursor", "param": "at", "next": "meta.next"}, [(None, None), ("2", None), ("4", None)]),
        ({"kind": "link"}, [(None, None), ("2", None), ("4", None)]),
    ],
)  # fmt: skip
def test_pages_are_turned_to_the_last(paging: dict[str, Any], asked: list[tuple[str | None, str | None]]) -> None:
    with service(lambda request: pages(request, paging["kind"])) as here:
        found = fetch(here.url, {**BY_DAY, "paging": paging})
    assert found == {day: [b'{"n":%d}' % n for n in range(1, 6)] for day in DAYS}
    name = paging.get("param", "at")
    assert [(request.params.get(name), request.params.get("per")) for request in here.asked] == asked * 3


@pytest.mark.parametrize(
    ("paging", "answer", "message"),
    [
        (
            {"kind": "cursor", "param": "at", "next": "next"},
            said(1, next="again"),
            "page 2 equals the one before",
        ),
        ({"kind": "cursor", "param": "at", "next": "next"}, said(next="again"), "page 3 was received before"),
        ({"kind": "page", "param": "page"}, said(1), "page 2 equals the one before"),
        ({"kind": "offset", "param": "at"}, said(1), "page 2 equals the one before"),
        (
            {"kind": "link"},
            Said(said().body, headers={"Link": '<?at=2>; rel="next"'}),
            "page 3 was received before",
        ),
        (
            {"kind": "link"},
            Said(said(1).body, headers={"Link": '<http://localhost:1/>; rel="next"'}),
            "names http://localhost:1 for its next page, which is another host",
        ),
    ],
)
def test_pages_that_never_end_are_refused(paging: dict[str, Any], answer: Said, message: str) -> None:
    with service(lambda _: answer) as here:
        found = fetch(here.url, {**BY_DAY, "paging": paging})
    assert {type(error) for error in found.values()} == {DataError}
    assert message in str(found[D1])


def test_days_with_gaps_are_asked_for_in_one_request() -> None:
    rows = [{"n": day, "day": f"2024-06-0{day}"} for day in (4, 3, 2, 1)]
    with service(lambda _: Said(orjson.dumps({"items": rows}))) as here:
        found = fetch(here.url, BY_SPAN, params={"who": "{customer_id}", "all": True})
    assert found == {D1: [b'{"n":1}'], D2: [b'{"n":2}'], D3: [b'{"n":4}']}
    [request] = here.asked
    assert request.params == {"from": "2024-06-01", "to": "2024-06-04", "who": "c", "all": "true"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"day": "2024-06-05"}, "page 1, record 2: day is 2024-06-05, outside of the requested days"),
        ({}, "page 1, record 2: day is missing: it is the day of the row"),
        ({"day": 20240601}, "page 1, record 2: day '20240601' is not a date"),
        ({"day": ["2024-06-01"]}, "page 1, record 2: day \"['2024-06-01']\" is not a date"),
        (None, "page 1, record 2: day is missing"),
    ],
)
def test_a_record_of_no_day_is_named(row: Any, message: str) -> None:
    with service(lambda _: Said(orjson.dumps({"items": [{"n": 1, "day": "2024-06-01"}, row]}))) as here:
        with pytest.raises(DataError) as refused:
            fetch(here.url, BY_SPAN)
        assert str(refused.value).startswith(message)
        assert "page 1, record " in str(fetch(here.url, {**BY_DAY, "date_field": "day"})[D2])


def test_records_are_kept_as_they_were_received() -> None:
    first = b'{"n": 123456789012345678901234567890.10, "day": "2024-06-01", "n2": 1E400, "x": [NaN, {"y": "\\u00e9"}]}'
    twice = b'{"n":1,"n":2,"day":"2024-06-01"}'
    half = b'{"n":"\\ud800","day":"2024-06-01"}'
    body = b'{"items": [' + first + b",\n" + twice + b", " + half + b'],\n "n": 1}'
    with service(lambda _: Said(body)) as here:
        assert fetch(here.url, BY_SPAN)[D1] == [
            b'{"n":123456789012345678901234567890.10,"n2":1E400,"x":[NaN,{"y":"\xc3\xa9"}]}',
            twice,  # would lose a field by being written anew: the validator is to see it
            half,
        ]
        assert fetch(here.url, BY_DAY)[D1] == [first, twice, half]


def test_an_answer_that_says_there_is_nothing_has_no_rows() -> None:
    with service(lambda asked: said(7) if asked.path.endswith("02") else Said(status=204)) as here:
        assert fetch(here.url, BY_DAY) == {D1: [], D2: [b'{"n":7}'], D3: []}


def test_a_record_over_several_lines_becomes_one() -> None:
    with service(lambda _: Said(b'[{\n "n":\r\n 1}\n,{}]')) as here:
        assert fetch(here.url, {**BY_DAY, "records": ""})[D1] == [b'{  "n":\r  1}', b"{}"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "page 1 is not valid JSON: "),
        (b"<html>", "page 1 is not valid JSON: "),
        (b'{"items": [{"n": 1}', "page 1 is not valid JSON: expected ']'"),
        (b'{"items": [{"n": 1},]}', "page 1 is not valid JSON: "),
        (b'{"items": [{"n": 1}]', "page 1 is not valid JSON: expected '}'"),
        (b'{"items": []} x', "page 1 is not valid JSON: something follows its end at character 14"),
        (b'{items: []}', "page 1 is not valid JSON: expected the name of a field"),
        (b"\xef\xbb\xbf{}", "page 1 is not valid JSON: "),
        (b'{"items": ["\xff"]}', "page 1 is not UTF-8 text (at byte 13)"),
        (b'{"items": ["\x00"]}', "page 1 is not valid JSON: Invalid control character"),
        (b'{"items": {}}', "page 1 has no list at items, but something else"),
        (b'{"items": null}', "page 1 has no list at items, but something else"),
        (b'{"rows": []}', "page 1 has no list at items"),
        (b"[]", "page 1 has no list at items"),
        (b'{"items": [], "items": []}', "page 1 has two lists at items"),
        (b'{"items": [' + b"[" * 100_000, "page 1 is nested too deeply"),
    ],
    ids=range(16),
)  # fmt: skip
def test_an_answer_that_cannot_be_read_fails_its_day_by_page(body: bytes, message: str) -> None:
    with service(lambda asked: said(7) if asked.path.endswith("02") else Said(body)) as here:
        found = fetch(here.url, BY_DAY)
    assert str(found[D1]).startswith(message)
    assert isinstance(found[D1], DataError)
    assert found[D2] == [b'{"n":7}']


def test_an_answer_without_an_end_is_not_read_to_it() -> None:
    endless = b'{"items": ["' + b"x" * (65 * 1024 * 1024) + b'"]}'
    with service(lambda asked: said(7) if asked.path.endswith("02") else Said(endless)) as here:
        found = fetch(here.url, BY_DAY)
    assert str(found[D1]).startswith("page 1 is larger than 64 MB")
    assert found[D2] == [b'{"n":7}']


def in_a_minute() -> str:
    return format_datetime(datetime.now(UTC) + timedelta(minutes=1), usegmt=True)


@pytest.mark.parametrize(
    ("status", "headers", "kind", "message"),
    [
        (401, {}, AuthFailed, "/items/2024-06-01 refuses our credentials (401): check the headers of the source"),
        (403, {}, AuthFailed, "refuses our credentials (403): check the headers of the source"),
        (429, {}, QuotaExceeded, "asks for a pause (429)"),
        (429, {"Retry-After": "17"}, QuotaExceeded, "asks for a pause (429) (the source asks to wait 17 s)"),
        (429, {"Retry-After": "soon"}, QuotaExceeded, "asks for a pause (429)"),
        (500, {}, SourceUnavailable, "cannot answer now (500)"),
        (503, {"Retry-After": "9"}, SourceUnavailable, "cannot answer now (503); it asks to wait 9 s"),
        (408, {}, SourceUnavailable, "cannot answer now (408)"),
    ],
)
def test_each_http_status_has_an_error_class(
    status: int, headers: dict[str, str], kind: type[PenstockError], message: str
) -> None:
    with service(lambda _: Said(b"no", status, headers)) as here, pytest.raises(kind) as refused:
        fetch(here.url, BY_DAY, **SECRET)
    assert str(refused.value).endswith(message)
    assert TOKEN not in "".join(chain(refused.value))
    assert len(here.asked) == 1


def test_a_pause_may_be_given_as_a_moment() -> None:
    later = Said(b"", 429, {"Retry-After": in_a_minute()})
    with service(lambda _: later) as here, pytest.raises(QuotaExceeded) as refused:
        fetch(here.url, BY_DAY)
    assert refused.value.retry_after is not None
    assert 30 < refused.value.retry_after <= 60


def test_a_refused_request_shows_the_message_of_the_service_but_no_secret() -> None:
    def answer(asked: Asked) -> Said:
        return Said(
            f"no  such\nreport, {asked.headers['authorization']} {asked.params['key']}".encode() + b"!" * 999, 404
        )

    with service(answer) as here:
        found = fetch(here.url, BY_DAY, **SECRET)
    assert {type(error) for error in found.values()} == {ConfigError}
    assert "/items/2024-06-01 refuses the request (404): no such report, *** *** ***!!!" in str(found[D1])
    assert len(str(found[D1])) < 500
    assert TOKEN not in "".join(chain(found[D1]))


@pytest.mark.parametrize(
    "answer", [Said(b'{"items": [', cut=100), Said(b"xx", headers={"Content-Encoding": "gzip"})], ids=["cut", "gzip"]
)
def test_an_answer_that_breaks_off_is_unavailable(answer: Said) -> None:
    with service(lambda _: answer) as here, pytest.raises(SourceUnavailable) as refused:
        fetch(here.url, BY_DAY, **SECRET)
    assert TOKEN not in "".join(chain(refused.value))


def test_a_service_that_is_away_or_silent_is_unavailable() -> None:
    import socket

    with pytest.raises(SourceUnavailable, match="Connection refused"):
        fetch(f"http://127.0.0.1:{free_port()}", BY_DAY)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(SourceUnavailable, match=r"did not respond within 0\.2 s"):
            fetch(f"http://127.0.0.1:{silent.getsockname()[1]}", BY_DAY, timeout=0.2)


def test_redirects_are_followed_on_the_same_host_only() -> None:
    def moved(asked: Asked) -> Said:
        return said(1) if asked.path.startswith("/new") else Said(b"", 302, {"Location": f"/new{asked.path}"})

    with service(moved) as here:
        assert fetch(here.url, BY_DAY, **SECRET)[D1] == [b'{"n":1}']
    assert {request.headers["authorization"] for request in here.asked} == {f"Bearer {TOKEN}"}
    with service(lambda _: said(1)) as elsewhere:
        away = {"Location": elsewhere.url.replace("127.0.0.1", "localhost")}
        with service(lambda _: Said(b"", 307, away)) as here:
            found = fetch(here.url, BY_DAY, **SECRET)
    assert "redirects to http://localhost:" in str(found[D1])
    assert elsewhere.asked == []
    with service(lambda asked: Said(b"", 301, {"Location": f"{asked.path}x"})) as here:
        assert "redirects more than 5 times" in str(fetch(here.url, BY_DAY)[D1])


def test_cookies_are_not_kept() -> None:
    with service(lambda _: Said(said(1).body, headers={"Set-Cookie": "session=1"})) as here:
        fetch(here.url, BY_DAY)
    assert [request.headers.get("cookie") for request in here.asked] == [None] * 3


class Counted(Budget):
    def __init__(self) -> None:
        super().__init__()
        self.spent = 0

    def spend(self, requests: int = 1) -> None:
        self.spent += requests


def test_every_request_is_paid_for() -> None:
    paging = {"kind": "cursor", "param": "at", "next": "meta.next"}
    budget = Counted()
    with service(lambda asked: pages(asked, "cursor")) as here:
        fetch(here.url, {**BY_DAY, "paging": paging}, budget)
    assert budget.spent == len(here.asked) == 9


@pytest.mark.parametrize(
    ("own", "options", "message"),
    [
        ({"url": "items"}, {}, "queries.q.options: url, params, body or form must have {date}, or {first_date} and"),
        ({"url": "{first_date}/{last_date}"}, {}, "queries.q.options: date_field: is missing"),
        ({"url": "{date}/{first_date}"}, {}, "{first_date} cannot be filled in (known here: {customer_id}, "),
        ({"url": "ftp://x/{date}"}, {}, "queries.q.options: url: write http:// or https:// and the address"),
        ({"url": "http://[/{date}"}, {}, "queries.q.options: url: write http:// or https:// and the address"),
        ({"url": "http://host:x/{date}"}, {}, "queries.q.options: url: write http:// or https:// and the address"),
        ({**BY_DAY, "headers": {"A": TOKEN}}, {}, "q.options: headers: extra inputs are not permitted (known: url,"),
        ({**BY_DAY, "paging": {"kind": "scroll"}}, {}, "queries.q.options: paging: "),
        ({**BY_DAY, "paging": {"kind": "page"}}, {}, "queries.q.options: paging.page.param: field required"),
        ({**BY_DAY, "paging": {"kind": "page", "param": "p", "size_param": "s"}}, {}, "size_param needs size"),
        (BY_DAY, {"headers": {"A": f"{TOKEN}\n"}}, "headers.A: must be one line of plain ASCII text"),
        (BY_DAY, {"headers": {"A": f"{TOKEN}ü"}}, "headers.A: must be one line of plain ASCII text"),
        (BY_DAY, {"timeout": 0}, "timeout: "),
        (BY_DAY, {"token": TOKEN}, "token: extra inputs are not permitted"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_meant_are_refused(own: dict[str, Any], options: dict[str, Any], message: str) -> None:
    def refusal() -> PenstockError:
        try:
            told: PenstockError = fetch("http://127.0.0.1:1", own, **options)[D1]  # by day
        except PenstockError as error:  # at once
            return error
        return told

    assert isinstance(refusal(), ConfigError)
    assert message in str(refusal())
    assert TOKEN not in "".join(chain(refusal()))


def test_without_its_package_the_kind_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(ConfigError, match=r"sources\.web: kind http needs .*: pip install 'penstock\[http\]'"):
        make_source(SourceSettings(name="web", kind="http", options={}), RunContext(new_run_id()))


def test_a_login_in_the_address_is_used_and_not_shown() -> None:
    def answer(asked: Asked) -> Said:
        return Said(b"", 500) if asked.headers.get("authorization", "").startswith("Basic ") else said(1)

    with service(answer) as here, pytest.raises(SourceUnavailable) as refused:
        fetch(here.url.replace("//", f"//me:{TOKEN}@"), BY_DAY)
    assert TOKEN not in "".join(chain(refused.value))
