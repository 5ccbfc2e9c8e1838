"""The HTML of values in notebooks: complete, escaped, bounded, and readable in light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest

from penstock import html
from penstock.app.grids import Grid
from penstock.app.reader import Reader, open_reader
from penstock.control.select import Selection
from penstock.lifecycle import AttemptReason
from penstock.projections.status_cache import StatusCounts
from penstock.projections.status_codes import CODES, FAILED, MARKS, NOT_EXPECTED, CodeGrid
from penstock.state.records import Planned
from penstock.warehouse.readiness import Coverage, CoverageDays
from support.harness import Harness
from support.notebooks import Fragment, fragment, make_workspace
from support.workspaces import NOW, customer_id, key

HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=alert(1)> &amp; </td></table>"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Harness]:
    made = make_workspace(tmp_path / "workspace")
    yield made
    made.workspace.close()


@pytest.fixture
def reader(house: Harness) -> Iterator[Reader]:
    made = open_reader(house.folder, lambda: NOW)
    yield made
    made.close()


def test_a_grid_has_a_mark_for_each_partition(house: Harness, reader: Reader) -> None:
    house.hold_back(key(2, "2024-06-10"))
    found = fragment(reader.grid("campaign_daily"))
    lines = found.text.splitlines()
    assert lines[0] == "demo.campaign_daily, 2024-06-09 to 2024-06-10, a mark for each day"
    assert [line.split("\t")[:2] for line in lines[1:4]] == [
        [customer_id(1), "██"],
        [customer_id(2), "█✗"],
        [customer_id(3), "··"],
    ]
    assert "2024-06-09 to 2024-06-10: materialized" in found.titles
    assert "2024-06-10: failed" in found.titles
    assert all(name in lines[4] for name in MARKS)
    assert "not shown" not in found.text
    narrow = fragment(reader.grid("campaign_daily", since="2024-06-10"))
    assert "2024-06-10 to 2024-06-10" in narrow.text


def test_why_has_what_its_text_has(reader: Reader) -> None:
    why = reader.why(str(key(2, "2024-06-09")))
    found = fragment(why)
    for word in ("materialized", why.headline, "authority", "warehouse", "SUCCEEDED", f"next: {why.next}"):
        assert word in found.text, word


def test_a_plan_has_reasons_and_partitions(house: Harness) -> None:
    plan = house.workspace.plans.preview(limit=2)
    found = fragment(plan)
    assert "plan of 3 partitions" in found.text
    assert "missing\t3" in found.text
    assert str(key(2, "2024-06-10")) in found.text
    assert "and 1 more rows" in found.text
    house.workspace.operations.pause(Selection(), reason="x")
    paused = fragment(house.workspace.plans.preview())
    assert "plan of 0 partitions" in paused.text
    assert "6 partitions that an operator paused" in paused.text


def test_coverage_is_a_table_by_day(reader: Reader) -> None:
    days = reader.coverage("demo.campaign_daily")
    assert isinstance(days, list)
    found = fragment(days)
    assert f"demo.campaign_daily\t2024-06-09\t3\t2\t{key(3)}" in found.text
    assert "demo.campaign_daily\t2024-06-10\t3\t1" in found.text
    waited = reader.wait_for("demo.campaign_daily", patience=timedelta(0))
    assert fragment(waited).text == found.text


def test_counts_are_a_table_by_group(house: Harness) -> None:
    found = fragment(house.workspace.status.counts(Selection(), ["query"]))
    assert "materialized" in found.text
    assert "campaign_daily" in found.text
    assert fragment(StatusCounts([], {})).rows == 1


def test_text_from_outside_is_escaped(house: Harness, reader: Reader) -> None:
    house.workspace.operations.pause(Selection(keys=(key(3),)), reason=HOSTILE)
    why = reader.why(str(key(3)))
    assert any(HOSTILE in block for block in why.blocks)
    assert HOSTILE in fragment(why).text
    assert HOSTILE in fragment(replace(why, headline=HOSTILE, next=HOSTILE)).text
    attempts = [replace(a, error_message=HOSTILE) for a in reader.why(str(key(1))).attempts]
    assert HOSTILE in fragment(replace(why, attempts=attempts)).text
    assert HOSTILE in fragment(StatusCounts([{HOSTILE: HOSTILE}], {HOSTILE: 1})).text
    assert HOSTILE in fragment(CoverageDays([Coverage(HOSTILE, date(2024, 6, 9), 1, ())])).text
    plan = house.workspace.plans.preview()
    assert HOSTILE in fragment(replace(plan, blocked={HOSTILE: 1})).text
    grid = replace(reader.grid("campaign_daily"), asset=HOSTILE)
    grid = replace(grid, codes=replace(grid.codes, customers=(HOSTILE, "2", "3")))
    assert fragment(grid).text.count(HOSTILE) == 2
    assert Fragment(html.mark("X", "#000000", HOSTILE)).titles == [HOSTILE]


def test_the_size_is_bounded(house: Harness, reader: Reader) -> None:
    """`fragment` refuses more than half a megabyte."""
    long = "x" * 100_000
    names = tuple(str(n) for n in range(2_000))
    worst = bytes(([1, 2] * 500)[:1000]) * len(names)
    large = fragment(Grid("demo.x", CodeGrid(names, date(2024, 1, 1), 1000, worst), b"", "", ""))
    assert large.rows == 50
    assert "not shown: 1,950 more customers, 938 older days" in large.text
    assert "2026-09-26" in large.text, "the newest days are shown"
    why = replace(reader.why(str(key(3))), headline=long, blocks=(long,) * 10_000)
    assert "and 9,950 more lines" in fragment(why).text
    item = Planned(key(1), 0, AttemptReason.MISSING, "f", "v1")
    plan = replace(house.workspace.plans.preview(), items=[item] * 100_000, counts={AttemptReason.MISSING: 100_000})
    assert "and 99,950 more rows" in fragment(plan).text
    day = Coverage("demo.x", date(2024, 6, 9), 100_000, (key(1),) * 100_000)
    assert "and 950 more rows" in fragment(CoverageDays([day] * 1_000)).text
    assert "and 99,997 more" in fragment(CoverageDays([day])).text
    counts = StatusCounts([dict.fromkeys(map(str, range(1_000)), long)] * 1_000, {})
    assert len(counts._repr_html_()) < 1_000_000
    assert "and 970 more columns" in counts._repr_html_()


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("page", ["#ffffff", "#111111"])
@pytest.mark.parametrize("name", MARKS)
def test_every_mark_contrasts_with_light_and_dark_pages(name: str, page: str) -> None:
    light, dark = sorted((luminance(html.COLOURS[name]), luminance(page)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 3  # WCAG 2.2, 1.4.11: graphical objects


def test_text_has_the_colour_of_the_page(reader: Reader) -> None:
    found = fragment(reader.why(str(key(1))))
    assert [style for style in found.styles if "background" in style or "color" in style.replace("border", "")] == []


def test_every_code_has_a_mark_and_a_colour() -> None:
    codes = CodeGrid(("a",), date(2024, 1, 1), 8, bytes([NOT_EXPECTED, *sorted(CODES.values()), FAILED, FAILED]))
    runs = codes.runs(0, 0)
    assert runs[0] == (None, 1)
    assert runs[-1] == ("failed", 2)
    assert {name for name, _ in runs[1:]} == set(MARKS) == set(html.COLOURS)
    assert codes.runs(0, 7) == [("failed", 1)]
