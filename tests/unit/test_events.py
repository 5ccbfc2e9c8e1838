"""Recorded events are read for years: the payload of a version never changes."""

from __future__ import annotations

import json
import typing
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.ledger import events
from penstock.partition import RunId
from penstock.projections.fact import UNDERSTOOD
from support.builders import key

GOLDEN = Path(__file__).parent / "golden_events.json"
RUN = RunId("01J00000000000000000000000")
SLICES = {"demo.campaign_daily": {"1000000001": "2024-06-01..2024-06-03"}}

ONE_OF_EACH: list[events.Event] = [
    events.PlanCreated(
        RUN,
        0,
        chains=[{"stages": ["extract", "validate", "load"], "slices": SLICES}],
        tasks=["extract:models/all/spend/2024-06-01"],
        edges=[["a", "b"]],
        groups=[{"task": "b", "name": "demo.campaign_daily", "rule": "all", "slices": SLICES, "published": {}}],
        reasons={"missing": 3},
    ),
    events.TaskStarted(RUN, "extract", SLICES, 1, "d1"),
    events.SlicesExtracted(RUN, SLICES, 1, "d2"),
    events.SlicesUnchanged(RUN, SLICES, 1, "d4"),
    events.TasksDropped(RUN, "extract", SLICES, 1, "another run took this partition first", "d3"),
    events.LoadsFailed(RUN, SLICES, 2, "data", "the payload is not what was sealed", "d5"),
    events.TaskFinished(RUN, key(), 2, "validate", "FAILED", "data", "c0ffee", 10, 1, 0),
    events.AuthorityChanged(RUN, key(), 3, "accept", "c0ffee", "d16e57"),
    events.AttemptRefused(RUN, key(), "SUCCEEDED", "a newer attempt was issued"),
    events.PartitionPublished(RUN, key(), "b1", "demo.campaign_daily.v1", 4, 10),
    events.PartitionHidden(key(), "b1"),
    events.RunCancelRequested(RUN, "ada"),
    events.RunFinished(RUN, "done", {"planned": 3}),
]


def told() -> dict[str, Any]:
    found = {
        f"{event.type}/{event.version}": {"idempotency_key": event.idempotency_key, "payload": event.payload()}
        for event in ONE_OF_EACH
    }
    plain: dict[str, Any] = orjson.loads(orjson.dumps(found))
    return plain


def test_the_payload_of_an_event_version_never_changes() -> None:
    golden = json.loads(GOLDEN.read_text())
    assert told() == golden, "an event changed: give it a new version, teach the folds both, and add it to the file"


def test_every_event_type_has_an_example_and_is_known_to_the_folds() -> None:
    assert {type(event) for event in ONE_OF_EACH} == set(typing.get_args(events.Event))
    assert {event.type: event.version for event in ONE_OF_EACH} == UNDERSTOOD


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: event.type)
def test_an_event_has_an_idempotency_key(event: events.Event) -> None:
    assert event.idempotency_key.startswith(f"{event.type}/")
