"""The raw rows of a partition and the differences of two runs: who may read them, limits, damage, hostile rows."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.testclient import TestClient

from penstock.app import raw_preview
from penstock.app.raw_preview import PREVIEW_LINES, compare_runs, preview_lines
from penstock.errors import ActRefused
from penstock.raw.seal import Seal
from support import builders
from support.api import bearer, served
from support.page_text import links_of, shown, text_of
from support.partition_pages import BAD, GOOD, HOSTILE, MODEL, PartitionHouse, filled
from support.workspaces import key

ONE = f"/partitions/{key(1)}"


@pytest.fixture(scope="module")
def house() -> Iterator[PartitionHouse]:
    with builders.quick_folder() as folder:
        made = filled(Path(folder) / "ws")
        yield made
        made.workspace.close()


@pytest.fixture(scope="module")
def tokens(house: PartitionHouse) -> dict[str, dict[str, str]]:
    roles = ("viewer", "operator")
    return {role: bearer(house.workspace.tokens.create(f"a-{role}", role, actor="ada")[1]) for role in roles}


@pytest.fixture(scope="module")
def pages(house: PartitionHouse, tokens: dict[str, dict[str, str]]) -> Iterator[TestClient]:
    with served(house.workspace) as client:
        client.headers |= tokens["operator"]
        yield client


@pytest.fixture(scope="module")
def runs(house: PartitionHouse) -> list[str]:
    """The runs of customer 1, oldest first: accepted, accepted and trusted, rejected."""
    return [str(attempt.run_id) for attempt in house.workspace.context.state.attempts(key(1))][::-1]


def reads(house: PartitionHouse) -> list[dict[str, Any]]:
    """The audit lines of reads, newest first."""
    return [line for line in house.workspace.context.state.audit() if line["command"] == "raw read --run"]


# --- raw rows ---------------------------------------------------------------------------------------------------------


def test_a_viewer_reads_the_trusted_run_without_a_line_in_the_audit_log(
    pages: TestClient, house: PartitionHouse, tokens: dict[str, dict[str, str]], runs: list[str]
) -> None:
    before = reads(house)
    page = shown(pages, f"{ONE}/raw", headers=tokens["viewer"])
    text = text_of(page)
    assert "Lines 1 to 5 of 5" in text
    [seal] = [run.seal for run in house.workspace.raw.runs(key(1))[0] if run.attempt.run_id == runs[1]]
    assert f"{seal.payload_bytes} bytes" in text  # type: ignore[union-attr]
    assert seal.payload_sha256 in text  # type: ignore[union-attr]
    lines = [html.unescape(line) for line in re.findall(r'<code class="raw-line">(.*?)</code>', page)]
    assert lines == [line.decode() for line in house.workspace.raw.lines(key(1))]
    assert f"penstock raw read {key(1)}" in text
    assert text.count("for operators") >= 2
    assert reads(house) == before


@pytest.mark.parametrize("place", ["raw?run={2}", "raw?run={0}", "diff?left={1}&right={2}", "diff?left={0}&right={1}"])
def test_only_operators_read_other_runs(
    pages: TestClient, house: PartitionHouse, tokens: dict[str, dict[str, str]], runs: list[str], place: str
) -> None:
    before = reads(house)
    page = shown(pages, f"{ONE}/{place.format(*runs)}", 403, headers=tokens["viewer"])
    assert "is not the trusted one: reading it needs the role operator" in page
    assert reads(house) == before


@pytest.mark.parametrize("place", ["raw?run={2}", "diff?left={1}&right={2}"])
def test_a_server_that_only_reads_shows_no_other_runs(
    house: PartitionHouse, tokens: dict[str, dict[str, str]], runs: list[str], place: str
) -> None:
    before = reads(house)
    with served(house.workspace, read_only=True) as pages:
        assert "this server only reads" in shown(pages, f"{ONE}/{place.format(*runs)}", 403, headers=tokens["operator"])
        shown(pages, f"{ONE}/raw", headers=tokens["operator"])
    assert reads(house) == before


def test_a_read_of_another_run_is_recorded_with_the_name_of_the_token(
    pages: TestClient, house: PartitionHouse, runs: list[str]
) -> None:
    before = reads(house)
    text = text_of(shown(pages, f"{ONE}/raw?run={runs[2]}"))
    assert GOOD.decode() in text
    assert BAD.decode() in text
    [new] = reads(house)[: len(reads(house)) - len(before)]
    assert (new["actor"], new["filters"]["run_id"], new["outcome"]) == ("a-operator", runs[2], "done")


def test_the_line_of_a_complaint_is_the_first_line_shown(pages: TestClient, runs: list[str]) -> None:
    text = text_of(shown(pages, f"{ONE}/raw?run={runs[2]}&line=2"))
    assert "Lines 2 to 2 of 2" in text
    assert GOOD.decode() not in text
    assert "The payload has no line 9" in shown(pages, f"{ONE}/raw?run={runs[2]}&line=9")
    shown(pages, f"{ONE}/raw?line=0", 400)


def test_a_partition_without_a_trusted_run_lists_its_runs(pages: TestClient, tokens: dict[str, dict[str, str]]) -> None:
    page = shown(pages, f"/partitions/{key(3)}/raw", headers=tokens["viewer"])
    assert "No run of this partition is trusted" in page
    assert not [link for link in links_of(page) if link.startswith("?run=")]
    assert [link for link in links_of(shown(pages, f"/partitions/{key(3)}/raw")) if link.startswith("?run=")]


def test_a_partition_without_runs_says_so(pages: TestClient) -> None:
    page = shown(pages, f"/partitions/{key(9)}/raw")
    assert "The raw sink has no run of this partition" in page
    assert f"penstock run {key(9)}" in page


def test_the_rows_of_a_model_are_shown_as_json(pages: TestClient) -> None:
    assert '{"clicks":7}' in text_of(shown(pages, f"/partitions/{MODEL}/raw"))


@pytest.mark.parametrize("name", ["nothing", "<script>alert(1)</script>", "01J0000000000000000000000A"])
def test_an_unknown_run_is_not_found_and_leaves_no_line_in_the_audit_log(
    pages: TestClient, house: PartitionHouse, runs: list[str], name: str
) -> None:
    before = house.workspace.context.state.audit()
    shown(pages, f"{ONE}/raw?run={name}", 404)
    shown(pages, f"{ONE}/diff?left={name}&right={runs[0]}", 404)
    shown(pages, f"{ONE}/diff?left={runs[0]}&right={name}", 404)
    shown(pages, f"{ONE}/diff?left={runs[0]}", 400)
    assert house.workspace.context.state.audit() == before


def test_a_preview_is_limited_by_lines_and_bytes() -> None:
    asked = 0

    def lines(size: int) -> Iterator[bytes]:
        nonlocal asked
        asked = 0
        while True:
            asked += 1
            yield b"x" * size

    found = preview_lines(lines(10))
    assert (len(found.lines), found.is_cut, found.is_short, asked) == (PREVIEW_LINES, True, False, PREVIEW_LINES + 1)
    found = preview_lines(lines(1_000_000))
    assert (found.is_cut, found.is_short) == (True, True)
    assert sum(map(len, found.lines)) <= raw_preview.PREVIEW_BYTES
    assert asked < 40
    found = preview_lines(lines(10), first=500)
    assert (found.first, len(found.lines), asked) == (500, PREVIEW_LINES, 500 + PREVIEW_LINES)
    with pytest.raises(ActRefused, match="line 999,999 is not within the first 64 MiB"):
        preview_lines(lines(1_000_000), first=999_999)
    assert asked < 100


def test_long_payloads_are_shown_in_parts(tmp_path: Path) -> None:
    house = PartitionHouse(tmp_path / "ws")
    house.accept(key(1), [orjson.dumps({"campaign_id": number}) for number in range(250)])
    with served(house.workspace) as pages:
        path, found = f"{ONE}/raw", list[str]()
        while path:
            page = shown(pages, path)
            found += re.findall(r'<tr id="line-(\d+)">', page)
            following = re.findall(r'rel="next" href="([^"]+)"', page)
            path = f"{ONE}/raw{html.unescape(following[0])}" if following else ""
    assert found == [str(number) for number in range(1, 251)]
    house.workspace.close()


@pytest.mark.parametrize("damage", ["missing", "changed", "not sealed"])
def test_damaged_payloads_are_reported_on_the_page(tmp_path: Path, damage: str) -> None:
    house = PartitionHouse(tmp_path / "ws")
    first, second = house.accept(key(1), [GOOD]), house.accept(key(1), [GOOD])
    folder = next(Path(house.workspace.context.lake.url).glob(f"raw/**/*{second}*"))
    [payload] = [file for file in folder.iterdir() if file.name != "metadata.json"]
    match damage:
        case "missing":
            payload.unlink()
        case "changed":
            payload.write_bytes(GOOD.replace(b"2", b"3") + b"\n")
        case _:
            (folder / "metadata.json").unlink()
    with served(house.workspace) as pages:
        if damage != "changed":  # a preview reads only the lines that it shows
            assert 'role="alert"' in shown(pages, f"{ONE}/raw?run={second}", 409)
        assert 'role="alert"' in shown(pages, f"{ONE}/diff?left={first}&right={second}", 409)
    house.workspace.close()


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_a_partition_links_only_to_rows_that_the_caller_may_read(
    pages: TestClient, tokens: dict[str, dict[str, str]], runs: list[str], role: str
) -> None:
    page = shown(pages, ONE, headers=tokens[role])
    linked = {run for link in links_of(page) for run in runs if f"/raw?run={run}" in link}
    assert linked == ({runs[1]} if role == "viewer" else set(runs))
    assert ("/diff" in page) == (role == "operator")


# --- differences ------------------------------------------------------------------------------------------------------


def test_the_differences_of_two_runs_are_shown_by_the_key_of_the_contract(pages: TestClient, runs: list[str]) -> None:
    page = shown(pages, f"{ONE}/diff?left={runs[1]}&right={runs[2]}")
    text = text_of(page)
    assert "Rows are identified by campaign_id" in text
    for total in ("1 the same", "0 + added", "3 − removed", "1 ≠ changed"):
        assert total in text
    assert "<del>2</del> → <ins>-5</ins>" in page
    assert HOSTILE[:8] in text
    swapped = text_of(shown(pages, f"{ONE}/diff?left={runs[2]}&right={runs[1]}"))
    for total in ("1 the same", "3 + added", "0 − removed", "1 ≠ changed"):
        assert total in swapped


def test_a_comparison_is_recorded_for_each_run_that_is_not_trusted(
    pages: TestClient, house: PartitionHouse, runs: list[str]
) -> None:
    before = len(reads(house))
    shown(pages, f"{ONE}/diff?left={runs[0]}&right={runs[2]}")
    new = reads(house)[: len(reads(house)) - before]
    assert {line["filters"]["run_id"] for line in new} == {runs[0], runs[2]}
    assert {line["actor"] for line in new} == {"a-operator"}


def test_equal_runs_have_no_differences(pages: TestClient, runs: list[str]) -> None:
    assert "No differences" in shown(pages, f"{ONE}/diff?left={runs[1]}&right={runs[1]}")


def test_rows_without_a_key_are_compared_as_a_whole(tmp_path: Path) -> None:
    from support.harness import Harness

    house = Harness(tmp_path)  # its contract has no checks
    first, second = house.deliver({key(1): 1}), house.deliver({key(1): 2})
    with served(house.workspace) as pages:
        text = text_of(shown(pages, f"{ONE}/diff?left={first}&right={second}"))
    assert "rows are compared as a whole" in text
    assert "3 + added" in text
    assert "3 − removed" in text
    house.workspace.close()


def test_many_differences_are_counted_and_the_first_are_listed(tmp_path: Path) -> None:
    house = PartitionHouse(tmp_path / "ws")
    first = house.accept(key(1), [orjson.dumps({"campaign_id": n, "clicks": 1}) for n in range(500)])
    second = house.accept(key(1), [orjson.dumps({"campaign_id": n, "clicks": 2}) for n in range(500)])
    with served(house.workspace) as pages:
        page = shown(pages, f"{ONE}/diff?left={first}&right={second}")
    assert "500 different rows" in page
    assert page.count('<tr class="row-changed">') == 200
    assert "The first 200 are listed" in page
    house.workspace.close()


def test_a_payload_that_is_too_large_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = PartitionHouse(tmp_path / "ws")
    large = house.accept(key(1), [orjson.dumps({"campaign_id": n}) for n in range(5000)])
    trusted = house.accept(key(1), [GOOD])
    monkeypatch.setattr(raw_preview, "COMPARED_BYTES", 20_000)
    with served(house.workspace) as pages:
        before = reads(house)
        page = shown(pages, f"{ONE}/diff?left={trusted}&right={large}", 409)
        assert "too much to compare here" in page
        assert f"penstock raw read {key(1)} --run {large}" in html.unescape(page)
        assert reads(house) == before
    house.workspace.close()


def test_rows_of_a_model_that_are_larger_than_their_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = filled(tmp_path / "ws")
    [attempt] = house.workspace.context.state.attempts(MODEL)
    [run] = house.workspace.raw.runs(MODEL)[0]
    assert isinstance(run.seal, Seal)
    monkeypatch.setattr(raw_preview, "COMPARED_BYTES", run.seal.payload_bytes)
    lines = [b'{"clicks": 7}'] * 1000
    monkeypatch.setattr(house.workspace.raw, "lines_of", lambda *_: iter(lines))
    with pytest.raises(ActRefused, match="too much to compare here"):
        compare_runs(house.workspace.context, house.workspace.raw, MODEL, attempt, attempt, "ada")
    monkeypatch.setattr(raw_preview, "COMPARED_BYTES", 2**20)
    monkeypatch.setattr(raw_preview, "COMPARED_ROWS", 999)
    with pytest.raises(ActRefused, match="more than 999 rows"):
        compare_runs(house.workspace.context, house.workspace.raw, MODEL, attempt, attempt, "ada")
    house.workspace.close()


def test_a_third_comparison_at_the_same_time_is_asked_to_come_back(pages: TestClient, runs: list[str]) -> None:
    with raw_preview._comparisons, raw_preview._comparisons:
        assert "other comparisons" in shown(pages, f"{ONE}/diff?left={runs[0]}&right={runs[2]}", 503)
    shown(pages, f"{ONE}/diff?left={runs[0]}&right={runs[2]}")
