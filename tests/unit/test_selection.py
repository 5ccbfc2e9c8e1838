"""A selection accepts text as programs write it, and refuses values that are no key, date, customer or status."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from penstock import PartitionKey, Selection, UsageError
from penstock.lifecycle import PartitionStatus

KEY = "demo/1000000001/campaign_daily/2024-06-01"


def test_text_is_read_as_the_command_line_reads_it() -> None:
    written = Selection(
        keys=[KEY],
        customers="123-456-7890",
        queries="campaign_daily",
        since="2024-06-01",
        until="2024-06-30",
        status="failed",
    )
    assert written == Selection(
        keys=(PartitionKey.parse(KEY),),
        customers=("1234567890",),
        queries=("campaign_daily",),
        since=date(2024, 6, 1),
        until=date(2024, 6, 30),
        status=PartitionStatus.FAILED,
    )
    assert Selection(customers=None, queries=None) == Selection()
    assert Selection(KEY) == Selection(PartitionKey.parse(KEY)) == Selection([KEY])
    assert hash(written) == hash(replace(written, source=None))
    assert pickle.loads(pickle.dumps(written)) == written
    assert Selection.from_dict(written.as_dict()) == written


def test_a_changed_copy_keeps_the_other_filters() -> None:
    chosen = Selection(source="demo", since="2024-06-01")
    assert replace(chosen, until=date(2024, 6, 2)) == Selection(source="demo", since="2024-06-01", until="2024-06-02")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"keys": ["demo/1"]}, "is not a partition key"),
        ({"keys": "demo/1"}, "'demo/1' is not a partition key"),
        ({"since": "yesterday"}, "yesterday"),
        ({"until": 7}, "until 7 is not a date"),
        ({"status": "broken"}, "status 'broken' is unknown"),
        ({"customers": [1000000001]}, "write the id in quotes"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Selection(**given)
