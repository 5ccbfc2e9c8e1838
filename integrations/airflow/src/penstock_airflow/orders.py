"""Orders of runs: progress, end, and the days that they published."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.client import Client
from penstock.errors import TransientError, UsageError

_PUBLISHED = "PartitionPublished"


def is_over(order: dict[str, Any]) -> bool:
    """Whether an order ended."""
    return order["finished_at"] is not None


def progress(client: Client, order: dict[str, Any]) -> str:
    """One line: the state of an order and the finished tasks of its run by stage."""
    text = f"order {order['order_id']} is {order['state']}"
    if order["warning"]:
        text += f": {order['warning']}"
    if order["run_id"] is None:
        return text
    text += f", run {order['run_id']}"
    try:
        stages = client.run(order["run_id"])["stages"]
    except (TransientError, UsageError):  # the first events of a run may not be visible yet
        return text
    return ", ".join([text, *_by_stage(stages)])


def _by_stage(stages: list[dict[str, Any]]) -> Iterator[str]:
    totals: dict[str, dict[str, int]] = {}
    for one in stages:
        totals.setdefault(one["stage"], {})[str(one["state"]).lower()] = one["tasks"]
    for stage, tasks in totals.items():
        yield f"{stage}: " + " ".join(f"{count} {state}" for state, count in sorted(tasks.items()))


def failure(order: dict[str, Any], *, fail_on_rejected: bool) -> str | None:
    """Why a finished order counts as failed; None if it does not. Rejected partitions do not fail an order: the
    retry policy of the query decides about them."""
    name = f"order {order['order_id']}"
    if order["state"] == "cancelled":
        return f"{name} was cancelled"
    if order["state"] != "succeeded":
        return f"{name} failed: {order['error']}"
    result = order["result"]
    if result["end"] != "done":
        return f"{name}: its run {result['run_id']} ended as {result['end']}"
    rejected = result["counts"].get("rejected", 0)
    if fail_on_rejected and rejected:
        return f"{name}: {rejected} partitions were rejected by their checks: run `penstock failed`"
    return None


def published_days(client: Client, order: dict[str, Any]) -> dict[str, set[str]]:
    """The days with a partition that the runs of a finished order published, by table."""
    found: dict[str, set[str]] = {}
    for run_id in _runs(client, order):
        for event in client.events(run=run_id, kind=_PUBLISHED):
            source, _, query, day = event["payload"]["partition_key"].split("/")
            found.setdefault(f"{source}.{query}", set()).add(day)
    return found


def _runs(client: Client, order: dict[str, Any]) -> Iterator[str]:
    """The runs of an order. It names its last run; a large order is divided into several, which started after the
    order was created. Their ids are ordered by time."""
    last = order["result"]["run_id"]
    yield last
    for run in client.runs():
        if run["run_id"] <= order["order_id"]:
            return
        if run["run_id"] < last:
            yield run["run_id"]
