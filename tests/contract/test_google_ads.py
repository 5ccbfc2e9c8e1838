"""The source of kind google_ads against a real gRPC server, with the official client in between."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from penstock.config.assets import Query
from penstock.config.loading import load_settings
from penstock.config.settings import Customer, SourceSettings
from penstock.errors import AuthFailed, ConfigError, SourceUnavailable
from penstock.lake import open_lake
from penstock.partition import AttemptKey, PartitionKey, new_run_id
from penstock.pipeline.extract import _worker
from penstock.pipeline.source_requests import Extraction, SpanRequest
from penstock.raw.reader import RawReader
from penstock.raw.sink import RawSink
from penstock.raw.uploads import UploadPool
from penstock.source.google_ads.source import GoogleAdsSource, date_groups
from penstock.source.protocol import Account, RunContext
from penstock.source.registry import hooks_of, make_source, refuse_queries
from support.ads_server import MANAGER, AdsServer, Client, Fault, campaign, quota, serve

D1, D2, D3 = DAYS = [date(2024, 6, day) for day in (1, 2, 3)]
SELECT: dict[str, Any] = {"campaign_id": "campaign.id", "clicks": "metrics.clicks"}
FIELDS = [{"name": "campaign_id", "type": "long"}, {"name": "clicks", "type": "long"}]
ALICE, BOB = "1111111111", "2222222222"


class Spending:
    """A budget that counts."""

    def __init__(self) -> None:
        self.spent = 0

    def spend(self, requests: int = 1) -> None:
        self.spent += requests


@pytest.fixture
def ads() -> Iterator[AdsServer]:
    state = AdsServer(rows={(ALICE, day): [campaign(n) for n in range(3)] for day in DAYS})
    server = serve(state)
    yield state
    server.stop(None).wait()


def source_settings(ads: AdsServer, **options: Any) -> SourceSettings:
    given = {"endpoint": ads.address, "insecure": True, "login_customer_id": "999-999-9999", **options}
    return SourceSettings(name="ads", kind="google_ads", options=given)


def opened(ads: AdsServer, **options: Any) -> GoogleAdsSource:
    source = make_source(source_settings(ads, **options), RunContext(new_run_id()))
    assert isinstance(source, GoogleAdsSource)
    return source


def report(fields: Sequence[dict[str, Any]] = FIELDS, **options: Any) -> Query:
    given = {"resource": "campaign", "select": SELECT, **options}
    body = {"name": "campaigns", "source": "ads", "start_date": D1, "fields": list(fields), "options": given}
    return Query.model_validate(body)


def rows_of(ads: AdsServer, query: Query, dates: Sequence[date] = DAYS, **options: Any) -> list[Any]:
    found = opened(ads, **options).extract(query, Customer(id=ALICE), dates)
    return [row for _, row in found if isinstance(row, dict)]


def fetched(
    ads: AdsServer, folder: Path, query: Query | None = None, customer: str = ALICE, **options: Any
) -> dict[date, str]:
    """The result of each day in a worker: the number of sealed rows, or the class and message of an error."""
    query, lake = query or report(), open_lake(str(folder))
    extraction = Extraction(
        str(folder), new_run_id(), source_settings(ads, **options), {query.name: query}, {query.name: "hash"}
    )
    span = SpanRequest(
        extraction, RawSink(lake), UploadPool(1), opened(ads, **options), query, Customer(id=customer), DAYS
    )
    span.fetch()
    outcomes = {
        row["logical_date"]: f"{row['error_class']}: {row['error_message']}"
        if row.get("error_class")
        else str(row["record_count"])
        for row in span.outcomes()
    }
    for day, outcome in outcomes.items():
        seal = RawReader(lake).seal(AttemptKey(PartitionKey("ads", customer, query.name, day), extraction.run_id))
        if outcome.isdigit():
            assert seal is not None
            assert seal.api_version == "v26"
    return outcomes


# --- requests --------------------------------------------------------------------------------------------------------


def test_a_span_is_one_request_with_its_days_login_and_budget(ads: AdsServer) -> None:
    budget = Spending()
    source = make_source(source_settings(ads), RunContext(new_run_id(), budget))  # type: ignore[arg-type]
    found = list(source.extract(report(conditions=["campaign.status = 'ENABLED'"]), Customer(id=ALICE), DAYS))
    assert [(day, row) for day, row in found if isinstance(row, dict)] == [
        (day, {"campaign_id": 1000 + n, "clicks": 5}) for day in DAYS for n in range(3)
    ]
    [request] = ads.requests
    assert (request.customer_id, budget.spent) == (ALICE, 1)
    assert request.query == (
        "SELECT campaign.id, metrics.clicks, segments.date FROM campaign WHERE campaign.status = 'ENABLED'"
        " AND segments.date BETWEEN '2024-06-01' AND '2024-06-03' ORDER BY segments.date"
    )
    assert request.metadata["login-customer-id"] == "9999999999"


def test_a_whole_query_is_asked_as_it_was_written(ads: AdsServer) -> None:
    query = report(
        resource=None,
        gaql="SELECT campaign.id, metrics.clicks, campaign.name FROM campaign PARAMETERS include_drafts=true",
    )
    assert len(rows_of(ads, query)) == 9
    assert ads.requests[0].query.endswith("ORDER BY segments.date PARAMETERS include_drafts=true")


def test_days_far_apart_are_asked_for_apart(ads: AdsServer) -> None:
    far = date(2024, 8, 1)
    ads.rows[ALICE, far] = [campaign(7)]
    dates = [D1, D3, far]
    assert date_groups(dates) == [[D1, D3], [far]]
    found = list(opened(ads).extract(report(), Customer(id=ALICE), dates))
    assert {day for day, _ in found} == {D1, D3, far}  # the second of June was not asked for, so it is left out
    assert len(ads.requests) == 2


def test_threads_of_a_worker_fetch_each_account_once(ads: AdsServer, tmp_path: Path) -> None:
    accounts = [str(1_000_000_000 + number) for number in range(12)]
    ads.rows = {(id_, D1): [campaign(n) for n in range(5)] for id_ in accounts}
    query = report()
    extraction = Extraction(
        str(tmp_path), new_run_id(), source_settings(ads), {query.name: query}, {query.name: "hash"}, threads=4
    )
    spans = [{"query": query.name, "customer": Customer(id=id_).model_dump_json(), "dates": [D1]} for id_ in accounts]
    [found] = _worker(extraction)(iter(pa.Table.from_pylist(spans).to_batches()))
    assert {row["customer_id"]: row["record_count"] for row in found.to_pylist()} == dict.fromkeys(accounts, 5)
    assert sorted(request.customer_id for request in ads.requests) == accounts


# --- rows ------------------------------------------------------------------------------------------------------------


def test_values_keep_their_digits_and_what_was_not_sent_is_null(ads: AdsServer) -> None:
    large = 9_007_199_254_740_993  # one more than a float can hold
    ads.rows = {(ALICE, D1): [
        campaign(0, more={"campaign.id": large, "metrics.clicks": 0, "metrics.cost_micros": -1_230_000,
                       "metrics.conversions": 0.1, "campaign.experiment_type": "BASE",
                       "campaign.primary_status_reasons": ["BUDGET_CONSTRAINED", "CAMPAIGN_PAUSED"],
                       "campaign.network_settings.target_google_search": True,
                       "campaign.url_custom_parameters": lambda items: items.add(key="a", value="b")}),
        {"metrics.clicks": None},
    ]}  # fmt: skip
    fields = [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "status", "type": "string"},
        {"name": "clicks", "type": "long"},
        {"name": "conversions", "type": "double"},
        {"name": "cost_micros", "type": "long"},
        {"name": "cost", "type": "decimal(18,6)"},
        {"name": "reasons", "type": "string"},
        {"name": "on_search", "type": "boolean"},
        {"name": "parameters", "type": "string"},
        {"name": "network", "type": "string"},
    ]
    select = {
        "id": "campaign.id",
        "name": "campaign.name",
        "status": "campaign.status",
        "clicks": "metrics.clicks",
        "conversions": "metrics.conversions",
        "cost_micros": "metrics.cost_micros",
        "cost": {"path": "metrics.cost_micros", "as": "units"},
        "reasons": "campaign.primary_status_reasons",
        "on_search": "campaign.network_settings.target_google_search",
        "parameters": "campaign.url_custom_parameters",
        "network": "campaign.network_settings",
    }
    full, bare = rows_of(ads, report(fields, select=select))
    assert full == {
        "id": large,
        "name": "Campaign 0",
        "status": "ENABLED",
        "clicks": 0,
        "conversions": 0.1,
        "cost_micros": -1_230_000,
        "cost": "-1.230000",
        "reasons": '["BUDGET_CONSTRAINED","CAMPAIGN_PAUSED"]',
        "on_search": True,
        "parameters": '[{"key":"a","value":"b"}]',
        "network": '{"target_google_search":true}',
    }
    assert bare == {**dict.fromkeys(select), "reasons": "[]", "parameters": "[]"}


def test_enums_are_names_unless_numbers_are_wanted(ads: AdsServer) -> None:
    ads.rows = {
        (ALICE, D1): [campaign(0, more={"campaign.status": "PAUSED"}), {"campaign.id": 1, "campaign.status": 99}]
    }
    select = {"status": "campaign.status"}
    named = report([{"name": "status", "type": "string"}], select=select)
    assert rows_of(ads, named) == [{"status": "PAUSED"}, {"status": "99"}]  # a name that this version does not know
    numbers = report([{"name": "status", "type": "long"}], select=select, enums="numbers")
    assert rows_of(ads, numbers) == [{"status": 3}, {"status": 99}]


# --- whole and broken spans ------------------------------------------------------------------------------------------


def test_every_day_of_a_span_that_ends_well_is_sealed_even_without_rows(ads: AdsServer, tmp_path: Path) -> None:
    del ads.rows[ALICE, D2]
    assert fetched(ads, tmp_path) == {D1: "3", D2: "0", D3: "3"}


@pytest.mark.parametrize("code", ["UNAVAILABLE", "INTERNAL", "ABORTED", "UNKNOWN", "CANCELLED"])
def test_a_span_that_breaks_off_keeps_its_complete_days(ads: AdsServer, tmp_path: Path, code: str) -> None:
    ads.faults = [Fault(grpc.StatusCode[code], message="broken pipe", after=4)]
    outcomes = fetched(ads, tmp_path)
    assert outcomes[D1] == "3"
    for day in (D2, D3):
        assert outcomes[day].startswith("transient: Google Ads did not respond, or broke off: broken pipe")
        assert f"{code}, customer {ALICE}, request req-1" in outcomes[day]
    assert len(ads.requests) == 1  # only the retry policy repeats requests


def test_days_out_of_order_are_never_vouched_for(ads: AdsServer, tmp_path: Path) -> None:
    ads.ordered = False
    outcomes = fetched(ads, tmp_path)
    assert all(text.startswith("data: ") for text in outcomes.values()), outcomes


@pytest.mark.parametrize("day", [D1 - timedelta(days=1), D3 + timedelta(days=1)])
def test_rows_of_days_that_were_not_asked_for_are_not_dropped_in_silence(
    ads: AdsServer, tmp_path: Path, day: date
) -> None:
    ads.rows[ALICE, D2] = [campaign(1, more={"segments.date": day.isoformat()})]
    outcomes = fetched(ads, tmp_path)
    assert all(text.startswith("data: ") for text in outcomes.values()), outcomes


def test_a_silent_server_is_abandoned_after_the_timeout(ads: AdsServer, tmp_path: Path) -> None:
    ads.silent = True
    outcomes = fetched(ads, tmp_path, timeout="1s")
    assert {text.partition(":")[0] for text in outcomes.values()} == {"transient"}
    assert "DEADLINE_EXCEEDED" in outcomes[D1]


def test_closing_the_iterator_ends_the_request(ads: AdsServer) -> None:
    ads.rows[ALICE, D1] = [campaign(n) for n in range(50_000)]
    ads.batch = 1000
    rows = iter(opened(ads).extract(report(), Customer(id=ALICE), DAYS))
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert ads.given_up.wait(10)


def test_an_unreachable_server_is_a_transient_error(ads: AdsServer, tmp_path: Path) -> None:
    outcomes = fetched(ads, tmp_path, endpoint="127.0.0.1:1")
    assert {text.partition(":")[0] for text in outcomes.values()} == {"transient"}


# --- error classes ---------------------------------------------------------------------------------------------------


def failing(code: str, family: str, name: str) -> Fault:
    return Fault(grpc.StatusCode[code], (family, name), "No, sorry.")


@pytest.mark.parametrize(
    ("fault", "error_class", "words"),
    [
        (quota(12.5), "quota", "Too many requests (quota_error.RESOURCE_EXHAUSTED)"),
        (quota(None), "quota", "Too many requests"),
        (failing("RESOURCE_EXHAUSTED", "quota_error", "RESOURCE_TEMPORARILY_EXHAUSTED"), "quota", "asks for a pause"),
        (Fault(grpc.StatusCode.RESOURCE_EXHAUSTED, message="slow down"), "quota", "slow down"),
        (failing("PERMISSION_DENIED", "quota_error", "ACCESS_PROHIBITED"), "auth", "refuses this login"),
        (failing("UNAUTHENTICATED", "authentication_error", "OAUTH_TOKEN_EXPIRED"), "auth", "refuses this login"),
        (failing("PERMISSION_DENIED", "authorization_error", "DEVELOPER_TOKEN_NOT_APPROVED"), "auth", "refuses this"),
        (failing("INVALID_ARGUMENT", "header_error", "INVALID_LOGIN_CUSTOMER_ID"), "auth", "refuses this login"),
        (Fault(grpc.StatusCode.UNAUTHENTICATED, message="no token"), "auth", "no token"),
        (Fault(grpc.StatusCode.PERMISSION_DENIED, message="API is disabled"), "auth", "API is disabled"),
        (failing("INVALID_ARGUMENT", "request_error", "UNSUPPORTED_VERSION"), "auth", "switched this API version off"),
        (Fault(grpc.StatusCode.UNIMPLEMENTED, message="no such method"), "auth", "switched this API version off"),
        (failing("PERMISSION_DENIED", "authorization_error", "USER_PERMISSION_DENIED"), "config", "this account"),
        (failing("PERMISSION_DENIED", "authorization_error", "CUSTOMER_NOT_ENABLED"), "config", "active_to"),
        (failing("UNAUTHENTICATED", "authentication_error", "CUSTOMER_NOT_FOUND"), "config", "this account"),
        (failing("INVALID_ARGUMENT", "query_error", "UNRECOGNIZED_FIELD"), "config", "does not accept the query"),
        (failing("PERMISSION_DENIED", "authorization_error", "METRIC_ACCESS_DENIED"), "config", "accept the query"),
        (failing("INTERNAL", "internal_error", "INTERNAL_ERROR"), "transient", "No, sorry"),
        (failing("ABORTED", "database_error", "CONCURRENT_MODIFICATION"), "transient", "No, sorry"),
    ],
)
def test_each_refusal_has_an_error_class(
    ads: AdsServer, tmp_path: Path, fault: Fault, error_class: str, words: str
) -> None:
    ads.faults = [fault]
    outcomes = fetched(ads, tmp_path)
    assert {text.partition(":")[0] for text in outcomes.values()} == {error_class}
    assert words in outcomes[D1]
    assert "request req-1" in outcomes[D1]
    if fault.retry_delay is not None:
        assert outcomes[D1].endswith("(the source asks to wait 12.5 s)")


def test_after_so_many_requests_each_further_one_is_told_to_wait(ads: AdsServer, tmp_path: Path) -> None:
    ads.allowance = 1
    assert fetched(ads, tmp_path) == dict.fromkeys(DAYS, "3")
    assert fetched(ads, tmp_path)[D1].endswith("(the source asks to wait 7 s)")
    assert len(ads.requests) == 2


def test_one_bad_account_does_not_spoil_another(ads: AdsServer, tmp_path: Path) -> None:
    denied = Fault(grpc.StatusCode.PERMISSION_DENIED, ("authorization_error", "CUSTOMER_NOT_ENABLED"), customer=BOB)
    ads.faults = [denied]
    assert fetched(ads, tmp_path) == dict.fromkeys(DAYS, "3")
    assert fetched(ads, tmp_path, customer=BOB)[D1].startswith("config: ")


# --- refused before any request --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"login_customer_id": "12-34"}, "login_customer_id: must be the ten digits"),
        ({"api_version": "v19"}, r"does not support v19 \(known: v23, v24, v25, v26\)"),
        ({"endpoint": "somewhere"}, "endpoint: 'somewhere' is not an address: write host:port"),
        ({"endpoint": None}, "insecure is for a test server"),
        ({"timeout": "soon"}, "timeout: 'soon' is not a duration"),
        ({"developer_token": "s3cret"}, "unknown key 'developer_token'"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(ads: AdsServer, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refusal:
        opened(ads, **options)
    assert str(refusal.value).startswith("sources.ads: ")
    assert "s3cret" not in str(refusal.value)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (report(select={"campaign_id": "campaign.id"}), "select lacks the fields clicks"),
        (report(select={**SELECT, "click": "metrics.clicks"}), "select.click: there is no such field; did you mean"),
        (report(select={**SELECT, "clicks": "metrics.clickz"}), "no field metrics.clickz; did you mean 'clicks'"),
        (report(select={**SELECT, "clicks": "metrics.clicks.many"}), "metrics.clicks has no parts"),
        (report(select={**SELECT, "clicks": "clicks"}), "not the name of a Google Ads field"),
        (report(select={**SELECT, "clicks": "campaign.name"}), "Google Ads sends text, which does not fit long"),
        (report(select={**SELECT, "clicks": {"path": "metrics.clicks", "as": "units"}}), "does not fit long"),
        (report(select={**SELECT, "clicks": {"path": "campaign.name", "as": "units"}}), "not an amount in micros"),
        (report(resource=None), "give either resource"),
        (report(gaql="SELECT campaign.id FROM campaign"), "give either resource"),
        (report(resource=None, gaql="SELECT campaign.id FROM campaign"), "SELECT lacks metrics.clicks"),
        (report(conditions=["segments.date DURING TODAY"]), "must not be restricted"),
        (report(enums="both"), "enums: must be 'names' or 'numbers'"),
        (report(selct={}), "unknown key 'selct'"),
    ],
)
def test_queries_that_cannot_be_asked_are_refused(ads: AdsServer, query: Query, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refusal:
        refuse_queries(opened(ads), [query])
    assert str(refusal.value).startswith("queries.campaigns.options: ")
    assert ads.requests == []


def test_the_workspace_of_the_guide_can_be_asked_as_it_stands(ads: AdsServer, tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "howto" / "google-ads.md").read_text()
    [workspace] = re.findall(r"```yaml\n(.+?)```", guide, re.DOTALL)
    [header] = re.findall(r"```\n(id,.+?\n)```", guide)
    (tmp_path / "penstock.yaml").write_text(workspace)
    (tmp_path / "customers.csv").write_text(header)
    settings = load_settings(tmp_path, {}, hooks_of)
    written = settings.sources["google_ads"].options
    refuse_queries(opened(ads, **written), settings.queries.values())
    assert len(settings.queries) == 2


def test_units_need_room_for_six_digits(ads: AdsServer) -> None:
    select = {"cost": {"path": "metrics.cost_micros", "as": "units"}}
    with pytest.raises(ConfigError, match="six digits after the point"):
        refuse_queries(opened(ads), [report([{"name": "cost", "type": "decimal(10,2)"}], select=select)])


def test_every_known_version_can_be_asked_for(ads: AdsServer) -> None:
    for version in ("v23", "v24", "v25"):
        assert opened(ads, api_version=version).api_version == version
    assert opened(ads).api_version == "v26"


# --- credentials -----------------------------------------------------------------------------------------------------


SECRETS = {
    "GOOGLE_ADS_DEVELOPER_TOKEN": "token-of-ours",
    "GOOGLE_ADS_CLIENT_ID": "client-of-ours",
    "GOOGLE_ADS_CLIENT_SECRET": "secret-of-ours",
    "GOOGLE_ADS_REFRESH_TOKEN": "refresh-of-ours",
}


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (*SECRETS, "GOOGLE_ADS_JSON_KEY_FILE_PATH", "GOOGLE_ADS_IMPERSONATED_EMAIL"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize("missing", [["GOOGLE_ADS_DEVELOPER_TOKEN"], ["GOOGLE_ADS_CLIENT_SECRET"], [*SECRETS]])
def test_missing_credentials_are_named_and_present_ones_are_not_shown(
    nobody: pytest.MonkeyPatch, missing: list[str]
) -> None:
    for name, value in SECRETS.items():
        if name not in missing:
            nobody.setenv(name, value)
    with pytest.raises(ConfigError) as refusal:
        make_source(SourceSettings(name="ads", kind="google_ads"), RunContext(new_run_id()))
    assert f"the environment lacks {', '.join(missing)}" in str(refusal.value)
    assert "of-ours" not in str(refusal.value)


def test_a_key_file_stands_in_for_the_other_three(nobody: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nobody.setenv("GOOGLE_ADS_DEVELOPER_TOKEN", "token-of-ours")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.json").write_text("{}")
    for name in ("gone.json", "broken.json", "other.json"):
        nobody.setenv("GOOGLE_ADS_JSON_KEY_FILE_PATH", str(tmp_path / name))
        source = make_source(SourceSettings(name="ads", kind="google_ads"), RunContext(new_run_id()))
        with pytest.raises(ConfigError, match="does not name a key file that can be read"):
            list(source.extract(report(), Customer(id=ALICE), DAYS))


def test_secrets_are_struck_from_whatever_a_server_says(ads: AdsServer, nobody: pytest.MonkeyPatch) -> None:
    nobody.setenv("GOOGLE_ADS_DEVELOPER_TOKEN", "token-of-ours")
    ads.faults = [Fault(grpc.StatusCode.UNAUTHENTICATED, message="token-of-ours is wrong")]
    with pytest.raises(AuthFailed) as refusal:
        list(opened(ads).extract(report(), Customer(id=ALICE), DAYS))
    assert "*** is wrong" in str(refusal.value)
    assert ads.requests[0].metadata["developer-token"] == "token-of-ours"
    assert "of-ours" not in repr(vars(opened(ads)))


class TokenServer:
    """Google's sign-in for a service account: issues a token, or refuses."""

    def __init__(self, answer: tuple[int, dict[str, Any]]) -> None:
        status, body = answer
        asked = self.asked = list[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/token"

    def __enter__(self) -> TokenServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def pem(key: rsa.RSAPrivateKey) -> bytes:
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return key.private_bytes(*plain)


def key_file(folder: Path, token_url: str) -> Path:
    """The key file of a service account."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    body = {"type": "service_account", "client_email": "us@example.com", "token_uri": token_url,
            "private_key": pem(key).decode(), "private_key_id": "1", "project_id": "p"}  # fmt: skip
    file = folder / "key.json"
    file.write_text(json.dumps(body))
    return file


def certified(folder: Path) -> tuple[grpc.ServerCredentials, Path]:
    """A certificate for localhost that signs itself."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    file = folder / "roots.pem"
    file.write_bytes(made)
    return grpc.ssl_server_credentials([(pem(key), made)]), file


def test_a_login_signs_in_once_and_asks_over_tls(nobody: pytest.MonkeyPatch, tmp_path: Path) -> None:
    credentials, roots = certified(tmp_path)
    nobody.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(roots))
    state = AdsServer(rows={(ALICE, D1): [campaign(1)]})
    server = serve(state, credentials)
    token = (200, {"access_token": "access-of-ours", "token_type": "Bearer", "expires_in": 3600})
    with TokenServer(token) as sign_in:
        nobody.setenv("GOOGLE_ADS_DEVELOPER_TOKEN", "token-of-ours")
        nobody.setenv("GOOGLE_ADS_JSON_KEY_FILE_PATH", str(key_file(tmp_path, sign_in.url)))
        settings = SourceSettings(name="ads", kind="google_ads", options={"endpoint": state.address})
        for _ in range(2):
            source = make_source(settings, RunContext(new_run_id()))
            assert len([row for _, row in source.extract(report(), Customer(id=ALICE), DAYS) if type(row) is dict]) == 1
        assert len(sign_in.asked) == 1
        state.faults = [Fault(grpc.StatusCode.UNAUTHENTICATED, message="revoked", times=1)]
        with pytest.raises(AuthFailed):
            list(source.extract(report(), Customer(id=ALICE), DAYS))
        list(source.extract(report(), Customer(id=ALICE), DAYS))
        assert len(sign_in.asked) == 2  # the key file may have been renewed meanwhile
    assert {request.metadata["authorization"] for request in state.requests} == {"Bearer access-of-ours"}
    assert {request.metadata["developer-token"] for request in state.requests} == {"token-of-ours"}
    server.stop(None).wait()


def test_refused_credentials_are_an_error_of_the_whole_source(nobody: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refusal = (400, {"error": "invalid_grant", "error_description": "Token has been revoked."})
    with TokenServer(refusal) as sign_in:
        nobody.setenv("GOOGLE_ADS_DEVELOPER_TOKEN", "token-of-ours")
        nobody.setenv("GOOGLE_ADS_JSON_KEY_FILE_PATH", str(key_file(tmp_path, sign_in.url)))
        source = make_source(SourceSettings(name="ads", kind="google_ads"), RunContext(new_run_id()))
        with pytest.raises(AuthFailed, match="Google refuses these credentials: invalid_grant: Token has been revoked"):
            list(source.extract(report(), Customer(id=ALICE), DAYS))


def test_an_unreachable_sign_in_is_a_transient_error(nobody: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nobody.setenv("GOOGLE_ADS_DEVELOPER_TOKEN", "token-of-ours")
    nobody.setenv("GOOGLE_ADS_JSON_KEY_FILE_PATH", str(key_file(tmp_path, "http://127.0.0.1:1/token")))
    source = make_source(SourceSettings(name="ads", kind="google_ads"), RunContext(new_run_id()))
    with pytest.raises(SourceUnavailable, match="sign-in did not respond"):
        list(source.extract(report(), Customer(id=ALICE), DAYS))


# --- customers -------------------------------------------------------------------------------------------------------


def test_accounts_below_the_manager_are_listed_once(ads: AdsServer) -> None:
    ads.clients = [
        Client(MANAGER, "We", manager=True, level=0),
        Client(BOB, "Bob", "America/New_York"),
        Client(ALICE, "Alice", "Europe/Berlin", level=2),
        Client(ALICE, "Alice", "Europe/Berlin", level=2),
        Client("3333333333", "Closed", status="CANCELED"),
        Client("4444444444", "Deep", level=4),
    ]
    alice, bob = Account(ALICE, "Alice", "Europe/Berlin"), Account(BOB, "Bob", "America/New_York")
    assert opened(ads).accounts(3, ["ENABLED"]) == [alice, bob]
    assert ads.requests[0].customer_id == MANAGER
    assert [found.id for found in opened(ads).accounts(1, ["ENABLED", "CANCELED"])] == [BOB, "3333333333"]
    with pytest.raises(ConfigError, match="login_customer_id is missing"):
        opened(ads, login_customer_id=None).accounts(1, [])
