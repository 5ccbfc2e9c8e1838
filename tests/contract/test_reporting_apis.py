"""The recipes of docs/howto/reporting-apis.md, each against a server that behaves as the service documents it."""

from __future__ import annotations

import gzip
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.app import Workspace
from penstock.control.select import Selection
from penstock.errors import ErrorClass
from penstock.flow.summary import RunSummary
from support.web import Asked, Said, Service, service
from support.workspaces import open_at

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "reporting-apis.md"
RECIPES = dict(re.findall(r"^```yaml (\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
VARIABLES = sorted(set(re.findall(r"\$\{(\w+)\}", PAGE.read_text())))
DAYS = [date(2024, 6, 1), date(2024, 6, 2)]
JSON = {"Content-Type": "application/json"}
Answer = Callable[[Asked], Said]


def said(document: Any, status: int = 200, **headers: str) -> Said:
    return Said(json.dumps(document).encode(), status, {**JSON, **headers})


class Api:
    """A service with OAuth and reports that are finished at the second poll."""

    def __init__(self) -> None:
        self.tokens = 0
        self.polls: dict[str, int] = {}
        self.here: Service | None = None

    def token(self, asked: Asked) -> Said:
        """Tokens last an hour. The secret of the client is in the body, as these services want it."""
        assert asked.method == "POST"
        assert asked.form["grant_type"] == "refresh_token"
        assert asked.form["client_secret"].endswith("-value")
        assert asked.form["refresh_token"].endswith("-value")
        self.tokens += 1
        return said({"access_token": f"access-{self.tokens}", "token_type": "Bearer", "expires_in": 3600})

    def is_finished(self, report: str) -> bool:
        self.polls[report] = self.polls.get(report, 0) + 1
        return self.polls[report] > 1

    @property
    def url(self) -> str:
        assert self.here is not None
        return self.here.url

    def answer(self, asked: Asked) -> Said:
        raise NotImplementedError


def days_between(first: str, last: str) -> list[str]:
    begin, end = date.fromisoformat(first), date.fromisoformat(last)
    return [(begin + timedelta(days=n)).isoformat() for n in range((end - begin).days + 1)]


class Meta(Api):
    def answer(self, asked: Asked) -> Said:
        assert asked.headers["authorization"] == "Bearer META_TOKEN-value"
        if asked.path.endswith("/act_north/insights"):
            assert asked.method == "POST"
            span = json.loads(asked.params["time_range"])
            [window] = json.loads(asked.params["action_attribution_windows"])
            return said({"report_run_id": f"{span['since']}.{span['until']}.{window}"})
        report, _, rest = asked.path.removeprefix("/v23.0/").partition("/")
        if not rest:
            done = self.is_finished(report)
            state = "Job Completed" if done else "Job Running"
            return said({"id": report, "async_status": state, "async_percent_completion": 100 if done else 40})
        first, last, window = report.split(".")
        rows = [
            {"campaign_id": str(n), "impressions": f"{10 * n}", "spend": "1.25" if window == "7d_click" else "9.00",
             "date_start": day, "date_stop": day}
            for day in days_between(first, last) for n in (1, 2)
        ]  # fmt: skip
        at = int(asked.params.get("after", 0))
        following = f"{self.url}{asked.path}?after={at + 3}"
        paging = {"cursors": {"before": "x", "after": "y"}, **({"next": following} if at + 3 < len(rows) else {})}
        return said({"data": rows[at : at + 3], "paging": paging})


class Ga4(Api):
    def answer(self, asked: Asked) -> Said:
        if asked.path.endswith("/token"):
            return self.token(asked)
        assert asked.headers["authorization"] == "Bearer access-1"
        assert asked.path == "/v1beta/properties/north:runReport"
        body = asked.document
        [span] = body["dateRanges"]
        assert body["limit"] == 100000
        days = [day.replace("-", "") for day in days_between(span["startDate"], span["endDate"])]
        rows = [
            {"dimensionValues": [{"value": day}, {"value": "Direct"}],
             "metricValues": [{"value": "7"}, {"value": "0.5"}]}
            for day in days if day != "20240602"
        ]  # fmt: skip
        return said({"rows": rows, "rowCount": len(rows)} if rows else {"rowCount": 0})


class Amazon(Api):
    def answer(self, asked: Asked) -> Said:
        if asked.path.endswith("/token"):
            return self.token(asked)
        if asked.path.startswith("/files/"):
            assert "authorization" not in asked.headers, "another host gets no credentials"
            assert not any(name.startswith("amazon") for name in asked.headers)
            first, last = asked.path.removeprefix("/files/").split("_")
            rows = [
                {"date": day, "campaignId": 2**53 + 1, "impressions": 5, "cost": 0.1}
                for day in days_between(first, last)
            ]
            return Said(gzip.compress(json.dumps(rows).encode()))
        assert asked.headers["authorization"] == "Bearer access-1"
        assert asked.headers["amazon-advertising-api-scope"] == "north"
        if asked.method == "POST":
            return said({"reportId": f"{asked.document['startDate']}_{asked.document['endDate']}", "status": "PENDING"})
        report = asked.path.rpartition("/")[2]
        if not self.is_finished(report):
            return said({"reportId": report, "status": "PROCESSING", "url": None})
        other = self.url.replace("127.0.0.1", "localhost")
        return said({"reportId": report, "status": "COMPLETED", "url": f"{other}/files/{report}"})


class Microsoft(Api):
    def answer(self, asked: Asked) -> Said:
        if asked.path.endswith("/token"):
            return self.token(asked)
        if asked.path == "/report.zip":
            assert "developertoken" not in asked.headers
            content = io.BytesIO()
            with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
                lines = ["TimePeriod,CampaignId,Clicks,Spend", *(f'{day},17,3,"1.50"' for day in DAYS)]
                archive.writestr("report.csv", "\ufeff" + "\r\n".join(lines) + "\r\n")
            return Said(content.getvalue())
        assert asked.headers["developertoken"] == "MS_DEVELOPER_TOKEN-value"
        assert asked.headers["customeraccountid"] == "north"
        if asked.path.endswith("/Submit"):
            time = asked.document["ReportRequest"]["Time"]
            assert time["CustomDateRangeStart"] == {"Year": 2024, "Month": 6, "Day": 1}
            assert time["CustomDateRangeEnd"] == {"Year": 2024, "Month": 6, "Day": 2}
            return said({"ReportRequestId": "r1"})
        assert asked.document == {"ReportRequestId": "r1"}
        state = {"Status": "Success", "ReportDownloadUrl": f"{self.url}/report.zip"}
        return said({"ReportRequestStatus": state if self.is_finished("r1") else {"Status": "Pending"}})


class SearchConsole(Api):
    def answer(self, asked: Asked) -> Said:
        if asked.path.endswith("/token"):
            return self.token(asked)
        assert asked.path == "/webmasters/v3/sites/sc-domain%3Anorth/searchAnalytics/query"
        body = asked.document
        if body["startRow"] > 0:
            return said({"responseAggregationType": "byProperty"})
        rows = [{"keys": [day, "shoes"], "clicks": 4, "impressions": 9, "ctr": 0.4, "position": 1.5}
                for day in days_between(body["startDate"], body["endDate"])]  # fmt: skip
        return said({"rows": rows, "responseAggregationType": "byProperty"})


class Stripe(Api):
    def answer(self, asked: Asked) -> Said:
        assert asked.headers["authorization"] == "Bearer STRIPE_KEY-value"
        assert asked.headers["stripe-account"] == "north"
        first, last = int(asked.params["created[gte]"]), int(asked.params["created[lt]"])
        assert last - first == 86400
        ids = [f"evt_{first}_{n}" for n in range(3)]
        begin = ids.index(asked.params["starting_after"]) + 1 if "starting_after" in asked.params else 0
        rows = [{"id": name, "type": "charge.succeeded", "data": {"object": {"amount": 100}}} for name in ids]
        return said({"object": "list", "data": rows[begin : begin + 2], "has_more": begin + 2 < len(ids)})


APIS: dict[str, type[Api]] = {
    "meta": Meta, "ga4": Ga4, "amazon": Amazon, "microsoft": Microsoft, "search_console": SearchConsole,
    "stripe": Stripe,
}  # fmt: skip
ROWS: dict[str, dict[str, list[Any]]] = {
    "meta.insights_7d_click": {"campaign_id": ["1", "2"] * 2, "impressions": [10, 20] * 2, "spend": [1.25] * 4},
    "meta.insights_1d_view": {"campaign_id": ["1", "2"] * 2, "impressions": [10, 20] * 2, "spend": [9.0] * 4},
    "ga4.sessions": {"channel": ["Direct"], "sessions": [7], "revenue": [0.5]},
    "amazon.sponsored_products": {"campaign_id": [2**53 + 1] * 2, "impressions": [5] * 2, "cost": [0.1] * 2},
    "microsoft.campaigns": {"campaign_id": [17] * 2, "clicks": [3] * 2, "spend": [1.5] * 2},
    "search_console.search_terms": {"term": ["shoes"] * 2, "clicks": [4] * 2, "position": [1.5] * 2},
    "stripe.events": {"type": ["charge.succeeded"] * 6, "amount": [100] * 6},
}


def write_recipe(folder: Path, name: str, url: str, **changes: Any) -> Path:
    """The workspace of a recipe, with all addresses on this server and short pauses."""
    body = yaml.safe_load(re.sub(r"https://[a-z0-9.-]+", url, RECIPES[name]))
    for query in body["queries"].values():
        if "report" in query["options"]:
            query["options"]["report"] |= {"first_wait": 0.01, "longest_wait": 0.01}
    for source in body["sources"].values():
        source |= changes
    body |= {
        "tenant": "acme", "workspace": "w", "state": "sqlite:///state.db", "lake": "./lake",
        "spark": {"master": "local[1]"},
        "customers": [{"id": "north", "active_from": DAYS[0], "active_to": DAYS[-1]}],
    }  # fmt: skip
    (folder / "penstock.yaml").write_text(yaml.safe_dump(body))
    return folder


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, f"{name}-value")


@pytest.fixture
def opened(variables: None, tmp_path: Path) -> Iterator[Callable[..., Workspace]]:
    made: list[Workspace] = []

    def make(name: str, url: str, **changes: Any) -> Workspace:
        made.append(open_at(write_recipe(tmp_path, name, url, **changes)))
        return made[-1]

    yield make
    for workspace in made:
        workspace.close()


def run(workspace: Workspace) -> RunSummary:
    return workspace.runs.start(Selection(), actor="test")


def test_every_recipe_has_a_server() -> None:
    assert set(RECIPES) == set(APIS)
    assert {f"{name}.{query}" for name, text in RECIPES.items() for query in yaml.safe_load(text)["queries"]} == set(
        ROWS
    )


@pytest.mark.parametrize("name", APIS)
def test_a_recipe_fetches_every_day(name: str, opened: Callable[..., Workspace]) -> None:
    api = APIS[name]()
    with service(api.answer) as api.here:
        workspace = opened(name, api.url)
        summary = run(workspace)
        tables = [table for table in ROWS if table.startswith(f"{name}.")]
        assert (summary.failures, summary.accepted) == ([], len(DAYS) * len(tables))
        for table in tables:
            found = workspace.read(table).arrow()
            assert {column: found.column(column).to_pylist() for column in ROWS[table]} == ROWS[table]
        assert api.tokens <= 1, "one token for all requests"


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        (17, 400, ErrorClass.QUOTA),
        (190, 400, ErrorClass.AUTH),
        (2, 500, ErrorClass.TRANSIENT),
        (100, 400, ErrorClass.CONFIG),
    ],
)
def test_errors_in_the_body_of_a_response_are_classified(
    code: int, status: int, expected: ErrorClass, opened: Callable[..., Workspace]
) -> None:
    error = {"error": {"message": "no META_TOKEN-value", "code": code}}
    with service(lambda asked: said(error, status)) as here:
        workspace = opened("meta", here.url)
        summary = run(workspace)
    found = {failure.error_class for failure in [*summary.failures, *summary.cancelled_items]}
    assert found == {expected}
    assert "META_TOKEN-value" not in str(summary)


def test_an_announced_end_of_the_api_is_shown_by_the_run(
    opened: Callable[..., Workspace], caplog: pytest.LogCaptureFixture
) -> None:
    api = Stripe()
    ending = {"Sunset": "Wed, 11 Nov 2026 23:59:59 GMT"}
    with service(lambda asked: Said(api.answer(asked).body, 200, ending)) as api.here:
        assert run(opened("stripe", api.url)).accepted == len(DAYS)
    [warned] = [record.__dict__["facts"] for record in caplog.records if record.message == "source.warned"]
    assert warned == {"source": "stripe", "warning": f"{api.url}/v1/events announces its end: 2026-11-11 (Sunset)"}
