"""The retry policy, as pure functions: what happens after a failed attempt, and when nothing happens any more."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from penstock.errors import ErrorClass
from penstock.settings import Retry
from penstock.state.records import PartitionControl


@dataclass(frozen=True, slots=True)
class Failures:
    """A partition's failed attempts in a row: how many, since when, and the last one."""

    count: int
    since: datetime
    last_at: datetime
    error_class: ErrorClass


@dataclass(frozen=True, slots=True)
class Decision:
    """When the partition is tried again by itself (None: it is not), and by which rule."""

    next_run_at: datetime | None
    strategy: str


def decide(policy: Retry, failures: Failures, chance: float) -> Decision:
    """What the policy makes of these failures. `chance`, between 0 and 1, spreads retries that would come at once."""
    if not failures.count:
        return Decision(None, "none: an operator has cleared what failed")
    if failures.error_class not in policy.errors:
        return Decision(None, f"none: {failures.error_class} errors are not retried by themselves")
    if failures.count >= policy.max_attempts:
        return Decision(None, f"none: {failures.count} of {policy.max_attempts} attempts failed")
    step = min(failures.count, len(policy.backoff))
    at = failures.last_at + jittered(policy.backoff[step - 1], policy.jitter, chance)
    if at - failures.since >= policy.max_age:
        return Decision(None, f"none: failing since {failures.since:%Y-%m-%d %H:%M}, longer than the policy waits")
    return Decision(at, f"backoff {step} of {len(policy.backoff)}")


def jittered(pause: timedelta, jitter: float, chance: float) -> timedelta:
    """The pause, longer or shorter by at most the share `jitter`."""
    return pause * (1 + jitter * (2 * chance - 1))


def terminal(policy: Retry, control: PartitionControl, now: datetime) -> str | None:
    """Why a failed partition is given up for good; None while it is not."""
    if control.terminal_at is not None:
        return f"marked by {control.terminal_by}" + (f": {control.terminal_reason}" if control.terminal_reason else "")
    if control.failures >= policy.max_attempts:
        return f"{control.failures} failed attempts in a row, the policy allows {policy.max_attempts}"
    if control.failing_since is not None and now - control.failing_since >= policy.max_age:
        days = (now - control.failing_since) // timedelta(days=1)
        return f"failing for {days} days, the policy waits {policy.max_age // timedelta(days=1)}"
    return None
