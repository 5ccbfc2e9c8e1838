"""The list of partitions and the page of one partition: what they show, which actions they offer, and their errors."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from starlette.testclient import TestClient

from penstock.control.select import Selection
from penstock.http.routes import all_routes
from penstock.lifecycle import DisplayStatus
from penstock.partition import PartitionKey
from support import builders
from support.api import bearer, served
from support.page_text import links_of, refuse_injected, shown, text_of
from support.partition_pages import BAD, HOSTILE, MODEL, ZONE, PartitionHouse, filled
from support.workspaces import key

DAY = "2024-06-09"


@pytest.fixture(scope="module")
def house() -> Iterator[PartitionHouse]:
    with builders.quick_folder() as folder:
        made = filled(Path(folder) / "ws")
        yield made
        made.workspace.close()


@pytest.fixture(scope="module")
def tokens(house: PartitionHouse) -> dict[str, dict[str, str]]:
    roles = ("viewer", "operator", "admin")
    return {role: bearer(house.workspace.tokens.create(f"a-{role}", role, actor="ada")[1]) for role in roles}


@pytest.fixture(scope="module")
def pages(house: PartitionHouse, tokens: dict[str, dict[str, str]]) -> Iterator[TestClient]:
    with served(house.workspace) as client:
        client.headers |= tokens["admin"]
        yield client


def actions(page: str) -> dict[str, dict[str, list[str]]]:
    """The links to action forms: the fields of each by its action, with the run if there is one."""
    links = [html.unescape(link) for link in re.findall(r'href="(/actions/new\?[^"]+)"', page)]
    found = {}
    for link in links:
        fields = parse_qs(urlsplit(link).query)
        [act] = fields.pop("act")
        found[act] = fields
    return found


# --- the list ---------------------------------------------------------------------------------------------------------


def test_the_list_shows_state_figures_and_a_shortened_error(pages: TestClient, house: PartitionHouse) -> None:
    page = shown(pages, f"/partitions?since={DAY}&until={DAY}&source=demo")
    assert "3 partitions" in page
    for number in (1, 2, 3):
        assert f'href="/partitions/{key(number)}"' in page
    assert "materialized, last attempt failed" in page
    assert html.escape(HOSTILE, quote=False)[:20] in page
    assert "e" * 50 in page
    assert "the end" not in page
    assert "the end" in shown(pages, f"/partitions/{key(3)}")


def test_filters_stay_in_the_form_and_in_the_url_of_actions(pages: TestClient) -> None:
    asked = f"customer={key(3).customer_id}&query=campaign_daily&status=failed&since={DAY}&source=demo"
    page = shown(pages, f"/partitions?{asked}&until=")
    assert "1 partition<" in page
    assert f'name="customer" value="{key(3).customer_id}"' in page
    assert "<option selected>failed</option>" in page
    acts = ("retry", "run", "pause", "resume", "mark-terminal", "clear-terminal")
    assert actions(page) == dict.fromkeys(acts, parse_qs(asked))
    assert "penstock state inspect" in page


def test_a_day_is_a_range_of_one_day_for_an_action(pages: TestClient) -> None:
    page = shown(pages, f"/partitions?date={DAY}&status=success")
    assert actions(page)["retry"] == {"since": [DAY], "until": [DAY], "status": ["success"]}
    for link in re.findall(r'href="(/actions/new[^"]+)"', page):
        assert shown(pages, html.unescape(link))


def test_several_names_may_be_separated_by_spaces_and_commas(pages: TestClient) -> None:
    page = shown(
        pages, f"/partitions?customer={key(1).customer_id},{key(2).customer_id}+{key(3).customer_id}&source=demo"
    )
    assert "3 partitions" in page
    assert "2 partitions" in shown(pages, f"/partitions?key={key(1)}+{key(9)}")


@pytest.mark.parametrize("display", DisplayStatus)
@pytest.mark.parametrize(
    "filters", ["", f"&since={DAY}", f"&customer={key(1).customer_id}&customer={key(2).customer_id}", "&source=models"]
)
def test_a_display_status_lists_exactly_the_partitions_that_have_it(
    pages: TestClient, display: str, filters: str
) -> None:
    """The expected partitions come from the counts and from the list of each state, which compute it otherwise."""
    filters += "&until=2024-06-20"
    every: list[dict[str, Any]] = []
    for status in ("pending", "success", "failed"):
        every += pages.get(f"/api/v1/partitions?status={status}&limit=1000{filters}").json()["items"]
    expected = sorted(item["key"] for item in every if item["display_status"] == display)
    counts = pages.get(f"/api/v1/status?{filters.removeprefix('&')}").json()["counts"]
    found, cursor = [], ""
    while True:
        document = pages.get(f"/api/v1/partitions?display={display}&limit=7{filters}{cursor}").json()
        assert document["total"] == len(expected) == counts.get(display, 0)
        found += [item["key"] for item in document["items"]]
        assert {item["display_status"] for item in document["items"]} <= {display}
        if document["next"] is None:
            break
        cursor = f"&cursor={document['next']}"
    assert found == expected


def test_the_workspace_of_these_tests_has_these_display_statuses(pages: TestClient) -> None:
    assert set(pages.get("/api/v1/status").json()["counts"]) == {*DisplayStatus} - {DisplayStatus.UNAVAILABLE}


def test_actions_on_a_display_status_take_the_partitions_of_the_page_and_never_more(pages: TestClient) -> None:
    failed = DisplayStatus.LAST_ATTEMPT_FAILED
    page = shown(pages, f"/partitions?display={failed}&source=demo")
    assert f'<option value="{failed}" selected>materialized, last attempt failed</option>' in page
    listed = [item["key"] for item in pages.get(f"/api/v1/partitions?display={failed}").json()["items"]]
    assert listed
    for fields in actions(page).values():
        assert fields == {"key": listed}
    assert "penstock failed --source demo" in page
    many = shown(pages, "/partitions?display=never_materialized&limit=2")
    assert actions(many) == {}
    assert "Actions do not select by display status" in many
    assert "Partitions that were never attempted have no row" not in many


MISTAKES = {
    "display=bogus": "display 'bogus' is unknown: use never_materialized, materialized",
    "display=stale&status=success": "display cannot be combined with a key or a status",
    f"display=stale&key={key(1)}": "display cannot be combined with a key or a status",
    "status=bogus": "status 'bogus' is unknown: use pending, success, failed",
    "since=nonsense": "nonsense",
    "source=nowhere": "nowhere",
    "query=nothing": "nothing",
    f"since=2024-06-10&until={DAY}": "is after",
    "cursor=x": "cursor",
    "limit=0": "limit '0' is not a number from 1 to 1000",
    "key=demo": "demo",
    f"key={key(1)}&source=demo": "either by key or by filters",
    "customer=%3Cb%3E": "<b>",
}


@pytest.mark.parametrize("asked", MISTAKES)
def test_a_mistake_shows_the_error_of_the_api_and_the_form_as_it_was_entered(pages: TestClient, asked: str) -> None:
    page = shown(pages, f"/partitions?{asked}", 400)
    api = pages.get(f"/api/v1/partitions?{asked}")
    assert api.status_code == 400
    message = api.json()["detail"]
    assert MISTAKES[asked] in message
    assert message.replace("`", "") in html.unescape(page.replace("<code>", "").replace("</code>", ""))
    for name, [value] in parse_qs(asked).items():
        if name not in ("cursor", "limit"):
            assert html.escape(value) in page
    assert "<table" not in page
    assert not actions(page)


def test_an_unknown_parameter_and_a_nul_character_are_refused(pages: TestClient) -> None:
    assert "unknown parameter" in shown(pages, "/partitions?colour=red", 400)
    shown(pages, "/partitions?source=a%00b", 400)


def test_pages_follow_each_other_by_cursor_and_list_each_partition_once(pages: TestClient) -> None:
    path, found = f"/partitions?date={DAY}&status=pending&source=demo&limit=2", list[str]()
    while path:
        page = shown(pages, path)
        found += re.findall(r'<th scope="row" class="key"><a href="/partitions/([^"]+)"', page)
        [*following] = re.findall(r'rel="next" href="([^"]+)"', page)
        path = f"/partitions{html.unescape(following[0])}" if following else ""
    assert found == [str(key(number)) for number in range(4, 10)]


def test_a_list_without_partitions_says_so(pages: TestClient) -> None:
    page = shown(pages, f"/partitions?customer={key(9).customer_id}")
    assert "No partition matches" in page
    assert "penstock run" in page
    assert not actions(page)


def test_a_viewer_sees_the_list_without_actions(pages: TestClient, tokens: dict[str, dict[str, str]]) -> None:
    page = shown(pages, "/partitions?status=failed", headers=tokens["viewer"])
    assert "1 partition<" in page
    assert not actions(page)


# --- one partition ----------------------------------------------------------------------------------------------------


def test_the_page_of_a_partition_explains_it_as_the_api_does(pages: TestClient) -> None:
    for number in (1, 2, 3, 9):
        text = text_of(shown(pages, f"/partitions/{key(number)}")).replace("`", "")
        document = pages.get(f"/api/v1/partitions/{key(number)}").json()
        for line in (document["headline"], document["next"], *document["blocks"], *document["stale"]):
            assert re.sub(r"[\s`]+", " ", line) in re.sub(r" (?=[.;,])", "", text) or line.split("`")[0].strip() in text
        for run in filter(None, (document["authority"]["run_id"], (document["pointer"] or {}).get("run_id"))):
            assert run in text


def test_attempts_are_listed_newest_first_with_complaints_and_their_rows(pages: TestClient) -> None:
    page = shown(pages, f"/partitions/{key(1)}")
    assert re.findall(r'<li id="attempt-(\d)"', page) == ["3", "2", "1"]
    text = text_of(page)
    assert BAD.decode() in text
    assert HOSTILE in text
    [run] = re.findall(r'/raw\?run=(\w+)&amp;line=2"', page)
    assert pages.get(f"/api/v1/partitions/{key(1)}/attempts").json()["items"][0]["run_id"] == run
    assert text.count("✓ accepted") >= 2
    assert "✕ rejected" in text


def test_figures_that_differ_from_those_of_the_trusted_run_are_marked(pages: TestClient) -> None:
    page = shown(pages, f"/partitions/{key(1)}")
    figures = {
        text_of(cells[0]): [text_of(cell) for cell in cells[1:]]
        for row in re.findall(r"<tr>(<th scope=\"row\">.*?)</tr>", page, re.S)
        for cells in [re.split(r"<td[^>]*>", row)]
    }
    assert figures["rows"] == ["5", "≠ 2 (-3)", "≠ 3 (-2)"]
    assert figures["sum(clicks)"] == ["–", "-3.0", "–"]
    assert figures["failed checks"] == ["none", "≠ range", "none"]
    assert figures["schema version"] == ["v1", "v1", "v1"]
    assert [cell.startswith("≠") for cell in figures["payload digest"]] == [False, True, True]


def test_times_are_shown_in_utc_and_in_the_zone_of_the_customer(pages: TestClient) -> None:
    page = shown(pages, f"/partitions/{key(1)}")
    assert HOSTILE in html.unescape(page)
    assert re.search(rf'<time datetime="[^"]+Z">[^<]+</time> <span class="zone">[^<]+ {ZONE}</span>', page)
    assert ZONE not in shown(pages, f"/partitions/{key(2)}")


def test_a_partition_links_to_its_neighbours(pages: TestClient) -> None:
    page = shown(pages, f"/partitions/{key(1)}")
    links = links_of(page)
    assert {
        f"/partitions/{key(1, '2024-06-08')}",
        f"/partitions/{key(1, '2024-06-10')}",
        f"/partitions/{key(1)}/raw",
        f"/grid?query=demo.campaign_daily&customer={key(1).customer_id}",
        "/tables/demo.campaign_daily",
    } <= links
    assert any(link.startswith("/lineage?key=") for link in links)


def test_only_actions_that_apply_are_offered(pages: TestClient, tokens: dict[str, dict[str, str]]) -> None:
    def offered(partition: PartitionKey, role: str = "admin") -> set[str]:
        found = actions(shown(pages, f"/partitions/{partition}", headers=tokens[role]))
        assert all(fields["key"] == [str(partition)] for fields in found.values())
        return set(found)

    assert offered(key(1)) == {"run", "pause", "demote", "rollback"}
    assert offered(key(2)) == {"run", "pause", "demote"}
    assert offered(key(3)) == {"retry", "pause", "mark-terminal", "approve"}
    assert offered(key(9)) == {"run", "pause"}
    assert offered(MODEL) == {"run", "pause", "demote"}
    assert offered(key(1), "operator") == {"run", "pause"}
    assert offered(key(3), "operator") == {"retry", "pause", "mark-terminal"}
    assert offered(key(3), "viewer") == set()


def test_every_offered_action_can_be_previewed(pages: TestClient, house: PartitionHouse) -> None:
    reasons = {"demote": "wrong", "approve": "right"}
    for number in (1, 2, 3, 9):
        for act, fields in actions(shown(pages, f"/partitions/{key(number)}")).items():
            form = {name: value for name, [value] in fields.items()} | {"act": act, "reason": reasons.get(act, "")}
            response = pages.post("/actions/preview", data=form)
            assert response.status_code == 200, (act, response.text)
            assert "Nothing would change" not in response.text, (act, number)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"act": "pause"}, "Partitions that change in between are shown and left as they are."),
        ({"act": "validate"}, "The control loop works on these partitions only"),
        ({"act": "run", "reprocess": "true"}, "The control loop works on these partitions only"),
        ({"act": "run"}, "This is a standing instruction: the control loop does what is due when it begins"),
        ({"act": "reconcile"}, "This is a standing instruction"),
        ({"act": "compact"}, "This is a standing instruction"),
    ],
)
def test_a_preview_says_what_happens_to_changes_in_between(
    pages: TestClient, fields: dict[str, str], sentence: str
) -> None:
    response = pages.post("/actions/preview", data=fields)
    assert response.status_code == 200, response.text
    assert sentence in text_of(response.text)


def test_the_actions_follow_marks_and_open_attempts(tmp_path: Path) -> None:
    house = filled(tmp_path / "ws")
    operations, chosen = house.workspace.operations, Selection(keys=(key(3),))
    with served(house.workspace) as pages:
        path = f"/partitions/{key(3)}"
        operations.pause(chosen, reason=HOSTILE, actor="ada")
        page = shown(pages, path)
        assert set(actions(page)) == {"retry", "resume", "mark-terminal", "approve"}
        assert f"paused by ada: {HOSTILE}" in html.unescape(page)
        operations.mark_terminal([key(3)], reason=HOSTILE, actor="ada")
        assert set(actions(shown(pages, path))) == {"resume", "clear-terminal", "approve"}
        attempt, _ = house.issue(key(1))
        page = shown(pages, f"/partitions/{key(1)}")
        assert set(actions(page)) == {"pause", "demote"}
        assert f"run {attempt.run_id} is working on it" in text_of(page)
        assert re.findall(r'<li id="attempt-(\d)"', page) == ["4", "3", "2", "1"]
    house.workspace.close()


def test_a_read_only_server_offers_no_actions(house: PartitionHouse, tokens: dict[str, dict[str, str]]) -> None:
    with served(house.workspace, read_only=True) as pages:
        for path in (f"/partitions/{key(3)}", "/partitions?status=failed"):
            assert not actions(shown(pages, path, headers=tokens["admin"]))


def test_a_partition_that_was_never_attempted_has_a_page(pages: TestClient) -> None:
    page = shown(pages, f"/partitions/{key(9)}")
    assert "This partition was never attempted" in page
    assert f"penstock run {key(9)}" in page
    assert "no row" in page
    assert "Figures of runs" not in page


@pytest.mark.parametrize("day", ["2024-06-08", "0001-01-01", "9999-12-31"])
def test_a_day_that_is_not_expected_says_why(pages: TestClient, day: str) -> None:
    page = shown(pages, f"/partitions/{key(1, day)}")
    assert "nothing until the day is due" in page


def test_a_partition_of_a_model_has_a_page(pages: TestClient) -> None:
    page = shown(pages, f"/partitions/{MODEL}")
    assert "All customers" in page
    assert 'href="/grid?query=models.spend"' in page
    assert "Derive again" in page


UNKNOWN = [
    "demo/999/campaign_daily/2024-06-09",
    "nowhere/1000000001/campaign_daily/2024-06-09",
    "demo/1000000001/nothing/2024-06-09",
    "demo/1000000001/campaign_daily/2024-13-45",
    "demo/1000000001/campaign_daily/yesterday",
    "demo/%3Cscript%3Ealert(1)%3C%2Fscript%3E/campaign_daily/2024-06-09",
    "DEMO/1000000001/campaign_daily/2024-06-09",
    "demo/..%2f..%2fetc/campaign_daily/2024-06-09",
    "demo/1' OR 1=1 --/campaign_daily/2024-06-09",
    "models/1000000001/spend/2024-06-09",
]


@pytest.mark.parametrize("place", ["", "/raw", "/diff?left=a&right=b"])
@pytest.mark.parametrize("path", UNKNOWN)
def test_an_unknown_or_malformed_key_is_not_found(pages: TestClient, path: str, place: str) -> None:
    shown(pages, f"/partitions/{path}{place}", 404)


def test_a_poll_without_changes_costs_a_304(pages: TestClient) -> None:
    for path in (f"/partitions/{key(1)}", "/partitions", "/audit", "/lineage"):
        first = pages.get(path)
        assert pages.get(path, headers={"If-None-Match": first.headers["etag"]}).status_code == 304


HOSTILE_VALUES = ["'", "%00", "..%2F..", "%F0%9F%98%80", "x" * 3000, HOSTILE, "-1", "%0A", "1e9", "%FF", "%E2%80%AE"]


@pytest.mark.parametrize("value", HOSTILE_VALUES)
def test_no_value_of_a_parameter_makes_a_page_fail(pages: TestClient, value: str) -> None:
    for route in all_routes():
        if not route.is_page or route.is_unsafe or not route.path.startswith(("/partitions", "/lineage", "/audit")):
            continue
        path = route.path.format_map(key(1)._asdict())
        for parameter in route.parameters:
            given = f"{path}?{parameter.name}={quote(value, safe='%')}"
            response = pages.get(given, headers={"Accept": "text/html"})
            assert response.status_code in (200, 400, 404), (given, response.text)
            refuse_injected(response.text)


def test_an_action_keeps_the_source_that_a_list_was_filtered_by(pages: TestClient) -> None:
    for source in ("models", "unknown"):
        form = pages.get("/actions/new", params={"act": "retry", "source": source})
        assert f"<option selected>{source}</option>" in form.text, "it must not become all sources"


def test_a_backfill_of_a_state_is_refused_and_not_offered(pages: TestClient) -> None:
    assert "act=backfill" in pages.get("/partitions").text
    assert "act=backfill" not in pages.get("/partitions?status=failed").text
    refused = pages.post("/api/v1/plans", json={"act": "backfill", "selection": {"status": "failed"}})
    assert refused.status_code == 400
    assert "a backfill takes no status" in refused.json()["detail"]
    form = pages.get("/actions/new?act=backfill&status=failed")
    assert 'name="status"' in form.text, "a state of the address is shown, not dropped"
    assert 'name="status"' not in pages.get("/actions/new?act=backfill").text
