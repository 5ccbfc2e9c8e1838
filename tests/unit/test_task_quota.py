"""The request budget of a task: a part of the claim, taken once, and never after the claim has expired."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import QuotaUsedUp
from penstock.lake import open_lake
from penstock.pipeline.spark_jobs import evenly
from penstock.pipeline.task_quota import TaskBudget, assign_requests, delete_expired
from penstock.source.budget import Budget, RequestClaim

FUTURE = 4e9


def claim(requests: int = 10, expires_at: float = FUTURE) -> RequestClaim:
    return RequestClaim("01CLAIM", "ads", requests, expires_at, "2026-11-18 00:00 UTC")


def spent(budget: Budget, wanted: int = 100) -> int:
    """How many requests the budget admits."""
    for number in range(wanted):
        try:
            budget.spend()
        except QuotaUsedUp:
            return number
    return wanted


def test_without_a_claim_requests_are_not_counted() -> None:
    assert spent(Budget(), 1000) == 1000
    assert Budget().take_spent() == 0


def test_only_allowed_requests_are_spent_and_reported_once() -> None:
    budget = Budget(claim=claim())
    assert spent(budget) == 0
    budget.allow(3)
    assert spent(budget) == 3
    assert (budget.take_spent(), budget.take_spent()) == (3, 0)
    budget.allow(5)
    with pytest.raises(QuotaUsedUp, match="the requests that were claimed of the quota of ads are used up"):
        budget.spend(6)  # all or nothing
    budget.spend(5)
    assert budget.take_spent() == 5


def test_nothing_is_sent_after_the_window_has_ended() -> None:
    now = [99.0]
    budget = Budget(claim=claim(expires_at=100.0), wall=lambda: now[0])
    budget.allow(10)
    budget.spend()
    now[0] = 100.0
    with pytest.raises(QuotaUsedUp, match="the window of the quota of ads ended at 2026-11-18 00:00 UTC"):
        budget.spend()
    assert budget.take_spent() == 1


def test_a_request_that_waited_past_the_end_of_the_window_is_not_sent() -> None:
    now = [98.5]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    budget = Budget(1.0, lambda: now[0], sleep, claim(expires_at=100.0), lambda: now[0])
    budget.allow(10)
    budget.spend()
    budget.spend()  # at 99.5
    with pytest.raises(QuotaUsedUp):
        budget.spend()  # would be at 100.5
    assert budget.take_spent() == 3  # counted, though not sent


@pytest.mark.parametrize(("requests", "spans", "tasks"), [(10, 10, 4), (11, 7, 3), (5, 5, 5), (1000, 3, 2), (7, 1, 1)])
def test_the_tasks_together_get_exactly_the_claim_and_each_span_a_request(
    requests: int, spans: int, tasks: int
) -> None:
    numbers = evenly(spans, tasks)
    rows = assign_requests([{"query": str(n)} for n in range(spans)], numbers, claim(requests))
    parts = {row["task"]: row["requests"] for row in rows}
    assert sum(parts.values()) == requests
    assert all(part >= numbers.count(task) for task, part in parts.items())
    assert [row["query"] for row in rows] == [str(n) for n in range(spans)]
    assert assign_requests([{"query": "q"}], [0], None) == [{"query": "q"}]


def test_a_task_that_is_started_again_sends_nothing_and_reports_its_part_as_used(tmp_path: Path) -> None:
    spans = [{"task": 3, "requests": 4}]
    first, again = (TaskBudget(None, claim(), str(tmp_path)) for _ in range(2))
    first.begin(spans)
    assert spent(first) == 4
    again.begin(spans)
    assert spent(again) == 0
    assert (first.take_spent(), again.take_spent()) == (4, 4)


def test_a_task_takes_its_part_once_for_all_its_batches(tmp_path: Path) -> None:
    budget = TaskBudget(None, claim(), str(tmp_path))
    for _ in range(3):
        budget.begin([{"task": 0, "requests": 4}])
    assert spent(budget) == 4
    assert budget.take_spent() == 4
    other = TaskBudget(None, claim(), str(tmp_path))
    other.begin([{"task": 1, "requests": 2}])
    assert spent(other) == 2


def test_tickets_stay_until_their_claim_has_expired(tmp_path: Path) -> None:
    lake: Any = open_lake(str(tmp_path))
    for expires_at in (1000.5, 2000.5):
        TaskBudget(None, claim(expires_at=expires_at), str(tmp_path)).begin([{"task": 0, "requests": 1}])
    assert len(list(lake.list("quota"))) == 2
    delete_expired(lake, 1000.7)
    assert len(list(lake.list("quota"))) == 2
    delete_expired(lake, 1002.0)
    assert [entry.path for entry in lake.list("quota")] == ["quota/2001-01CLAIM/0"]
