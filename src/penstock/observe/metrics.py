"""The metrics of Penstock: one table with the name, type, help and labels of each family.

The exposition, the reference page and the tests of the shipped rules and dashboard are made from this table. No label
takes values that grow with customers or partitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class MetricType(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"  # never decreases while the state database is the same
    INFO = "info"  # the value is always 1; the labels have the information


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. The name of a counter ends with `_total`, that of an info with `_info`."""

    name: str
    type: MetricType
    help: str
    labels: tuple[str, ...] = ()


class Sample(NamedTuple):
    """One value of a family, with the values of its labels in their order."""

    family: Family
    labels: tuple[str, ...]
    value: float


def _gauge(name: str, text: str, *labels: str) -> Family:
    return Family(f"penstock_{name}", MetricType.GAUGE, text, labels)


def _counter(name: str, text: str, *labels: str) -> Family:
    return Family(f"penstock_{name}_total", MetricType.COUNTER, text, labels)


def _info(name: str, text: str, *labels: str) -> Family:
    return Family(f"penstock_{name}_info", MetricType.INFO, text, labels)


BUILD = _info("build", "Version of the server.", "version")
WORKSPACE = _info("workspace", "Tenant and name of the workspace.", "tenant", "workspace")

STATUS_READABLE = _gauge(
    "status_readable", "Whether the status board could be read (1); if not (0), metrics by display status are absent."
)
PARTITIONS = _gauge("partitions", "Expected partitions by display status.", "table", "status")
STALE = _gauge("stale_partitions", "Stale partitions by reason; a partition may have several.", "table", "reason")
OLDEST_DUE = _gauge(
    "oldest_due_age_seconds",
    "Time since the oldest partition that has no data and no failed attempt became due, without pauses; 0 without any.",
    "table",
)

ATTEMPTS = _counter(
    "attempts",
    "Closed attempts by outcome (succeeded, failed, cancelled) and error class (none if it succeeded).",
    "table",
    "outcome",
    "error_class",
)
LOST_ATTEMPTS = _counter("lost_attempts", "Attempts that were closed because the lease of their worker ended.")
OPEN_ATTEMPTS = _gauge("open_attempts", "Open attempts by the state of their worker (alive, lost).", "table", "worker")
OLDEST_ATTEMPT = _gauge("oldest_open_attempt_age_seconds", "Age of the oldest open attempt; 0 without any.", "table")

FINISHED_RUNS = _gauge("finished_runs", "Finished runs in the projections by state.", "state")
OPEN_RUNS = _gauge("open_runs", "Unfinished runs by the state of their worker (alive, lost).", "worker")
OLDEST_RUN = _gauge("oldest_open_run_age_seconds", "Age of the oldest unfinished run; 0 without any.")
RUN_DURATION = _gauge("last_run_duration_seconds", "Duration of the run that finished last.")
RUN_FINISHED = _gauge("last_run_finished_timestamp_seconds", "Time at which a run finished last.")

PUBLISH_DUE = _gauge("publish_due_partitions", "Partitions whose authority changed and is not published.", "table")
PUBLISH_LAG = _gauge(
    "publish_lag_seconds", "Time that the oldest of them waits for publication; 0 without any.", "table"
)
PUBLICATION_DURATION = _gauge(
    "last_publication_duration_seconds", "Time from the staged files to the pointers of the last publication."
)
PUBLICATION_FINISHED = _gauge("last_publication_timestamp_seconds", "Time of the last publication.")

BREAKER = _gauge("source_breaker_open", "Whether the breaker of the source is open (1) or closed (0).", "source")
QUOTA_LEFT = _gauge("quota_requests_left", "Requests that are left in the present window.", "source", "window")
QUOTA_BUDGET = _gauge("quota_requests_budget", "Requests that the window allows.", "source", "window")
QUOTA_RENEWS = _gauge("quota_renewal_timestamp_seconds", "Time at which the window ends.", "source", "window")

BACKFILL = _gauge(
    "backfill_partitions",
    "Partitions of unfinished backfills, at most 50, by progress (finished, claimed, waiting).",
    "backfill_id",
    "progress",
)

WORKERS = _gauge(
    "workers",
    "Workers by kind (control_loop, other) and state: alive, or lost in the last day without deregistering.",
    "kind",
    "state",
)
LOOP_HEARTBEAT = _gauge(
    "control_loop_heartbeat_timestamp_seconds", "Newest heartbeat of any control loop; absent before the first."
)
LOOP_ROUND = _gauge(
    "control_loop_round_timestamp_seconds",
    "End of the newest round of any control loop; absent before the first. A loop whose round hangs has a heartbeat.",
)
PROJECTION_LAG = _gauge("projection_lag_events", "Positions of the ledger that the projections are behind.")
LEDGER_POSITION = _gauge("ledger_position", "Position of the newest event of the ledger.")
ORDERS = _gauge("orders", "Orders for the control loop by state.", "state")
OLDEST_ORDER = _gauge(
    "oldest_queued_order_age_seconds", "Age of the oldest order that no loop has taken; 0 without any."
)

FAMILIES: tuple[Family, ...] = (
    BUILD, WORKSPACE,
    STATUS_READABLE, PARTITIONS, STALE, OLDEST_DUE,
    ATTEMPTS, LOST_ATTEMPTS, OPEN_ATTEMPTS, OLDEST_ATTEMPT,
    FINISHED_RUNS, OPEN_RUNS, OLDEST_RUN, RUN_DURATION, RUN_FINISHED,
    PUBLISH_DUE, PUBLISH_LAG, PUBLICATION_DURATION, PUBLICATION_FINISHED,
    BREAKER, QUOTA_LEFT, QUOTA_BUDGET, QUOTA_RENEWS,
    BACKFILL, WORKERS, LOOP_HEARTBEAT, LOOP_ROUND, PROJECTION_LAG, LEDGER_POSITION, ORDERS, OLDEST_ORDER,
)  # fmt: skip
