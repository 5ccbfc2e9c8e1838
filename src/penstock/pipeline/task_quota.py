"""Divides the claimed requests of a job among its tasks. Each task takes its part once, however often it is started.

Spark starts a task again after the loss of an executor, and may run two attempts at a time. The attempt that creates
the ticket of the task in the lake may send requests; the others send none, and report the whole part as used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.lake import Lake, open_lake
from penstock.source.budget import Budget, RequestClaim

_FOLDER = "quota"


def assign_requests(
    spans: Sequence[dict[str, Any]], tasks: Sequence[int], claim: RequestClaim | None
) -> Sequence[dict[str, Any]]:
    """The spans with the number of their task, and the requests of that task. Together the tasks get all requests of
    the claim, in proportion to their spans."""
    if claim is None:
        return spans
    numbers = Counter(tasks)
    parts, begun, given = {}, 0, 0
    for task, count in sorted(numbers.items()):
        begun += count
        parts[task] = claim.requests * begun // len(spans) - given
        given += parts[task]
    return [{**span, "task": task, "requests": parts[task]} for span, task in zip(spans, tasks, strict=True)]


class TaskBudget(Budget):
    """The budget of one attempt of a task."""

    def __init__(self, per_second: float | None, claim: RequestClaim | None, lake: str) -> None:
        super().__init__(per_second, claim=claim)
        self._tickets = None if claim is None else _tickets(claim)
        self._lake = lake

    def begin(self, spans: Sequence[Mapping[str, Any]]) -> None:
        """Take the part of the task that the spans belong to. Further calls do nothing."""
        if self._tickets is None or not spans:
            return
        task, requests = spans[0]["task"], spans[0]["requests"]
        created = open_lake(self._lake).create(f"{self._tickets}/{task}", b"")
        self._tickets = None
        if created:
            self.allow(requests)
        else:
            self.forfeit(requests)


def delete_expired(lake: Lake, now: float) -> None:
    """Delete the tickets of expired claims. A late attempt of such a task sends nothing, because its claim expired."""
    lake.delete([path for path in (entry.path for entry in lake.list(_FOLDER)) if _expiry(path) < now])


def _tickets(claim: RequestClaim) -> str:
    return f"{_FOLDER}/{int(claim.expires_at) + 1}-{claim.claim_id}"


def _expiry(path: str) -> float:
    text = path.removeprefix(f"{_FOLDER}/").partition("-")[0]
    return float(text) if text.isdigit() else float("inf")
