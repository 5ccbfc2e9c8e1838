"""`partition_status`: order, repetition and batching have no effect, and it agrees with a direct reading of events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.partition import new_ulids
from penstock.projections.fact import Fact
from penstock.projections.status import joined, partials

_NOW = datetime(2024, 6, 1, tzinfo=UTC)
_IDS = new_ulids(100)
_KEYS = ("demo/1/daily/2024-06-01", "demo/1/daily/2024-06-02")


@st.composite
def stories(draw: st.DrawFn) -> list[Fact]:
    """Random events about two partitions: attempts by number, authority by version, publications by position."""
    attempts = dict.fromkeys(_KEYS, 0)
    authority = dict.fromkeys(_KEYS, 0)
    told: list[tuple[str, str, dict[str, Any]]] = []
    for step in range(draw(st.integers(0, 14))):
        key = draw(st.sampled_from(_KEYS))
        run = f"R{step}"
        match draw(st.sampled_from(["accept", "reject", "cancel", "demote", "rollback", "publish", "hide"])):
            case "accept" | "reject" | "cancel" as kind:
                attempts[key] += 1
                outcome = {"accept": "SUCCEEDED", "reject": "FAILED", "cancel": "CANCELLED"}[kind]
                told.append(
                    ("TaskFinished", run, {"partition_key": key, "attempt_no": attempts[key], "outcome": outcome})
                )
                if kind == "accept":
                    authority[key] += 1
                    told.append(("AuthorityChanged", run, _authority(key, authority[key], "accept")))
            case "demote" | "rollback" as act:
                authority[key] += 1
                told.append(("AuthorityChanged", run, _authority(key, authority[key], act)))
            case "publish":
                told.append(("PartitionPublished", run, {"partition_key": key}))
            case _:
                told.append(("PartitionHidden", run, {"partition_key": key}))
    return [
        Fact(at + 1, _IDS[at], kind, 1, _NOW + timedelta(seconds=at), run, payload)
        for at, (kind, run, payload) in enumerate(told)
    ]


def _authority(key: str, version: int, act: str) -> dict[str, Any]:
    return {"partition_key": key, "authority_version": version, "act": act, "code_version": "c", "content_digest": "d"}


def rows(*parts: pa.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = joined(pa.concat_tables(parts)).to_pylist()
    return found


@settings(deadline=None)
@given(stories(), st.data())
def test_order_repetition_and_batching_change_nothing(story: list[Fact], data: st.DataObject) -> None:
    told = data.draw(st.permutations(story + data.draw(st.lists(st.sampled_from(story or [_nothing()]), max_size=5))))
    at = data.draw(st.integers(0, len(told)))
    at_once = rows(partials(story))
    assert rows(partials(told)) == at_once
    assert rows(joined(partials(told[:at])), joined(partials(told[at:]))) == at_once


@settings(deadline=None)
@given(stories())
def test_the_row_has_the_newest_facts(story: list[Fact]) -> None:
    found = {
        f"{r['source']}/{r['customer_id']}/{r['query_name']}/{r['logical_date']}": r for r in rows(partials(story))
    }
    for key in _KEYS:
        mine = [fact for fact in story if fact.payload["partition_key"] == key]
        if not mine:
            assert key not in found
            continue
        row = found[key]
        closed = [f for f in mine if f.type == "TaskFinished"]
        trusted = [f for f in mine if f.type == "AuthorityChanged" and f.payload["act"] in ("accept", "rollback")]
        moved = [f for f in mine if f.type == "AuthorityChanged"]
        shown = [f for f in mine if f.type in ("PartitionPublished", "PartitionHidden")]
        assert row["last_attempt_run_id"] == (closed[-1].run_id if closed else None)
        assert row["last_attempt_at"] == (closed[-1].occurred_at if closed else None)
        assert row["last_attempt_outcome"] == (closed[-1].payload["outcome"] if closed else None)
        assert row["last_materialization_run_id"] == (trusted[-1].run_id if trusted else None)
        assert row["last_materialization_at"] == (trusted[-1].occurred_at if trusted else None)
        assert row["available"] == (moved[-1].payload["act"] != "demote" if moved else None)
        assert (row["published_run_id"] or None) == (
            shown[-1].run_id if shown and shown[-1].type == "PartitionPublished" else None
        )
        assert row["row_version"] == mine[-1].event_id


def _nothing() -> Fact:
    return Fact(99, _IDS[99], "Unheard", 1, _NOW, None, {})
