"""One span through a worker, in this process: the result of each kind of source behaviour."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from penstock.config.assets import Query
from penstock.config.checks import Field
from penstock.config.settings import Customer, SourceSettings
from penstock.errors import QuotaExceeded, SourceUnavailable
from penstock.lake import open_lake
from penstock.partition import AttemptKey, PartitionKey, new_run_id
from penstock.pipeline.source_requests import Extraction, SpanRequest
from penstock.raw.reader import RawReader
from penstock.raw.sink import RawSink
from penstock.raw.uploads import UploadPool
from penstock.source.protocol import COMPLETE, Row

D1, D2, D3 = DAYS = [date(2024, 6, day) for day in (1, 2, 3)]
QUERY = Query(name="q", source="shop", start_date=D1, fields=(Field(name="n", type="long"),))


UPLOADS = 1  # at a time


@pytest.fixture(autouse=True, params=[1, 8], ids=["in turn", "overlapping"])
def _uploads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs with uploads in the fetching thread, and with overlapping ones: the outcomes are the same."""
    monkeypatch.setattr(sys.modules[__name__], "UPLOADS", request.param)


class Script:
    """A source that yields the steps of the test; an exception in the list is raised."""

    in_date_order = True
    api_version = "7"

    def __init__(self, *steps: Any) -> None:
        self._steps = steps

    def extract(self, query: Query, customer: Customer, dates: Sequence[date]) -> Iterable[tuple[date, Row]]:
        for step in self._steps:
            if isinstance(step, Exception):
                raise step
            yield step


def fetch(folder: Path, source: Script) -> tuple[dict[date, str], dict[date, bytes]]:
    """The outcome of each day (a row count or an error), and the payloads that were sealed."""
    lake = open_lake(str(folder))
    extraction = Extraction(
        str(folder), new_run_id(), SourceSettings(name="shop", kind="x", options={}), {"q": QUERY}, {"q": "hash"}
    )
    with UploadPool(UPLOADS) as uploads:
        customer = Customer(id="1", time_zone="Europe/Berlin")
        span = SpanRequest(extraction, RawSink(lake), uploads, source, QUERY, customer, DAYS)
        span.fetch()
        outcomes = {
            row["logical_date"]: f"{row['error_class']}: {row['error_message']}"
            if row.get("error_class")
            else str(row["record_count"])
            for row in span.outcomes()
        }
    reader, payloads = RawReader(lake), {}
    for day in DAYS:
        seal = reader.seal(AttemptKey(PartitionKey("shop", "1", "q", day), extraction.run_id))
        if seal is not None:
            assert (seal.api_version, seal.query_hash, seal.time_zone) == ("7", "hash", "Europe/Berlin")
            payloads[day] = reader.payload(seal)
    return outcomes, payloads


def test_a_day_without_rows_is_sealed_empty(tmp_path: Path) -> None:
    outcomes, payloads = fetch(tmp_path, Script((D1, {"n": 1}), (D1, b'{"n":2}'), (D3, {"n": 3})))
    assert outcomes == {D1: "2", D2: "0", D3: "1"}
    assert payloads == {D1: b'{"n":1}\n{"n":2}\n', D2: b"", D3: b'{"n":3}\n'}


def test_an_error_in_place_of_a_row_fails_that_day_only(tmp_path: Path) -> None:
    broken = Script(
        (D1, {"n": 1}), (D2, {"n": 2}), (D2, SourceUnavailable("no answer")), (D2, {"n": 2}), (D3, {"n": 3})
    )
    outcomes, payloads = fetch(tmp_path, broken)
    assert outcomes == {D1: "1", D2: "transient: no answer", D3: "1"}
    assert set(payloads) == {D1, D3}


def test_a_span_that_breaks_off_keeps_what_is_known_to_be_complete(tmp_path: Path) -> None:
    ordered = Script((D1, {"n": 1}), (D2, {"n": 2}), QuotaExceeded("slow down", 5))
    assert fetch(tmp_path / "ordered", ordered)[0] == {
        D1: "1",
        D2: "quota: slow down (the source asks to wait 5 s)",
        D3: "quota: slow down (the source asks to wait 5 s)",
    }
    said = Script((D1, {"n": 1}), (D1, COMPLETE), (D2, COMPLETE), QuotaExceeded("slow down", 5))
    assert list(fetch(tmp_path / "said", said)[0].values())[:2] == ["1", "0"]
    unordered = Script((D1, {"n": 1}), (D2, {"n": 2}), QuotaExceeded("slow down", 5))
    unordered.in_date_order = False
    outcomes, payloads = fetch(tmp_path / "unordered", unordered)
    assert {text.partition(":")[0] for text in outcomes.values()} == {"quota"}
    assert payloads == {}


def test_days_in_any_order_are_put_where_they_belong(tmp_path: Path) -> None:
    mixed = Script((D2, {"n": 1}), (D1, {"n": 2}), (D2, {"n": 3}))
    mixed.in_date_order = False
    assert fetch(tmp_path, mixed)[1] == {D1: b'{"n":2}\n', D2: b'{"n":1}\n{"n":3}\n', D3: b""}


@pytest.mark.parametrize(
    "steps",
    [
        [(D1, {"n": 1}), (D1, COMPLETE), (D1, {"n": 2})],
        [(D1, {"n": 1}), (D2, {"n": 1}), (D1, {"n": 2})],
    ],
    ids=["said complete", "out of order"],
)
def test_a_row_that_comes_after_its_day_was_sealed_is_never_dropped_silently(steps: list[Any], tmp_path: Path) -> None:
    outcomes, _ = fetch(tmp_path, Script(*steps))
    assert outcomes[D1] == "data: the source sent a row for 2024-06-01 after that day was complete"
    assert outcomes[D3] == "0"


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ((date(2024, 6, 9), {"n": 1}), "data: the source sent a row for 2024-06-09, which was not requested"),
        ((D1, {"n": object()}), "data: the source sent a row that JSON cannot hold"),
        ((D1, {"n": 2**70}), "data: the source sent a row that JSON cannot hold"),
        ((D1, b'{"n":\n1}'), "data: "),
        ((D1, b""), "data: "),
        (ZeroDivisionError("oops"), "internal: ZeroDivisionError: oops"),
    ],
    ids=["foreign day", "no json", "large number", "line break", "empty line", "bug"],
)
def test_what_a_source_must_not_do_fails_with_a_message(step: Any, message: str, tmp_path: Path) -> None:
    outcomes, payloads = fetch(tmp_path, Script(step))
    assert outcomes[D1].startswith(message)
    assert D1 not in payloads
