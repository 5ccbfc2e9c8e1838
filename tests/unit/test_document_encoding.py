"""Documents are encoded directly where possible, with the result of the conversion value by value."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any

import orjson
import pytest

from penstock.lifecycle import DisplayStatus, Outcome, Stage
from penstock.partition import PartitionKey
from penstock.views.document import Document, _json_value, encode


@dataclass(frozen=True)
class Fact:
    at: datetime
    stage: Stage
    parts: tuple[int, ...] = (1, 2)


MOMENT = datetime(2024, 6, 1, 12, 30, 0, 5, tzinfo=UTC)
VALUES: list[Any] = [
    MOMENT,
    MOMENT.astimezone(timezone(timedelta(hours=2))),
    date(2024, 6, 1),
    DisplayStatus.STALE,
    {Outcome.FAILED: 1, "other": [DisplayStatus.STALE, None, 1.5, True]},
    {date(2024, 6, 1): MOMENT, 7: "seven"},
    (1, (2, [MOMENT])),
    {3},
    frozenset({"x"}),
    Fact(MOMENT, Stage.LOAD),
    [{"facts": Fact(MOMENT, Stage.EXTRACT, ()), "empty": {}}],
    MappingProxyType({"a": MappingProxyType({"b": date(2024, 6, 1)})}),
    PartitionKey("demo", "1", "q", date(2024, 6, 1)),
    "Zürich \u2028 \x00",
    2**53,
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("indent", [False, True])
def test_a_document_is_the_same_as_value_by_value(value: Any, indent: bool) -> None:
    option = orjson.OPT_APPEND_NEWLINE | (orjson.OPT_INDENT_2 if indent else 0)
    document = Document({"value": value})
    assert encode(document, indent=indent) == orjson.dumps(_json_value(document), option=option)


def test_times_are_in_utc_with_microseconds() -> None:
    east = MOMENT.astimezone(timezone(timedelta(hours=2)))
    assert encode(Document({"at": east})) == b'{"at":"2024-06-01T12:30:00.000005Z"}\n'


def test_a_value_without_a_json_form_is_an_error() -> None:
    with pytest.raises(TypeError):
        encode(Document({"value": object()}))
