"""The HTTP source beyond GET and pages of JSON: bodies, files, report jobs, OAuth, error rules and warnings."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from penstock.config.assets import Query
from penstock.config.checks import Field
from penstock.errors import AuthFailed, ConfigError, DataError, PenstockError, QuotaExceeded, SourceUnavailable
from penstock.partition import new_run_id
from penstock.source import oauth
from penstock.source.http import HttpSource
from penstock.source.http_options import OAuthOptions
from penstock.source.oauth import AccessTokens
from penstock.source.protocol import RunContext
from support.fetching import by_day
from support.web import Asked, Said, service

D1, D2 = DAYS = [date(2024, 6, 1), date(2024, 6, 2)]
FIELDS = (Field(name="n", type="long"), Field(name="word", type="string"))
SPAN = {"url": "items?from={first_date}&to={last_date}", "records": "items", "date_field": "day"}
BY_DAY = {"url": "{date}", "records": "items"}


def said(document: Any, status: int = 200, **headers: str) -> Said:
    return Said(json.dumps(document).encode(), status, {name.replace("_", "-"): text for name, text in headers.items()})


def fetch(url: str, own: dict[str, Any], context: RunContext | None = None, **options: Any) -> dict[date, Any]:
    source = HttpSource({"url": f"{url}/", **options}, context or RunContext(new_run_id()))
    return by_day(source, Query(name="q", source="s", fields=FIELDS, options=own), DAYS)


def failed(url: str, own: dict[str, Any], **options: Any) -> PenstockError:
    """The error of a whole span."""
    with pytest.raises(PenstockError) as error:
        fetch(url, own, **options)
    return error.value


# --- bodies and pages ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["body", "form"])
def test_pages_of_a_post_are_requested_in_its_body(kind: str) -> None:
    """Query languages keep their braces, and numbers stay numbers."""
    template = {"day": "{date}", "month": "{mm:int}", "text": "{ items {id} }"} if kind == "body" else {"day": "{date}"}
    paging = {"kind": "offset", "param": "page.at" if kind == "body" else "at", "size": 2, "size_param": "most"}

    def answer(asked: Asked) -> Said:
        if kind == "body":
            assert (asked.document["month"], asked.document["text"]) == (6, "{ items {id} }")
            at, most = asked.document["page"]["at"], asked.document["most"]
            assert (type(at), most) == (int, 2)
        else:
            at, most = int(asked.form["at"]), int(asked.form["most"])
        return said({"items": [{"n": n} for n in range(3)][at : at + most]})

    with service(answer) as here:
        found = fetch(here.url, {"url": "x", "method": "POST", kind: template, "records": "items", "paging": paging})
    assert found == {day: [b'{"n": 0}', b'{"n": 1}', b'{"n": 2}'] for day in DAYS}
    assert {asked.method for asked in here.asked} == {"POST"}


def test_a_next_page_on_another_host_is_refused() -> None:
    with service(lambda _: said({"items": [{"n": 1}], "next": "http://localhost:1/x"})) as here:
        found = fetch(here.url, {**BY_DAY, "paging": {"kind": "next_url", "path": "next"}})
    assert "which is another host" in str(found[D1])


def test_a_redirected_post_is_an_error_unless_the_method_stays() -> None:
    def answer(status: int) -> Callable[[Asked], Said]:
        moved = Said(b"", status, {"Location": "/new"})
        return lambda asked: said({"items": []}) if asked.path == "/new" else moved

    own = {"url": "old", "method": "POST", "body": {"day": "{date}"}, "records": "items"}
    with service(answer(303)) as here:
        assert "redirects a POST (303)" in str(fetch(here.url, own)[D1])
    with service(answer(307)) as here:
        assert fetch(here.url, own) == {D1: [], D2: []}
        assert [asked.document["day"] for asked in here.asked if asked.path == "/new"] == ["2024-06-01", "2024-06-02"]


def test_a_missing_list_is_an_error_unless_it_is_optional() -> None:
    with service(lambda _: said({"total": 0})) as here:
        assert "has no list at items" in str(fetch(here.url, BY_DAY)[D1])
        assert fetch(here.url, {**BY_DAY, "records_optional": True}) == {D1: [], D2: []}


def test_columns_are_taken_from_their_paths_and_keep_all_digits() -> None:
    record = {"d": "20240602", "v": [{"x": "007"}, {"x": 12345678901234567890}], "w": ""}
    columns = {"day": "d", "n": "v.1.x", "word": "w", "other": "v.0.x", "absent": "v.7.x"}
    own = {**SPAN, "columns": columns, "date_format": "%Y%m%d"}
    with service(lambda _: said({"items": [record]})) as here:
        found = fetch(here.url, own)
        wrong = failed(here.url, {**own, "date_format": "%d.%m.%Y"})
    assert found == {D2: [b'{"n":12345678901234567890,"word":null,"other":"007","absent":null}']}
    assert "page 1, record 1: day is '20240602', not a day as %d.%m.%Y" in str(wrong)


def test_a_text_in_a_column_becomes_a_value_of_its_field() -> None:
    with service(lambda _: said({"items": [{"clicks": "0012", "w": "0012"}]})) as here:
        found = fetch(here.url, {**BY_DAY, "columns": {"n": "clicks", "word": "w"}})
    assert found[D1] == [b'{"n":12,"word":"0012"}']


# --- files -----------------------------------------------------------------------------------------------------------

LINES = b'{"day": "2024-06-01", "n": 1}\n{"day": "2024-06-02", "n": 2}\n'
CSV = b"day;n;word\n2024-06-01;1;a\n2024-06-02;02;\n"


def archive(**files: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as content:
        for name, body in files.items():
            content.writestr(name, body)
    return made.getvalue()


FILE = {"url": SPAN["url"], "date_field": "day"}


@pytest.mark.parametrize(
    ("body", "own", "second"),
    [
        (LINES, {"format": "jsonl"}, b'{"n":2}'),
        (gzip.compress(LINES), {"format": "jsonl", "compression": "gzip"}, b'{"n":2}'),
        (CSV, {"format": "csv", "delimiter": ";"}, b'{"n":2,"word":null}'),
        (archive(rows=CSV), {"format": "csv", "delimiter": ";", "compression": "zip"}, b'{"n":2,"word":null}'),
    ],
)
def test_files_are_read_in_their_format(body: bytes, own: dict[str, Any], second: bytes) -> None:
    with service(lambda _: Said(body)) as here:
        assert fetch(here.url, FILE | own)[D2] == [second]


@pytest.mark.parametrize(
    ("body", "own", "message"),
    [
        (gzip.compress(LINES)[:-9], {"format": "jsonl", "compression": "gzip"}, "damaged or incomplete"),
        (b"no archive", {"format": "csv", "compression": "zip"}, "damaged or incomplete"),
        (archive(a=CSV, b=CSV), {"format": "csv", "compression": "zip"}, "expected one file in the archive, found 2"),
        (b"{\n", {"format": "jsonl"}, "record 1 is not valid JSON"),
    ],
)
def test_damaged_files_are_errors_of_the_data(body: bytes, own: dict[str, Any], message: str) -> None:
    with service(lambda _: Said(body)) as here:
        error = failed(here.url, FILE | own)
    assert isinstance(error, DataError)
    assert message in str(error)


# --- report jobs -----------------------------------------------------------------------------------------------------

REPORT = {
    "id": "id", "status": {"url": "/status/{report_id}"}, "state": "state", "done": ["done"], "failed": ["failed"],
    "empty": ["nothing"], "reason": "why", "result_address": "file", "first_wait": 0.01, "longest_wait": 0.02,
}  # fmt: skip
JOB = {
    "url": "create", "method": "POST", "body": {"from": "{first_date}", "to": "{last_date}"}, "date_field": "day",
    "format": "jsonl", "report": REPORT,
}  # fmt: skip


def reports(*states: dict[str, Any], created: Any = None) -> Callable[[Asked], Said]:
    waiting = list(states)

    def answer(asked: Asked) -> Said:
        match asked.path:
            case "/create":
                return said({"id": "r7"} if created is None else created)
            case "/status/r7":
                return said(waiting.pop(0) if len(waiting) > 1 else waiting[0])
            case _:
                return Said(LINES)

    return answer


def test_a_report_is_polled_until_it_is_finished() -> None:
    with service(lambda asked: answer(asked)) as here:
        answer = reports({"state": "new"}, {"state": "busy"}, {"state": "done", "file": f"{here.url}/rows"})
        found = fetch(here.url, JOB)
    assert found == {D1: [b'{"n":1}'], D2: [b'{"n":2}']}
    assert [asked.path for asked in here.asked] == ["/create", *["/status/r7"] * 3, "/rows"]


@pytest.mark.parametrize("last", [{"state": "nothing"}, {"state": "done"}, {"state": "done", "file": None}])
def test_a_report_without_rows_is_empty(last: dict[str, Any]) -> None:
    with service(reports({"state": "busy"}, last)) as here:
        assert fetch(here.url, JOB) == {}


@pytest.mark.parametrize(
    ("answer", "changes", "expected", "message"),
    [
        (reports({"state": "failed", "why": "too large"}), {}, SourceUnavailable, "report r7 is failed: too large"),
        (reports({"state": "busy"}), {"timeout": 0.05}, SourceUnavailable, "report r7 is still busy after 0.05 s"),
        (reports({}), {"timeout": 0.05}, SourceUnavailable, "is still without a state"),
        (reports(created={}), {}, DataError, "created a report without an id at id"),
        (reports({"state": "done", "file": "ftp://x"}), {}, DataError, "the report has no address at file"),
    ],
)
def test_a_report_that_fails_is_an_error(
    answer: Callable[[Asked], Said], changes: dict[str, Any], expected: type[PenstockError], message: str
) -> None:
    with service(answer) as here:
        error = failed(here.url, {**JOB, "report": {**REPORT, **changes}})
    assert type(error) is expected
    assert message in str(error)


# --- OAuth -----------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def fresh_tokens() -> None:
    oauth._shared.cache_clear()


def client(url: str, **changes: Any) -> dict[str, Any]:
    return {"token_url": f"{url}/token", "client_id": "me", "client_secret": "s3cret-s3cret", **changes}


def test_client_credentials_are_sent_in_the_header_and_a_refused_token_is_renewed_once() -> None:
    issued: list[Asked] = []

    def answer(asked: Asked) -> Said:
        if asked.path == "/token":
            issued.append(asked)
            return said({"access_token": f"a{len(issued)}", "token_type": "bearer", "expires_in": 3600})
        return said({"items": []}) if asked.headers["authorization"] == "Bearer a2" else said({}, 401)

    with service(answer) as here:
        options = client(here.url, scope="read", params={"audience": "reports"})
        assert fetch(here.url, BY_DAY, oauth=options) == {D1: [], D2: []}
    assert len(issued) == 2
    assert issued[0].headers["authorization"].startswith("Basic ")
    assert issued[0].form == {"grant_type": "client_credentials", "scope": "read", "audience": "reports"}


def test_a_token_that_is_refused_again_is_an_error() -> None:
    def answer(asked: Asked) -> Said:
        is_token = asked.path == "/token"
        return said({"access_token": "a", "expires_in": 60} if is_token else {}, 200 if is_token else 401)

    with service(answer) as here:
        error = failed(here.url, BY_DAY, oauth=client(here.url))
    assert isinstance(error, AuthFailed)
    assert [asked.path for asked in here.asked].count("/token") == 2


def test_a_token_is_renewed_before_its_end_and_a_new_refresh_token_is_used() -> None:
    used: list[str] = []

    def answer(asked: Asked) -> Said:
        used.append(asked.form["refresh_token"])
        return said({"access_token": f"a{len(used)}", "expires_in": "600", "refresh_token": f"r{len(used)}"})

    now = [0.0]
    with service(answer) as here:
        tokens = AccessTokens(OAuthOptions(**client(here.url, refresh_token="r0")), lambda: now[0])
        assert [tokens.current(5), tokens.current(5)] == ["a1", "a1"]
        now[0] = 541.0
        assert tokens.current(5) == "a2"
        tokens.refuse("a1")  # another request has renewed it
        assert tokens.current(5) == "a2"
    assert used == ["r0", "r1"]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (said({"error": "invalid_client", "error_description": "s3cret-s3cret"}, 401), AuthFailed),
        (said({"error": "invalid_grant"}, 400), AuthFailed),
        (said({}, 503), SourceUnavailable),
        (Said(b"<html>"), SourceUnavailable),
        (said({"token_type": "bearer"}), AuthFailed),
    ],
)
def test_a_token_that_is_not_issued_is_classified_without_secrets(answer: Said, expected: type[PenstockError]) -> None:
    with service(lambda _: answer) as here:
        error = failed(here.url, BY_DAY, oauth=client(here.url, refresh_token="r3fresh"))
    assert type(error) is expected
    assert not any(word in str(error) for word in ("s3cret", "r3fresh"))


def test_oauth_without_its_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth, "find_spec", lambda _: None)
    options = {"url": "https://x.example.com/", "oauth": client("https://x.example.com")}
    with pytest.raises(ConfigError, match=r"pip install 'penstock\[oauth\]'"):
        HttpSource(options, RunContext(new_run_id()))


# --- errors and warnings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "answer", "expected"),
    [
        ({"path": "error.code", "values": [17]}, said({"error": {"code": 17}}, 400), QuotaExceeded),
        ({"path": "error.code", "values": [17]}, said({"error": {"code": 17}}), QuotaExceeded),  # with status 200
        ({"path": "error.code", "values": [17]}, said({"error": {"code": 18}}, 400), ConfigError),
        ({"path": "error", "status": [400]}, said({"error": False}, 400), QuotaExceeded),
        ({"status": [404]}, said({}, 404), QuotaExceeded),
        ({"contains": "slow down"}, Said(b"please slow down", 403), QuotaExceeded),
        ({"contains": "slow down"}, Said(b"forbidden", 403), AuthFailed),
    ],
)
def test_the_first_rule_that_matches_decides(rule: dict[str, Any], answer: Said, expected: type[PenstockError]) -> None:
    with service(lambda _: answer) as here:
        error = failed(here.url, {**SPAN, "errors": [{**rule, "error_class": "quota", "retry_after": 30}]})
    assert type(error) is expected
    assert getattr(error, "retry_after", 30) == 30


def test_an_error_with_a_status_of_success_is_no_empty_file() -> None:
    rule = {"path": "error.code", "values": [17], "error_class": "quota"}
    with service(lambda _: said({"error": {"code": 17}})) as here:
        error = failed(here.url, {**FILE, "format": "csv", "errors": [rule]})
    assert isinstance(error, QuotaExceeded)


def test_the_pause_of_the_response_precedes_that_of_the_rule_and_empty_means_no_records() -> None:
    rules = [{"status": [400], "error_class": "quota", "retry_after": 30}, {"status": [404], "error_class": "empty"}]
    with service(lambda _: said({}, 400, Retry_After="7")) as here:
        error = failed(here.url, {**SPAN, "errors": rules})
    assert isinstance(error, QuotaExceeded)
    assert error.retry_after == 7
    with service(lambda _: said({}, 404)) as here:
        assert fetch(here.url, {**SPAN, "errors": rules}) == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"errors": [{"error_class": "data"}]}, "needs status, path or contains"),
        ({"errors": [{"status": [400], "values": [1], "error_class": "data"}]}, "values needs path"),
        ({"errors": [{"status": [1], "error_class": "data", "retry_after": 3}]}, "retry_after belongs to error_class"),
        ({"errors": [{"status": [400], "error_class": "odd"}]}, "error_class"),
        ({"body": {}}, "body and form need method: POST"),
        ({"method": "POST", "body": {}, "form": {}}, "give body or form, not both"),
        ({"format": "csv", "records": "items"}, "records needs format: json"),
        ({"format": "csv", "paging": {"kind": "link"}}, "paging needs format: json"),
        ({"report": {**REPORT, "result": {"url": "x"}}}, "needs either result or result_address"),
        ({"report": {**REPORT, "done": []}}, "name at least one state"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HttpSource({"url": "https://x.example.com/", **options}, RunContext(new_run_id()))


def test_an_announced_end_is_a_warning() -> None:
    context, both = RunContext(new_run_id()), {"Sunset": "Wed, 11 Nov 2026 23:59:59 GMT", "Deprecation": "@1"}

    def answer(asked: Asked) -> Said:
        return Said(b'{"items": []}', 200, both if asked.path.endswith("01") else {"Deprecation": "@1"})

    with service(answer) as here:
        fetch(here.url, {"url": "v1/{date}?key=s3cret", "records": "items"}, context)
        assert context.warnings == {
            f"{here.url}/v1/2024-06-01 announces its end: 2026-11-11 (Sunset)",
            f"{here.url}/v1/2024-06-02 is deprecated (Deprecation)",
        }
